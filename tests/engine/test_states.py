"""Engines over models with a state per sequence: prefixes shared by snapshots, refusals, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from eyas.attention.state_plan import StatePlan
from eyas.config import CacheConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import Request, SamplingParams
from eyas.engine.startup import memory
from eyas.engine.startup.exactness import check_exactness
from eyas.llm import LLM
from eyas.models import read_spec
from tests.laws.cases import assert_same, walk_text
from tests.laws.drafters import RandomTrees
from tests.laws.world import MAX_BATCH, Answers, Setting, new_engine, new_runner, run, weights
from tests.models.test_hybrid_heads import make_definition, save
from tests.models.tiny import make_model, save_model, tokens
from tests.thorough import drawn, only_thorough

SETTING = Setting(layers="state", max_model_len=200, num_slots=1000)
BEGINNING = walk_text(101, 40, [0, 1])


def request(name: str, prompt: list[int], **params: Any) -> Request:
    fields = {"temperature": 0.7, "seed": len(name), "max_tokens": 8, "logprobs": 1, **params}
    return Request(id=name, prompt_token_ids=prompt, params=SamplingParams(**fields))


def asked(num: int) -> list[Request]:
    """Requests that begin alike and go on differently."""
    return [request(f"r{i}", BEGINNING + walk_text(98 + i, 9 + i, [1, 0])) for i in range(num)]


def alone(requests: list[Request]) -> Answers:
    answers: Answers = {}
    for each in requests:
        answers |= run(new_engine(SETTING), [each])
    return answers


@pytest.mark.parametrize("flights", [0, 1])
def test_choices_of_one_request_share_its_prompt(flights: int) -> None:
    shared = request("n", BEGINNING, n=3)
    engine = new_engine(Setting(layers="state", max_model_len=200, flights=flights))
    answers = run(engine, [shared])
    assert engine.stats().num_prefix_hit_tokens == 2 * (len(BEGINNING) - 1)
    bare = new_engine(Setting(layers="state", max_model_len=200, prefix_cache=False))
    assert_same(answers, run(bare, [shared]))
    assert bare.stats().num_prefix_hit_tokens == 0


@pytest.mark.parametrize("flights", [1, *only_thorough(0)])
def test_a_common_beginning_is_stored_once_a_second_prompt_has_left_it(flights: int) -> None:
    requests = asked(4)
    expected = alone(requests)
    engine = new_engine(Setting(layers="state", max_model_len=200, flights=flights))
    hits = []
    for each in requests:
        before = engine.stats().num_prefix_hit_tokens
        answers = run(engine, [each])
        assert_same(answers, {key: expected[key] for key in answers})
        hits.append(engine.stats().num_prefix_hit_tokens - before)
    assert hits[:2] == [0, 0] and all(hit >= len(BEGINNING) for hit in hits[2:])


@pytest.mark.parametrize(
    ("stop", "flights"), [(None, 0), (6, 1), *only_thorough((None, 1), (6, 0))]
)
def test_an_answer_can_be_continued_from_its_end(flights: int, stop: int | None) -> None:
    """Also where a stop has cut off tokens that the device had chosen and gone on from."""
    setting = Setting(layers="state", max_model_len=200, flights=flights)
    first = request("first", BEGINNING, max_tokens=16, ignore_eos=True)
    (whole,) = run(new_engine(setting), [first]).values()
    if stop is not None:
        first = request("first", BEGINNING, max_tokens=30, stop_token_ids=(whole.token_ids[stop],))
    engine = new_engine(setting, RandomTrees(4, 6))
    (answer,) = run(engine, [first]).values()
    assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
    told = BEGINNING + answer.token_ids
    second = request("second", told + walk_text(99, 5, [1, 0]))
    before = engine.stats().num_prefix_hit_tokens
    assert_same(run(engine, [second]), run(new_engine(setting), [second]))
    hit = engine.stats().num_prefix_hit_tokens - before
    assert hit >= (len(told) - 8 if stop is None else len(BEGINNING) - 1)


def test_few_snapshots_are_enough_for_the_same_answers() -> None:
    requests = asked(drawn(4, 6))
    expected = alone(requests)
    engine = new_engine(Setting(layers="state", max_model_len=200, num_slots=500, max_num_seqs=2))
    for _ in range(2):
        assert_same(run(engine, requests), expected)
        assert_same(run(engine, requests[::-1]), expected)
    assert engine.stats().num_prefix_hit_tokens > 0


@pytest.mark.parametrize("failing", [1, 4, 7])
def test_a_forward_pass_that_fails_between_layers_spoils_no_answer(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass fails in its second layer, or a later one. A pass runs again without a draft if
    the states allow it, and else its request ends with an error."""
    requests = asked(2)
    expected = alone(requests)
    recur, calls = StatePlan.recur, iter(range(10000))

    def fail_once(self: StatePlan, *args: Any) -> torch.Tensor:
        if next(calls) == failing:
            raise MemoryError("no memory for this layer")
        return recur(self, *args)

    monkeypatch.setattr(StatePlan, "recur", fail_once)
    engine = new_engine(SETTING, RandomTrees(3, 6))
    found = run(engine, requests[:1])
    if failing == 1:  # a prompt's first chunk can run again
        assert_same(found, {("r0", 0): expected["r0", 0]})
    else:
        assert found["r0", 0].finish_reason == "error"
    for each in requests:
        again = run(engine, [each])
        assert_same(again, {key: expected[key] for key in again})


def test_the_self_check_runs_over_states() -> None:
    runner = new_runner(torch.float32, 400, "state")
    order = weights(torch.float32, "state").order
    claim = check_exactness(runner, order, 200, 400, width=8)
    assert claim.exact, claim.reason


def test_the_self_check_finds_states_that_depend_on_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recur = StatePlan.recur

    def rounded(self: StatePlan, layer: int, inputs_TX: torch.Tensor, rule: Any) -> torch.Tensor:
        out = recur(self, layer, inputs_TX, rule)
        return out if len(inputs_TX) > 20 else out * (1 + 1e-6)

    monkeypatch.setattr(StatePlan, "recur", rounded)
    runner = new_runner(torch.float32, 400, "state")
    order = weights(torch.float32, "state").order
    assert not check_exactness(runner, order, 200, 400, width=8).exact


def config(model: Path, draft: DraftConfig | None = None) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(model), dtype="float32"),
        cache=CacheConfig(num_slots=600),
        scheduler=SchedulerConfig(max_num_seqs=4, max_batch_tokens=MAX_BATCH),
        draft=draft or DraftConfig(),
    )


def test_a_checkpoint_brings_its_mtp_layer_along(tmp_path: Path) -> None:
    save(make_definition("qwen3 next"), tmp_path)
    prompts = [tokens(30), tokens(7, seed=2)]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    found = []
    for draft in (DraftConfig(), DraftConfig(drafter="root")):
        with LLM(config=config(tmp_path, draft)) as llm:
            assert llm.info.exact, llm.info.exact_reason
            if not draft.names:
                assert llm.info.drafter.startswith("head")
            found.append([out.token_ids for out in llm.generate(prompts, params)])
    assert found[0] == found[1]


def test_states_come_out_of_the_memory_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_model(make_model("qwen3 next"), tmp_path)
    size = sum(store.num_bytes(0, 4) for store in read_spec(directory).state_stores)
    seen: list[int] = []
    budget = memory.cache_budget

    def noted(device: torch.device, fraction: float, state_bytes: int) -> int:
        seen.append(state_bytes)
        return budget(device, fraction, state_bytes)

    monkeypatch.setattr(memory, "cache_budget", noted)
    monkeypatch.setattr(memory, "SNAPSHOT_BYTES", 3 * size + 1)
    options = msgspec.structs.replace(
        config(directory, DraftConfig(drafter="root")), cache=CacheConfig()
    )
    with LLM(config=options) as llm:
        (states,) = [choice for choice in llm.info.choices if choice.name == "states"]
    assert states.value.endswith("MiB a sequence, 3 snapshots")
    assert seen[0] >= (4 + 3) * size


def test_a_model_with_states_cannot_draft(tmp_path: Path) -> None:
    target = save_model(make_model("qwen3"), tmp_path / "target")
    drafting = save_model(make_model("qwen3 next"), tmp_path / "draft")
    draft = DraftConfig(drafter="model", model=str(drafting))
    message = r"draft\.model: .* has layers with a state per sequence, which cannot draft; take a"
    with pytest.raises(ValueError, match=message):
        LLM(config=config(target, draft))
