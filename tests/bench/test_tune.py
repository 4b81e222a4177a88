"""The sweep measures every different tree once, changes drafters on one engine, and notices a lie."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from eyas.cli import main
from eyas.config import CacheConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import DraftCounts
from eyas.draft import Drafter, TreeShape
from eyas.draft.base import chain, root_tokens
from eyas.draft.grow import Frontier, Pool
from eyas.draft_tree import DraftTree
from eyas.llm import LLM
from eyas.runner.batch import Batch
from eyas.verify.contestants import EngineContestant, Job, Measurement, acceptance
from eyas.verify.lineup import Lineup, LineupContestant, Stage
from eyas.verify.shapes import batch_tokens, normal
from eyas_bench import plots
from eyas_bench.tune import advised, distinct_shapes, largest, numbers, options_of, sweep
from tests.models.tiny import make_model, save_model

PROMPTS = [[5, 9, 2, 5, 9], [100, 101, 102], [7] * 20]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """The built-in model as its own drafter."""
    config = EngineConfig(
        model=ModelConfig(max_model_len=256),
        cache=CacheConfig(num_slots=1200, prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=2),
        draft=DraftConfig(drafter="model", model="builtin", steps=3, topk=2, nodes=8),
    )
    with LLM(config=config) as llm:
        yield Stage(llm)


def test_a_grid_names_every_different_tree_once() -> None:
    shapes = distinct_shapes([1, 3, 5], [1, 2, 4], [4, 8, 16])
    assert len(shapes) == len(set(shapes)) < 27
    chains = [shape for shape in shapes if shape.topk == 1]
    assert chains == [TreeShape(steps, 1, steps + 1) for steps in (1, 3, 5)]
    assert TreeShape(1, 2, 3) in shapes and TreeShape(1, 2, 4) not in shapes
    assert distinct_shapes([2], [1, 4], [4], only_chains=True) == [TreeShape(2, 1, 3)]


SIZES = list(product([1, 2, 3], [2, 3, 5], [2, 3, 4, 9, 30]))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_normal_shape_has_the_same_tree(sizes: tuple[int, int, int]) -> None:
    asked, found = TreeShape(*sizes), normal(TreeShape(*sizes))
    assert normal(found) == found
    assert found.steps <= asked.steps and found.topk <= asked.topk and found.nodes <= asked.nodes
    assert grown(found) == grown(asked)


def grown(shape: TreeShape) -> set[tuple[int, ...]]:
    """The nodes of a tree that is grown as `TreeDrafter` does, over random scores that depend on the
    path alone."""
    frontier, pool = Frontier.of_roots(1, torch.device("cpu")), Pool(shape.num_candidates)
    shape = shape.within(shape.nodes)
    for _ in range(shape.steps):
        paths = frontier.path_BQP[0].tolist()
        tables = [
            torch.tensor([Random(str(path)).random() for path in children(path)]) for path in paths
        ]
        best = [table.log_softmax(0).topk(shape.topk) for table in tables]
        ids = torch.stack([each.indices for each in best]).unsqueeze(0)
        scores = torch.stack([each.values for each in best]).unsqueeze(0)
        frontier, _ = pool.add(frontier, ids, scores, shape.topk)
    tree = pool.tree(torch.zeros((1, 1), dtype=torch.int64), shape.nodes, is_chain=shape.topk == 1)
    size = int(tree.sizes_B[0])
    return named(tree.tokens_BW[0, :size].tolist(), tree.parents_BW[0, :size].tolist())


def children(path: list[int]) -> list[list[int]]:
    return [[*path, token] for token in range(8)]


def named(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    """The nodes of a tree, each by the tokens that lead to it."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return set(paths)


def test_numbers_are_told_what_is_wrong_with_them() -> None:
    assert numbers("8, 1,1", "--batch") == [1, 8]
    for text in ("", "1,x", "0", "-1", "2.5", "33"):
        with pytest.raises(ValueError, match="--steps: whole numbers from 1 to 32"):
            numbers(text, "--steps")


def test_every_tree_gets_its_nodes() -> None:
    shape = largest([TreeShape(3, 2, 32)])
    assert shape == TreeShape(3, 2, 32)
    assert 3 * batch_tokens([1, 64], [shape]) // 4 >= 64 * 32
    with pytest.raises(ValueError, match="--nodes"):
        batch_tokens([1024], [TreeShape(3, 8, 128)])


def test_a_sweep_compares_all_with_plain_decoding(stage: Stage, tmp_path: Path) -> None:
    shapes = distinct_shapes([3], [1, 2], [4, 8])
    told: list[tuple[int, str, int]] = []
    entries = sweep(
        stage,
        shapes,
        PROMPTS,
        [1, 2],
        max_tokens=8,
        temperature=0.8,
        repeats=1,
        on_run=lambda *call: told.append(call),
    )
    assert [entry["batch"] for entry in entries] == [1, 2]
    assert len(told) == 2 * 2 * (len(shapes) + 2)
    for entry in entries:
        compared = entry["contestants"]
        assert next(iter(compared)) == "plain" and list(compared)[-1] == "auto"
        assert not entry["changed_tokens"]
        assert compared["plain"]["speed_ratio"] == 1
        assert compared["plain"]["drafted_per_step"] == 0
        deep = compared["3x1x4"]
        assert deep["drafted_per_step"] == 3
        assert deep["acceptance_by_depth"][0] == 1, "its own weights are never wrong"
        assert compared["3x2x8"]["drafted_per_step"] > 5
        assert entry["best"] in compared and entry["best_shape"] not in ("plain", "auto")
    machine = {"cpu": "a processor"}
    model = {"name": "m", "dtype": "bfloat16", "device": "cpu"}
    file = tmp_path / "new" / "sweep.png"
    plots.draw_sweep({"model": model, "machine": machine, "results": entries}, file)
    assert file.read_bytes().startswith(b"\x89PNG")


class Broken(Drafter):
    """Fails as soon as it may propose."""

    shape = TreeShape(1, 1, 2)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        raise RuntimeError("broken")


class Sevens(Drafter):
    """Always proposes the same token."""

    shape = TreeShape(1, 1, 2)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        root_B1 = root_tokens(batch)
        sevens_BW = root_B1.repeat(1, 2)
        sevens_BW[:, 1] = 7
        return chain(sevens_BW, sevens_BW.new_full((len(root_B1),), 2))


def test_drafters_change_between_jobs_and_a_broken_one_is_no_result(stage: Stage) -> None:
    stopwatch = EngineContestant("stopwatch", stage.llm)
    job = Job(PROMPTS[:1], 1, 6)

    def run(lineup: Lineup) -> tuple[list[list[int]], DraftCounts]:
        found = LineupContestant(stage, stopwatch, lineup).run(job)
        (counts,) = found.drafts
        return found.token_ids, counts

    expected, counts = run(stage.plain())
    assert counts.num_drafts == 0
    tokens, counts = run(Lineup("sevens", Sevens()))
    assert tokens == expected and counts.drafted_by_depth == [counts.num_drafts]
    tokens, counts = run(stage.fixed("chain", TreeShape(2, 1, 3)))
    assert tokens == expected and len(counts.drafted_by_depth) == 2
    with pytest.raises(RuntimeError, match="broken one"):
        run(Lineup("the broken one", Broken()))
    tokens, counts = run(stage.blend())
    assert tokens == expected and "model" in counts.accepted_by_source


def test_acceptance_is_counted_by_depth() -> None:
    one = DraftCounts(num_drafts=4, drafted_by_depth=[4, 2], accepted_by_depth=[3, 1])
    two = DraftCounts(num_drafts=1, drafted_by_depth=[1], accepted_by_depth=[0])
    found = acceptance([one, two])
    assert found["num_drafts"] == 5
    assert found["acceptance_by_depth"] == [0.6, 0.5]


def test_matplotlib_is_asked_for_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"--plot: .*eyas-bench\[plots\]"):
        plots.require_matplotlib()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], ["--steps"]),
        (["--batch", "1,,2"], ["--batch"]),
        (["--drafter", "ngram+head"], ["--drafter", "ngram"]),
        (["--drafter", "model"], ["--draft-model"]),
        (["--prompts-file", "no/such/file"], ["--prompts-file"]),
        (["--temperature", "-1"], ["--temperature"]),
        (["--model", "nowhere", "--drafter", "ngram"], ["nowhere"]),
    ],
)
def test_what_a_user_can_put_right_is_one_clear_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert eyas(*arguments) == 2
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1
    for word in words:
        assert word in printed.err


def test_a_model_that_nothing_drafts_for_is_told_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = save_model(make_model("llama2"), tmp_path / "model")
    capsys.readouterr()
    assert eyas("--model", str(directory)) == 2
    assert "--draft-model" in capsys.readouterr().err


def write_prompts(directory: Path) -> str:
    lines: list[Any] = [{"prompt": [5, 6, 7, 5, 6]}, {"prompt": "One two one two one"}]
    file = directory / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return str(file)


SMALL = ("--drafter", "ngram", "--steps", "2,4", "--batch", "1", "--max-tokens", "8")


def test_the_command_writes_numbers_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = eyas(
        *(*SMALL, "--repeats", "1", "--prompts-file", write_prompts(tmp_path), "--threads", "1"),
        *("--output", str(tmp_path / "tune.json"), "--plot", str(tmp_path / "tune.png")),
    )
    printed = capsys.readouterr()
    assert status == 0, printed
    assert "best shape" in printed.out
    result = json.loads((tmp_path / "tune.json").read_text())
    (*_, last) = printed.out.splitlines()
    assert last == result["advice"]["options"]
    assert draft_config(last).names == (("root",) if "root" in last else ("ngram",))
    assert {"date", "command", "commit", "machine", "model", "settings"} <= result.keys()
    (entry,) = result["results"]
    assert list(entry["contestants"]) == ["plain", "2x1x3", "4x1x5", "auto"]
    assert (tmp_path / "tune.png").stat().st_size > 1000


def draft_config(options: str) -> DraftConfig:
    """What `eyas serve` makes of a line of options."""
    started: list[EngineConfig] = []

    def start(config: EngineConfig, *_: Any) -> int:
        started.append(config)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eyas.server.process.launch.serve", start)
        with pytest.raises(SystemExit):
            main(["serve", *shlex.split(options)])
    return started[0].draft


def contestants(**ratios: float) -> dict[str, Any]:
    return {"contestants": {n: {"speed_ratio": r, "shape": [4, 2, 8]} for n, r in ratios.items()}}


@pytest.mark.parametrize(
    ("sizes", "name", "of_plain", "options"),
    [
        ([{"a": 1.2, "auto": 1.19}, {"a": 1.2, "auto": 1.19}], "auto", 1.19, "--draft-nodes auto"),
        ([{"a": 0.8, "auto": 0.9}, {"a": 0.8, "auto": 0.9}], "plain", 1.0, "--drafter root"),
        (
            [{"a": 1.8, "auto": 1.0}, {"a": 0.9, "auto": 1.1}],
            "a",
            1.27,
            "--draft-steps 4 --draft-topk 2 --draft-nodes 8",
        ),
    ],
)
def test_what_is_fastest_over_all_batch_sizes_is_advised(
    sizes: list[dict[str, float]], name: str, of_plain: float, options: str
) -> None:
    entries = [contestants(plain=1.0, **ratios) for ratios in sizes]
    assert advised(entries) == (name, of_plain)
    assert " ".join(options_of(name, entries[0])) == options
    config = draft_config(options)
    chosen = {"auto": "auto", "a": 8}.get(name)
    assert chosen == config.nodes if name != "plain" else config.names == ("root",)


def test_a_shape_that_changes_tokens_is_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = LineupContestant.run

    def lies(self: LineupContestant, job: Job) -> Measurement:
        run = honest(self, job)
        if self.name == "4x1x5":
            run.token_ids[0][-1] += 1
        return run

    monkeypatch.setattr(LineupContestant, "run", lies)
    arguments = ("--repeats", "1", "--prompts-file", write_prompts(tmp_path), "--threads", "1")
    assert eyas(*SMALL, *arguments, "--json") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["results"][0]["changed_tokens"] == ["4x1x5"]
    assert "4x1x5" in printed.err and "check failed" in printed.err


def eyas(*arguments: str) -> int:
    """The exit status of `eyas bench tune` in this process."""
    with pytest.raises(SystemExit) as left:
        main(["bench", "tune", *arguments])
    return int(left.value.code or 0)
