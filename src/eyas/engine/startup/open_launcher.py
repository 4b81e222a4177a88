"""Open the launcher of an engine's steps, by the settings.

Does not know: how steps run.
"""

from __future__ import annotations

from eyas.config import StepLimits
from eyas.draft import Drafter
from eyas.engine.launch import Launcher
from eyas.engine.verifier import Verify
from eyas.kernels import usable
from eyas.runner.graphs import CAPTURED_AT, CaptureLimits, StepGraphs
from eyas.runner.recording import Recordings
from eyas.runner.runner import ModelRunner
from eyas.runner.step_inputs import MOST_ROWS_WITH_PROMPTS
from eyas.runner.table import SequenceTable


def open_launcher(
    limits: StepLimits,
    runner: ModelRunner,
    drafter: Drafter,
    max_length: int,
    vocab_size: int,
    *,
    mask_seconds: float,
    verify: Verify,
) -> Launcher:
    """Return a launcher with a sequence table of its own. max_length: of a sequence."""
    kv = runner.backend.kv
    table = SequenceTable(
        limits.num_seats,
        max_length,
        drafter.width,
        runner.model.device,
        kv.states,
        kv.windows,
    )
    return Launcher(
        runner,
        table,
        drafter,
        vocab_size,
        mask_seconds=mask_seconds,
        verify=verify,
        graphs=_open_graphs(limits, runner),
    )


def _open_graphs(limits: StepLimits, runner: ModelRunner) -> StepGraphs | None:
    """Return the graphs of an engine's steps: CUDA graphs, or recordings on a CPU, where each step has
    to land before the next one is launched; None if steps run without."""
    device, prompt_rows = runner.model.device, 0
    if runner.captures_prompts:
        prompt_rows = min(MOST_ROWS_WITH_PROMPTS, limits.max_rows)
    captures = CaptureLimits(limits.max_captured_seqs, prompt_rows)
    if not limits.max_captured_seqs:
        return None
    if usable(device):
        return StepGraphs(device, captures, captured_at=CAPTURED_AT, announcer=runner.leader)
    if device.type == "cpu" and limits.num_flights == 0 and runner.leader is None:
        return Recordings(device, captures)
    return None
