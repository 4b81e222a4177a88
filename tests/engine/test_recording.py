"""Recordings of stages on a CPU: what they replay, and what they refuse."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from eyas.layers.linear import pack_by_library
from eyas.native.build import call
from eyas.runner.recording import (
    MOST_BYTES,
    MOST_CHANGES,
    MOST_OF_SHAPE,
    NotRecordable,
    Recordings,
    record,
)
from eyas.runner.step_inputs import StepSizes

CPU = torch.device("cpu")
SHAPE = (1, 1)
"""Sequences and width of a step."""


def test_a_replay_does_with_new_numbers_what_the_stage_does() -> None:
    """Views, results in place, constants that are written to, several results, and lists."""
    x_AB, places = torch.randn(4, 6), torch.tensor([3, 0])

    def stage() -> tuple[torch.Tensor, ...]:
        sums = torch.zeros(6)
        sums.add_(x_AB[1]).add_(x_AB.t()[:, 2])
        counted = torch.arange(6)
        counted[places] += 10
        largest = x_AB.topk(2, dim=1)
        picked = torch.where(x_AB > 0, x_AB, 0.0)[places]
        joined = torch.cat([picked, x_AB.reshape(6, 4).t()[:2]])
        joined[0].mul_(2)
        return sums, counted, largest.values, largest.indices, joined, joined.contiguous().view(-1)

    recording, result = record(stage)
    for seed in range(5):
        torch.manual_seed(seed)
        x_AB.copy_(torch.randn(4, 6))
        places.copy_(torch.randperm(4)[:2])
        expected = [each.clone() for each in stage()]
        recording.replay()
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(result, expected, strict=True))
    assert len(recording) > 8


def test_calls_of_compiled_code_are_made_again_in_their_place() -> None:
    x, seen = torch.zeros(3), []

    def add(pointer: int, number: float) -> None:
        first = ctypes.c_float.from_address(pointer)
        seen.append(first.value)
        first.value += number

    def stage() -> torch.Tensor:
        x.mul_(2)
        call("test::add", add, x.data_ptr(), 1.0)
        return x + 1

    recording, result = record(stage)
    recording.replay()
    assert seen == [0.0, 2.0] and result.tolist() == [4.0, 1.0, 1.0]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_products_with_weights_in_the_layout_of_onednn_are_recorded() -> None:
    """Such a weight has no storage that could be looked at."""
    weight_OI, x_TI = torch.randn(7, 5), torch.randn(3, 5)
    product = pack_by_library(weight_OI)
    assert product is not None
    recording, result_TO = record(lambda: product(x_TI, None) * 2)
    x_TI.copy_(torch.randn(3, 5))
    recording.replay()
    assert torch.equal(result_TO, product(x_TI, None) * 2)


def test_a_recording_loads_no_compiler() -> None:
    """It would take more than a second, in a step of a user's first request."""
    code = """
import sys, torch
from eyas.runner.recording import record
record(lambda: torch.ones(2) + 1)
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: int(x[0]),
        lambda x: float(x[0]),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        np.asarray,
        lambda x: [1, 2, 3][x.long()[0]],
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.where(x > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.unique(),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 1])),
        lambda x: torch.rand(3),
        lambda x: x.clone().exponential_(),
        torch.randn_like,
        lambda x: x.softmax(0).multinomial(1),
        lambda x: torch.zeros(MOST_BYTES // 4 + 1) + 1,
    ],
)
def test_what_depends_on_numbers_or_chance_is_refused(
    read: Callable[[torch.Tensor], object],
) -> None:
    x = torch.tensor([1.0, 0.0, 2.0])
    with torch.inference_mode(), pytest.raises(NotRecordable):
        record(partial(read, x))


def test_a_stage_that_is_refused_is_called_with_those_after_it_in_its_step() -> None:
    """And the next step is recorded up to there again."""
    graphs, number = Recordings(CPU, recorded_at=1), torch.zeros(())

    def step() -> list[float]:
        stages = graphs.of(SHAPE)
        forward = stages.run("forward", 0, lambda: number + 1)
        verdict = stages.run("verdict", 0, lambda: torch.tensor(float(forward) * 2))
        last = stages.run("last", 0, lambda: verdict + forward)
        return [float(forward), float(verdict), float(last)]

    for value in (3.0, 5.0, 8.0):
        number.fill_(value)
        assert step() == [value + 1, 2 * (value + 1), 3 * (value + 1)]
    assert graphs.num_captured == 1 and not graphs.refused_from


def test_nothing_is_recorded_where_forward_passes_cannot_be() -> None:
    graphs, number = Recordings(CPU, recorded_at=1), torch.zeros(())
    assert graphs.serves(StepSizes(8, 1)) and graphs.serves(StepSizes(4, 5))
    assert not graphs.serves(StepSizes(5, 5)) and not graphs.serves(StepSizes(1, 1, 9))
    assert graphs.of((1, 5)).run("forward", 0, lambda: int(number)) == 0
    assert graphs.refused_from == {5: 1}
    assert graphs.serves(StepSizes(1, 1)) and not graphs.serves(StepSizes(1, 5))


def test_few_sequences_are_recorded_where_many_are_too_large() -> None:
    graphs = Recordings(CPU, recorded_at=1)
    for num in (64, 16, 32):
        graphs.of((num, 1)).run("forward", 0, lambda: torch.ones(MOST_BYTES) * 2)
    assert graphs.serves(StepSizes(15, 1)) and graphs.serves(StepSizes(1, 5))
    assert not graphs.serves(StepSizes(16, 1))
    graphs.of((1, 1)).run("forward", 0, lambda: torch.ones(4) * 2)
    assert graphs.num_captured == 1


def test_recordings_of_a_shape_are_bounded() -> None:
    graphs = Recordings(CPU, recorded_at=1)
    for key in range(MOST_OF_SHAPE + 5):
        assert graphs.of(SHAPE).run("draft", key, lambda: torch.ones(1) + 1).tolist() == [2.0]
    assert graphs.num_captured == MOST_OF_SHAPE


def test_a_stage_is_called_where_a_condition_has_changed() -> None:
    """With those after it in its step. If that happens often, it is not replayed any more."""
    graphs, number = Recordings(CPU, recorded_at=1), torch.zeros(1)
    calls = []

    def forward() -> torch.Tensor:
        calls.append("forward")
        return number * 2 if bool((number < 5).all()) else number * 3

    def step(value: float) -> list[float]:
        number.fill_(value)
        stages = graphs.of(SHAPE)
        result = stages.run("forward", 0, forward)
        return stages.run("verdict", 0, lambda: result + 1).tolist()

    assert step(3.0) == [7.0] and step(4.0) == [9.0]
    assert calls == ["forward"] and graphs.num_replays == 4
    assert step(6.0) == [19.0] and step(2.0) == [5.0]
    assert calls == ["forward"] * 2 and graphs.num_replays == 6
    for _ in range(MOST_CHANGES):
        assert step(6.0) == [19.0]
    calls.clear()
    assert step(2.0) == [5.0]
    assert calls == ["forward"] and graphs.num_replays == 6


def test_repeats_of_one_number_are_replayed() -> None:
    x = torch.arange(4)
    recording, result = record(lambda: x.repeat_interleave(2))
    x += 1
    recording.replay()
    assert result.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
