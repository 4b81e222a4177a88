"""Rounds, turns and ratios of a decode measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from random import Random

import pytest

from builtin_model.families import FAMILIES, draw_example
from eyas.cli import main
from eyas.config import CacheConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.draft import RootDrafter
from eyas.llm import LLM
from eyas.verify.contestants import (
    EngineContestant,
    Job,
    Measurement,
    same_tokens,
    summarise,
    take_turns,
)
from eyas_bench.prompts import heldout_tasks
from eyas_bench.ratio import median_interval, ratio

PROMPTS = [[5, 9, 2, 5, 9], [100, 101, 102], [7] * 20, [3, 4], [8, 8, 8]]


@dataclass
class Noted:
    """A contestant that only writes down what it was given, in a list that all share."""

    name: str
    notes: list[tuple[str, list[list[int]]]] = field(default_factory=list)

    def run(self, job: Job) -> Measurement:
        self.notes.append((self.name, job.prompts))
        return Measurement(seconds=1.0, token_ids=[list(prompt) for prompt in job.prompts])


@pytest.fixture
def llm() -> Iterator[LLM]:
    """The built-in model, decoding plainly."""
    config = EngineConfig(
        model=ModelConfig(max_model_len=256),
        cache=CacheConfig(num_slots=1200, prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=4),
        draft=DraftConfig(drafter="root"),
    )
    with LLM(config=config) as llm:
        yield llm


def test_who_goes_first_in_one_round_goes_last_in_the_next() -> None:
    notes: list[tuple[str, list[list[int]]]] = []
    runs = take_turns([Noted("a", notes), Noted("b", notes)], Job([[1]], 1, 4), 3)
    assert [name for name, _ in notes] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [len(each) for each in runs.values()] == [3, 3], "the round to warm up is not counted"


def test_every_round_has_prompts_of_its_own_and_contestants_share_them() -> None:
    notes: list[tuple[str, list[list[int]]]] = []
    prompts = [[number] for number in range(6)]
    take_turns([Noted("a", notes), Noted("b", notes)], Job(prompts, 2, 4, per_round=2), 2)
    given = [prompts for _, prompts in notes]
    assert given[::2] == given[1::2] == [[[0], [1]], [[2], [3]], [[4], [5]]]


@pytest.mark.parametrize("num", [1, 2, 5, 6, 7, 20, 21, 40])
def test_the_interval_holds_the_median_as_often_as_it_says(num: int) -> None:
    values = [float(value) for value in range(num)]
    Random(0).shuffle(values)
    low, high, coverage = median_interval(values)
    cut = int(low)
    assert high == num - 1 - cut, "as far from either end"
    outside = 2 * sum(comb(num, i) for i in range(cut + 1)) / 2**num
    assert coverage == pytest.approx(max(0.0, 1 - outside))
    if num >= 6:
        narrower = outside + 2 * comb(num, cut + 1) / 2**num
        assert coverage >= 0.95 > 1 - narrower
    else:
        assert cut == 0


def test_the_interval_covers_what_it_promises_on_drawn_values() -> None:
    draw = Random(1)
    held = 0
    for _ in range(2000):
        low, high, _ = median_interval([draw.expovariate(1.0) for _ in range(20)])
        held += low <= 0.6931 <= high
    assert held / 2000 > 0.94


def test_a_ratio_is_taken_within_a_round() -> None:
    plain = [Measurement(seconds=seconds, token_ids=[[0] * 10]) for seconds in (1.0, 2.0, 4.0)]
    drafted = [Measurement(seconds=seconds, token_ids=[[0] * 10]) for seconds in (0.5, 1.0, 1.0)]
    found = ratio(drafted, plain)
    assert (found["median"], found["low"], found["high"], found["rounds"]) == (2, 2, 4, 3)


def test_tokens_are_compared_round_by_round() -> None:
    one = [Measurement(token_ids=[[1], [2]]), Measurement(token_ids=[[3], [4]])]
    assert same_tokens(one, one) == 1
    assert same_tokens(one, [one[0], Measurement(token_ids=[[3], [5]])]) == 0.75


def test_a_batch_stays_full_only_when_it_is_refilled(llm: LLM) -> None:
    contestant = EngineContestant("plain", llm)
    assert type(llm.engine.drafter) is RootDrafter
    job = Job(PROMPTS, 2, 6)
    together = contestant.run(job)
    full = contestant.run(Job(PROMPTS, 2, 6, refills=True))
    assert together.token_ids == full.token_ids
    assert len(together.first_tokens) == 3 and len(full.first_tokens) == 1
    assert full.num_steps <= together.num_steps
    summary = summarise([full])
    assert summary["tokens_per_step"] == 1 and summary["tokens_per_draft"] is None
    assert summary["num_tokens"] == 30


def test_every_prompt_of_a_run_has_a_seed_of_its_own(llm: LLM) -> None:
    run = EngineContestant("plain", llm).run(Job([[5, 9, 2]] * 4, 4, 12, temperature=2.0))
    assert len({tuple(ids) for ids in run.token_ids}) > 1


def test_heldout_tasks_are_the_same_every_time_and_of_all_kinds_alike() -> None:
    tasks = heldout_tasks(2 * len(FAMILIES) + 3)
    assert tasks == heldout_tasks(2 * len(FAMILIES) + 3)
    assert tasks[:20] == heldout_tasks(20), "more of them are the same ones and others"
    titles = [task.title for task in tasks]
    assert sorted(titles[: len(FAMILIES)]) == sorted(FAMILIES)
    assert titles[: len(FAMILIES)] != titles[len(FAMILIES) : 2 * len(FAMILIES)], "shuffled"
    (task,) = heldout_tasks(1, ["problems"])
    request = draw_example("problems", "bench/0", "heldout").request
    assert (task.messages, task.thinks) == (request.messages, request.enable_thinking)
    with pytest.raises(ValueError, match="--families: verse is none; there are pick"):
        heldout_tasks(1, ["pick", "verse"])


def test_the_command_tells_how_drafts_fare_on_tasks(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    with pytest.raises(SystemExit) as left:
        main(
            [
                *("bench", "decode", "--workload", "tasks", "--drafter", "head", "--batch", "2"),
                *("--draft-steps", "3", "--draft-topk", "2", "--draft-nodes", "6", "--refill"),
                *("--repeats", "2", "--num-prompts", "3", "--max-tokens", "24", "--threads", "1"),
                *("--json", "-o", str(file)),
            ]
        )
    assert not left.value.code
    result = json.loads(file.read_text())
    (entry,) = result["results"]
    one = entry["contestants"]["head"]
    assert entry["same_tokens"] == {"head": 1}
    assert one["ratio"]["rounds"] == 2 and one["ratio"]["low"] <= one["ratio"]["median"]
    assert one["tokens_per_step"] > 1 and one["tokens_per_draft"] > one["tokens_per_step"]
    assert len(one["acceptance_by_depth"]) == 3
    assert "ratio" not in entry["contestants"]["plain"]
    assert result["settings"]["stop_at_eos"] and result["settings"]["prompt_tokens"]["prompts"] == 9
