"""From raw logits to the chosen token.

Promises: on a device with kernels the logits are read where they lie, and which operations run
depends on the parameters' signature alone. Nothing waits for the device, unless there are a bias,
penalties or `min_tokens`.
Does not know: trees.

Legend: R rows, V vocabulary, K mask words.
"""

from __future__ import annotations

import torch

from eyas.ops.choose import choose
from eyas.sampling.params import BatchParams
from eyas.sampling.process import SamplingRows, before_temperature


def sample(
    logits_RV: torch.Tensor, rows: SamplingRows, params: BatchParams, mask_RK: torch.Tensor | None
) -> torch.Tensor:
    """Return [R] int64 token ids, -1 for a row that cannot choose. `logits_RV` (float32) is not
    changed."""
    if params.is_changed_before_temperature:
        logits_RV, mask_RK = before_temperature(logits_RV, rows, params, mask_RK), None
    return choose(
        logits_RV,
        rows.sequence_R,
        rows.position_R,
        params.temperature_B,
        params.seed_B,
        params.choice_B,
        mask_RK,
        params.filters,
        params.noisy,
    )
