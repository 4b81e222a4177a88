"""Captured stages: how long their results stand, and what is left of a capture that fails."""

from __future__ import annotations

import pytest
import torch

from eyas.runner.graphs import StepGraphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_result_stands_while_the_rest_of_its_step_runs() -> None:
    """Also where the rest was captured before it, and so knows nothing of its memory."""
    device = torch.device("cuda")
    number = torch.zeros((), device=device)
    stages = StepGraphs(device).of("a")

    def scribble() -> torch.Tensor:
        drafts = [torch.full((size,), -1.0, device=device) for size in (8, 64, 512, 4096, 2**19)]
        return sum(draft.sum() for draft in drafts) + number

    stages.run("last", 0, scribble)
    results = [
        stages.run("first", size, lambda size=size: number.expand(size) + 1)
        for size in (8, 64, 512, 4096, 2**19)
    ]
    for value in (3.0, 5.0):
        number.fill_(value)
        for size, result in zip((8, 64, 512, 4096, 2**19), results, strict=True):
            stages.run("first", size, lambda: None)
            stages.run("last", 0, scribble)
            assert torch.equal(result, torch.full_like(result, value + 1)), size


@pytest.mark.parametrize("is_of_the_host", [False, True])
def test_random_numbers_are_drawn_after_a_capture_that_failed(is_of_the_host: bool) -> None:
    """Whether CUDA refuses a call within it, or the stage itself raises."""
    device = torch.device("cuda")
    numbers = torch.arange(3.0, device=device)
    calls = []

    def stage() -> float:
        calls.append(torch.cuda.is_current_stream_capturing())
        if is_of_the_host and calls[-1]:
            raise ValueError("not while it is captured")
        return numbers.sum().item()

    stages = StepGraphs(device).of("a")
    for _ in range(2):
        assert stages.run("first", 0, stage) == 3
    assert calls == [False, True, False]
    assert torch.randn(100, device=device).unique().numel() > 90
    graphs = StepGraphs(device).of("b")
    for expected in (6.0, 9.0):
        numbers.add_(1)
        assert graphs.run("first", 0, numbers.sum) == expected


def test_a_prepared_stage_that_cannot_be_captured_unrun_runs_first() -> None:
    """As one that waits for the device where it runs for the first time."""
    device = torch.device("cuda")
    numbers, calls = torch.arange(4.0, device=device), []

    def stage() -> torch.Tensor:
        calls.append(torch.cuda.is_current_stream_capturing())
        if len(calls) < 3:
            torch.cuda.synchronize()
        return numbers + 1

    stages = StepGraphs(device).of("a")
    stages.is_prepared = True
    for _ in range(2):
        numbers.add_(1)
        assert torch.equal(stages.run("first", 0, stage), numbers + 1)
    assert calls == [True, False, True]
    assert stages.run("second", 0, numbers.sum) == 14 and calls == [True, False, True]
    assert torch.randn(100, device=device).unique().numel() > 90


def test_a_kernel_that_is_not_compiled_yet_can_be_in_a_capture() -> None:
    from eyas.kernels.gate_heads import gate_heads

    device = torch.device("cuda")
    out, gate = torch.randn(3, 24 * 7, device=device), torch.randn(3, 24 * 7, device=device)
    stages = StepGraphs(device).of("a")
    stages.is_prepared = True
    found = stages.run("first", 0, lambda: gate_heads(out.clone(), gate, pdl=True))
    assert torch.allclose(found, gate_heads(out.clone(), gate), atol=1e-6)
