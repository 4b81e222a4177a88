"""Stages that were captured read one another's results: what is kept of them must fit together."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from eyas import LLM
from eyas.config import DeviceConfig, DraftConfig, EngineConfig, SchedulerConfig
from eyas.core import Request, SamplingParams
from eyas.draft import RootDrafter
from eyas.draft_tree import DraftTree
from eyas.engine.startup.captures import captured_sizes
from eyas.runner.batch import Batch, PlannedBatch, Span
from eyas.runner.graphs import Captured, CaptureLimits, Stages, StepGraphs
from eyas.runner.step_inputs import StepSizes, sizes_with_prompts
from eyas.runner.table import SequenceTable
from eyas.sampling.params import BatchParams, SequenceParams
from tests.laws.captures import UnkindGraphs, make_unkind
from tests.laws.world import Setting, new_engine, run


def step(stages: Stages, number: torch.Tensor) -> int:
    """Three stages, each of which reads what the one before it filled."""
    drafted = stages.run("draft", "", lambda: number + 1)
    forward = stages.run("forward", "", lambda: drafted * 2)
    verdict = stages.run("verdict", "", lambda: forward + drafted)
    return int(verdict)


@pytest.mark.parametrize("most", [3, 4, 5, 7, 8, 11, 100])
def test_a_stage_reads_what_the_stage_before_it_filled_in_this_step(most: int) -> None:
    """Shapes come and go in any order, with room for any number of stages."""
    steps, draw = UnkindGraphs(max_graphs=most), random.Random(most)
    number = torch.zeros((), dtype=torch.int64)
    for _ in range(300):
        number.fill_(draw.randrange(1000))
        stages = steps.of(draw.randrange(6))
        if draw.random() < 0.3:  # another way to draft is met later
            drafted = stages.run("draft", "another", lambda: number + 5)
            forward = stages.run("forward", "another", partial(torch.mul, drafted, 3))
            assert int(forward) == 3 * (int(number) + 5)
        else:
            assert step(stages, number) == 3 * (int(number) + 1)
    if most < 18:
        assert steps.num_captured > 30  # room was made


def test_a_shape_is_dropped_as_a_whole_the_oldest_first() -> None:
    steps, number = UnkindGraphs(max_graphs=6), torch.tensor(4)
    for shape in ("a", "b", "a", "c"):
        assert step(steps.of(shape), number) == 15
    assert steps.num_captured == 9
    assert [len(steps.of(shape)) for shape in ("a", "c")] == [3, 3]
    assert len(steps.of("b")) == 0


def test_who_has_the_stages_of_a_dropped_shape_can_still_run_them() -> None:
    steps, number = UnkindGraphs(max_graphs=3), torch.tensor(4)
    mine = steps.of("mine")
    step(mine, number)
    for other in range(3):
        step(steps.of(other), number)
    number.fill_(7)
    assert step(mine, number) == 24
    assert steps.num_captured == 12
    assert steps.of("mine") is not mine


def test_the_shape_of_a_step_that_begins_is_never_dropped() -> None:
    steps, number = UnkindGraphs(max_graphs=1), torch.tensor(4)
    for _ in range(3):
        step(steps.of("a"), number)
    assert steps.num_captured == 3
    assert steps.num_replays == 9


def tree(tokens: list[int]) -> DraftTree:
    tokens_BW = torch.tensor([tokens])
    parents_BW = torch.arange(-1, len(tokens) - 1).unsqueeze(0)
    return DraftTree(tokens_BW, parents_BW, torch.tensor([len(tokens)]), is_chain=True)


def test_a_tree_that_no_stage_made_is_held_at_one_address() -> None:
    steps = UnkindGraphs()
    stages = steps.of("a")
    first = stages.to_static(tree([1, 2, 3]))
    again = steps.of("b").to_static(tree([4, 5, 6]))
    assert again.tokens_BW.data_ptr() == first.tokens_BW.data_ptr()
    assert again.sizes_B.data_ptr() == first.sizes_B.data_ptr()
    assert first.tokens_BW.tolist() == [[4, 5, 6]]
    other = stages.to_static(tree([1, 2]))
    assert other.tokens_BW.data_ptr() != first.tokens_BW.data_ptr()


def test_a_tree_that_a_stage_filled_is_held_as_it_is() -> None:
    steps = UnkindGraphs()
    stages = steps.of("a")
    made = tree([1, 2, 3])
    filled = stages.run("draft", "", lambda: made)
    assert stages.to_static(filled) is filled
    cut = DraftTree(made.tokens_BW, made.parents_BW, made.sizes_B - 1, is_chain=True)
    held = stages.to_static(cut)
    assert held.tokens_BW.data_ptr() != made.tokens_BW.data_ptr()
    assert held.sizes_B.tolist() == [2]
    assert steps.of("b").to_static(filled).tokens_BW is not filled.tokens_BW


class Failing(UnkindGraphs):
    """Captures fail from `after` on."""

    after = 0
    num_tried = 0

    def capture(self, name: Hashable, stage: Callable[[], Any]) -> Captured:
        self.num_tried += 1
        if self.num_captured >= self.after:
            stage()
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(name, stage)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_shape_whose_stages_cannot_be_captured_runs_without_graphs(
    after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What has run counts: it is not done again, and what reads it later is not captured."""
    caplog.set_level("WARNING", logger="eyas.runner.graphs")
    steps, number = Failing(), torch.tensor(4)
    steps.after = after
    stages = steps.of("a")
    for value in (4, 9, 2):
        number.fill_(value)
        assert step(stages, number) == 3 * (value + 1)
    assert steps.num_captured == after and len(stages) == 0
    assert len(caplog.records) == 1 and "cannot be captured" in caplog.text
    steps.after = 100
    assert step(steps.of("b"), number) == 9
    assert steps.num_captured == after + 3


def test_a_step_runs_one_stage_of_a_name() -> None:
    """Namesakes share memory: the second would overwrite what the first returned."""
    table = SequenceTable(1, 16, 1, torch.device("cpu"))
    source = SequenceParams(SamplingParams(), 0, 0, 1, frozenset())
    params = BatchParams([source], 8, torch.device("cpu"))
    seat = table.seat([1, 2], np.array([1]))
    span = Span(seat, 0, 0, np.empty(0, np.int64), np.array([2]), root_low=1, root_high=1)

    def begin() -> Batch:
        return PlannedBatch(table, [span], params, 1, 3).begin()

    batch = begin()
    assert batch.stage("draft", 1, lambda: 5) == 5
    assert batch.stage("forward", 1, lambda: 6) == 6
    with pytest.raises(RuntimeError, match="'draft' has run in this step"):
        batch.stage("draft", 2, lambda: 7)
    assert begin().stage("draft", 2, lambda: 7) == 7


@pytest.mark.parametrize("drafter", ["root", "ngram", "head"])
def test_no_token_is_lost_where_nothing_can_be_captured(drafter: str) -> None:
    """Each stage has run, and once more in vain, when its capture fails."""
    config = EngineConfig(draft=DraftConfig(drafter=drafter), device=DeviceConfig(num_threads=1))
    texts = ["Repeat this text exactly: seven green boats, seven red boats.", "Hello! Who are you?"]
    chats = [[{"role": "user", "content": text}] for text in texts]
    with LLM(config=config) as llm:
        expected = llm.chat(chats, SamplingParams(max_tokens=40, seed=1))
        failing = llm.engine.launcher.graphs = Failing()
        found = llm.chat(chats, SamplingParams(max_tokens=40, seed=1))
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        assert failing.num_tried > 2
        assert llm.engine.metrics.num_failed_steps == 0
        llm.engine.check()


@pytest.mark.parametrize(("most", "shapes"), [(None, {1, 2}), (1, {1}), (0, set())])
def test_steps_of_more_sequences_than_asked_for_are_not_captured(
    most: int | None, shapes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduling = SchedulerConfig(max_graph_batch=most)
    limits = CaptureLimits(scheduling.limits(on_gpu=False).max_captured_seqs)
    config = EngineConfig(
        scheduler=scheduling,
        draft=DraftConfig(drafter="root"),
        device=DeviceConfig(num_threads=1),
    )
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    with LLM(config=config) as llm:
        expected = [one.token_ids for one in llm.generate(["The", "Hello"], params)]
        own = llm.engine.launcher.graphs
        assert (own is None) == (most == 0)
        assert own is None or own.limits.num_seqs == limits.num_seqs
        kept = llm.engine.launcher.graphs = UnkindGraphs(limits)
        met: set[int] = set()

        def of(shape: Any) -> Stages:
            met.add(shape[0])
            return type(kept).of(kept, shape)

        monkeypatch.setattr(kept, "of", of)
        found = [one.token_ids for one in llm.generate(["The", "Hello"], params)]
        assert found == expected
        llm.generate("The", params)
        assert met == shapes
        assert bool(kept.num_captured) == bool(shapes)


def test_sizes_that_are_captured_at_the_start_are_bounded() -> None:
    assert captured_sizes(5) == [6, 4, 3, 2, 1]
    assert captured_sizes(2) == [2, 1]
    assert captured_sizes(0) == []


def test_a_shape_is_captured_once_it_has_occurred_often_enough() -> None:
    graphs = StepGraphs(torch.device("cpu"), captured_at=3)
    assert [graphs.captures("a", at_once=False) for _ in range(4)] == [False, False, True, True]
    assert graphs.captures("b", at_once=True) and graphs.captures("b", at_once=False)
    assert StepGraphs(torch.device("cpu")).captures("a", at_once=False)


def test_a_prepared_stage_is_captured_without_running_before() -> None:
    """Only a capture that fails runs it first, and is tried again."""

    class Graphs(StepGraphs):
        num_failing = 0

        def _record(self, name: Hashable, stage: Callable[[], Any]) -> tuple[Any, Any]:
            if self.num_failing:
                self.num_failing -= 1
                raise RuntimeError("not now")
            return Replayed(), "captured"

    class Replayed:
        def replay(self) -> None:
            pass

    runs: list[int] = []

    def stage() -> str:
        runs.append(1)
        return "ran"

    graphs = Graphs(torch.device("cpu"))
    for is_prepared, num_failing, num_runs, result in (
        (True, 0, 0, "captured"),
        (True, 1, 1, "captured"),
        (True, 2, 1, "ran"),
        (False, 0, 1, "captured"),
        (False, 1, 1, "ran"),
    ):
        runs.clear()
        stages, graphs.num_failing = Stages(graphs), num_failing
        stages.is_prepared = is_prepared
        assert stages.run("a", 0, stage) == result
        assert (len(runs), graphs.num_failing) == (num_runs, 0)
        assert stages.run("a", 0, stage) == result
        assert len(runs) == num_runs + (result == "ran")


def test_the_time_of_a_capture_is_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else prompts would be cut into small chunks after the first steps of a load."""
    setting = Setting(max_model_len=100, flights=1, prefix_cache=False)
    engine = new_engine(setting, RootDrafter())
    kept = make_unkind(engine)
    times: list[float] = []
    monkeypatch.setattr(engine.scheduler, "learn", lambda plan, seconds: times.append(seconds))
    params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    requests = [Request(id=f"{i}", prompt_token_ids=[1, 2, 3 + i], params=params) for i in range(2)]
    for is_first in (True, False):
        num_steps, num_captured = engine.metrics.num_steps, kept.num_captured
        times.clear()
        run(engine, requests)
        num_steps = engine.metrics.num_steps - num_steps
        assert (kept.num_captured > num_captured) == is_first
        assert (len(times) < num_steps) == is_first


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (StepSizes(1, 1, 40, 1), StepSizes(1, 1, 63, 4)),
        (StepSizes(3, 1, 61, 3), StepSizes(4, 1, 124, 4)),
        (StepSizes(3, 1, 60, 4), StepSizes(4, 1, 60, 8)),
        (StepSizes(65, 1, 500, 1), StepSizes(128, 1, 512, 4)),
        (StepSizes(4, 6, 100, 1), StepSizes(4, 6, 104, 4)),
        (StepSizes(5, 6, 100, 1), None),
        (StepSizes(1, 1, 1023, 1), StepSizes(1, 1, 1023, 4)),
        (StepSizes(1, 1, 1024, 1), None),
    ],
)
def test_steps_with_prompts_share_few_sizes(step: StepSizes, expected: StepSizes | None) -> None:
    """A chunk of padding is always left."""
    assert sizes_with_prompts(step, 1024) == expected
