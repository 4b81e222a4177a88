"""Open the launcher of an engine's steps, by the settings.

Does not know: how steps run.
"""

from __future__ import annotations

from eyas.config import EngineConfig
from eyas.draft import Drafter
from eyas.engine.launch import Launcher
from eyas.engine.verifier import Verify
from eyas.runner.runner import ModelRunner
from eyas.runner.step_inputs import MOST_ROWS_WITH_PROMPTS
from eyas.runner.table import SequenceTable


def open_launcher(
    config: EngineConfig,
    runner: ModelRunner,
    drafter: Drafter,
    max_length: int,
    vocab_size: int,
    *,
    verify: Verify,
) -> Launcher:
    """Return a launcher with a sequence table of its own. max_length: of a sequence."""
    scheduling, kv = config.scheduler, runner.backend.kv
    table = SequenceTable(
        scheduling.num_seats,
        max_length,
        drafter.width,
        runner.model.device,
        kv.states,
        kv.windows,
    )
    most_prompt_rows = 0
    if runner.captures_prompts:
        on_gpu = table.device.type == "cuda"
        most_prompt_rows = min(MOST_ROWS_WITH_PROMPTS, scheduling.rows(on_gpu=on_gpu))
    lands_at_once = scheduling.flights in ("auto", 0)
    return Launcher(
        runner,
        table,
        drafter,
        vocab_size,
        mask_seconds=config.grammar.mask_seconds,
        verify=verify,
        max_graph_batch=scheduling.max_graph_batch,
        most_prompt_rows=most_prompt_rows,
        records=table.device.type == "cpu" and lands_at_once and runner.leader is None,
    )
