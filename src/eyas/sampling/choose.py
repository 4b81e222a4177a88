"""The choice: token = argmax(processed logits + noise), noise only where the temperature is above 0.

Promises: lowest id wins a tie; a row that cannot choose (nothing legal, or not a number) gives -1 and
harms no other row. By the Gumbel-max trick the choice is an exact sample of softmax(processed).
Does not know: trees; drafters call it with their own logits to see the target's noise.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import torch

from eyas.sampling.noise import GUMBEL_SPAN, gumbel, gumbel_at
from eyas.sampling.params import BatchParams
from eyas.sampling.process import SamplingRows

_FEW = 8
"""Noise is drawn for candidates alone where they are fewer than one in this many tokens."""


def choose(processed_RV: torch.Tensor, rows: SamplingRows, params: BatchParams) -> torch.Tensor:
    """[R] int64 token ids, -1 for a row that cannot choose."""
    if not any(params.noisy):
        return _best(processed_RV)
    if all(params.noisy):
        return _best_with_noise(processed_RV, rows.sequence_R, rows.position_R, params)
    chosen_R = _best(processed_RV)
    picked = (params.temperature_B > 0)[rows.sequence_R].nonzero().squeeze(1)
    chosen_R[picked] = _best_with_noise(
        processed_RV[picked], rows.sequence_R[picked], rows.position_R[picked], params
    )
    return chosen_R


def _best(x_RV: torch.Tensor) -> torch.Tensor:
    best_R1 = x_RV.argmax(dim=1, keepdim=True)
    value_R1 = x_RV.gather(1, best_R1)
    return torch.where(value_R1.isfinite(), best_R1, -1).squeeze(1)


def _best_with_noise(
    x_RV: torch.Tensor, sequence_R: torch.Tensor, position_R: torch.Tensor, params: BatchParams
) -> torch.Tensor:
    """The best of logits plus noise. Where the host can count the tokens that can win at all, and
    they are few, only their noise is drawn: the same numbers, so the same choice. Where each row has
    but one such token, no noise matters."""
    keys = (params.seed_B[sequence_R], position_R, params.choice_B[sequence_R])
    vocab_size = x_RV.shape[1]
    if x_RV.device.type == "cpu":
        floor_R1 = x_RV.amax(dim=1, keepdim=True) - GUMBEL_SPAN
        most = max(1, int((x_RV >= floor_R1).sum(dim=1).amax()))
        if most == 1:
            return _best(x_RV)
        if most * _FEW <= vocab_size:
            values_RK, ids_RK = x_RV.topk(most, dim=1)
            noisy_RK = values_RK + gumbel_at(*keys, ids_RK)
            best_R1 = noisy_RK.amax(dim=1, keepdim=True)
            winners_RK = torch.where(noisy_RK == best_R1, ids_RK, vocab_size)
            return torch.where(best_R1.squeeze(1).isfinite(), winners_RK.amin(dim=1), -1)
    return _best(x_RV + gumbel(*keys, vocab_size))
