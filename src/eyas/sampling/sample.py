"""From raw logits to the chosen token: `process` and `choose`, or kernels that do both in place.

Promises: on a device with kernels the logits are read where they lie, and what runs depends on the
parameters' signature alone; nothing waits for the device, unless there are a bias, penalties or
`min_tokens`.
Elsewhere it is `choose(process(...))`.
Does not know: trees.

Legend: R rows, V vocabulary, K mask words.
"""

from __future__ import annotations

import torch

from eyas.kernels import usable
from eyas.sampling.choose import choose
from eyas.sampling.params import BatchParams
from eyas.sampling.process import SamplingRows, before_temperature, process


def sample(
    logits_RV: torch.Tensor, rows: SamplingRows, params: BatchParams, mask_RK: torch.Tensor | None
) -> torch.Tensor:
    """[R] int64 token ids, -1 for a row that cannot choose. `logits_RV` (float32) is left alone."""
    if not usable(logits_RV.device):
        return choose(process(logits_RV, rows, params, mask_RK), rows, params)
    from eyas.kernels import choose as chooser

    if params.is_changed_before_temperature:
        logits_RV = before_temperature(logits_RV, rows, params, mask_RK)
        mask_RK = None
    floor_R = None
    if any(params.filtered):
        from eyas.kernels.filters import floors

        floor_R = floors(
            logits_RV,
            rows.sequence_R,
            params.temperature_B,
            params.top_k_B,
            params.top_p_B,
            params.min_p_B,
            mask_RK,
            any_top_k=params.max_top_k > 0,
            any_top_p=params.any_top_p,
        )
    return chooser.choose(
        logits_RV,
        rows.sequence_R,
        rows.position_R,
        params.temperature_B,
        params.seed_B,
        params.choice_B,
        mask_RK,
        floor_R,
        any_noise=any(params.noisy),
    )
