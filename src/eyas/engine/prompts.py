"""Log-probabilities of prompts, chunk by chunk.

Promises: they are computed from raw logits, for each prompt token after the first.
Does not know: how they are returned to a client.
"""

from __future__ import annotations

from eyas.engine.flight import PromptRows
from eyas.engine.scheduler import StepPlan
from eyas.engine.verifier import raw_logprobs
from eyas.runner.rows import PackedRows
from eyas.runner.runner import Output
from eyas.runner.table import SequenceTable


def score_prompts(
    plan: StepPlan, rows: PackedRows, output: Output, table: SequenceTable
) -> dict[int, PromptRows]:
    """Return the log-probabilities of the prompt chunks that need them, by index of the span."""
    scored: dict[int, PromptRows] = {}
    row = rows.num_node_rows
    for span, count in rows.context_runs:
        assert output.logits_RV is not None
        i = plan.spans.index(span)
        num_top = plan.sequences[i].request.params.prompt_logprobs or 0
        first = span.context_start + 1
        token_ids = table.tokens_AC[span.seat, first : first + count].clone()
        logits_RV = output.logits_RV[row : row + count]
        scored[i] = PromptRows(token_ids, *raw_logprobs(logits_RV, token_ids, num_top))
        row += count
    return scored
