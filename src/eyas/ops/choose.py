"""Choose a token for each row: the argmax of masked, scaled and filtered logits plus keyed noise.

Promises: noise is added only where the temperature is above 0. The lowest id wins a tie. A row that
cannot choose (nothing is legal, or a logit is not a number) gives -1 and changes no other row. By
the Gumbel-max trick the choice is an exact sample of the softmax of the processed logits.
Does not know: penalties, trees.

Legend: R rows, V vocabulary, B sequences, K mask words.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation
from eyas.ops.noise import GUMBEL_SPAN, gumbel, gumbel_at
from eyas.ops.scale_and_filter import NEVER, Filters, floors_of, scale_and_filter

_FEW = 8
"""Noise is drawn for candidates alone where they are fewer than one in this many tokens."""


@Operation
def choose(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    position_R: torch.Tensor,
    temperature_B: torch.Tensor,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    mask_RK: torch.Tensor | None,
    filters: Filters | None,
    noisy: Sequence[bool],
) -> torch.Tensor:
    """Return [R] int64 token ids, -1 for a row that cannot choose.

    logits_RV: float32, rows without gaps; it is not changed. sequence_R, position_R: the sequence
    of each row, and the position that its noise is keyed with. mask_RK: int32, id i at bit i % 32
    of word i // 32; None allows all. filters: None where no sequence has one. noisy: of each
    sequence whether its temperature is above 0, as the host knows it. The kernel's noise differs
    from torch's by a few units in the last place.
    """
    x_RV = logits_RV
    if mask_RK is not None:
        x_RV = x_RV.masked_fill(~unpack_mask(mask_RK, x_RV.shape[1]), NEVER)
    if any(noisy):
        x_RV = scale_and_filter.by_torch(x_RV, sequence_R, temperature_B, filters)
    return choose_processed(x_RV, sequence_R, position_R, temperature_B, seed_B, choice_B, noisy)


@choose.kernel
def _by_kernel(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    position_R: torch.Tensor,
    temperature_B: torch.Tensor,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    mask_RK: torch.Tensor | None,
    filters: Filters | None,
    noisy: Sequence[bool],
) -> torch.Tensor:
    from eyas.kernels.choose import choose as launch

    floor_R = None
    if filters is not None:
        floor_R = floors_of(logits_RV, sequence_R, temperature_B, filters, mask_RK)
    return launch(
        logits_RV,
        sequence_R,
        position_R,
        temperature_B,
        seed_B,
        choice_B,
        mask_RK,
        floor_R,
        any_noise=any(noisy),
    )


def unpack_mask(mask_RK: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return mask words as bool [R, V]; ids past the mask are not allowed."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask_RK.device)
    bits = (mask_RK.unsqueeze(-1) >> shifts) & 1
    flat = bits.view(mask_RK.shape[0], -1)[:, :vocab_size].bool()
    return torch.nn.functional.pad(flat, (0, vocab_size - flat.shape[1]))


@Operation
def choose_processed(
    x_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    position_R: torch.Tensor,
    temperature_B: torch.Tensor,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    noisy: Sequence[bool],
) -> torch.Tensor:
    """Return [R] token ids as `choose` does, of logits that are masked, scaled and filtered
    already."""
    if not any(noisy):
        return _best(x_RV)
    if all(noisy):
        return _best_with_noise(x_RV, seed_B[sequence_R], position_R, choice_B[sequence_R])
    chosen_R = _best(x_RV)
    picked = (temperature_B > 0)[sequence_R].nonzero().squeeze(1)
    of_picked = sequence_R[picked]
    chosen_R[picked] = _best_with_noise(
        x_RV[picked], seed_B[of_picked], position_R[picked], choice_B[of_picked]
    )
    return chosen_R


@choose_processed.native
def _by_native(
    x_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    position_R: torch.Tensor,
    temperature_B: torch.Tensor,
    seed_B: torch.Tensor,
    choice_B: torch.Tensor,
    noisy: Sequence[bool],
) -> torch.Tensor:
    steps = compiled_steps(x_RV.device)
    if steps is None:
        return NotImplemented
    if not any(noisy):
        return steps.best(x_RV)
    keys = (seed_B[sequence_R], position_R.contiguous(), choice_B[sequence_R])
    return steps.best_with_noise(x_RV, keys, temperature_B[sequence_R], GUMBEL_SPAN)


def _best(x_RV: torch.Tensor) -> torch.Tensor:
    best_R1 = x_RV.argmax(dim=1, keepdim=True)
    value_R1 = x_RV.gather(1, best_R1)
    return torch.where(value_R1.isfinite(), best_R1, -1).squeeze(1)


def _best_with_noise(
    x_RV: torch.Tensor, seed_R: torch.Tensor, position_R: torch.Tensor, choice_R: torch.Tensor
) -> torch.Tensor:
    """Return the argmax of logits plus noise.

    On a CPU the tokens that can win at all are counted. Where they are few, only their noise is
    drawn: the same numbers, so the same choice. Where each row has but one such token, no noise is
    drawn.
    """
    vocab_size = x_RV.shape[1]
    if x_RV.device.type == "cpu":
        floor_R1 = x_RV.amax(dim=1, keepdim=True) - GUMBEL_SPAN
        most = max(1, int((x_RV >= floor_R1).sum(dim=1).amax()))
        if most == 1:
            return _best(x_RV)
        if most * _FEW <= vocab_size:
            values_RK, ids_RK = x_RV.topk(most, dim=1)
            noisy_RK = values_RK + gumbel_at(seed_R, position_R, choice_R, ids_RK)
            best_R1 = noisy_RK.amax(dim=1, keepdim=True)
            winners_RK = torch.where(noisy_RK == best_R1, ids_RK, vocab_size)
            return torch.where(best_R1.squeeze(1).isfinite(), winners_RK.amin(dim=1), -1)
    return _best(x_RV + gumbel(seed_R, position_R, choice_R, vocab_size))
