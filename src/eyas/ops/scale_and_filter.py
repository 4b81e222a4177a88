"""Divide logits by the temperature and apply top-k, top-p and min-p.

Promises: top-k, top-p and min-p act in this order, each on what the filter before it left; tokens
that tie at a top-k or top-p threshold are all kept. A row's result depends on that row and its
sequence's parameters.
Does not know: penalties, masks, noise.

Legend: R rows, V vocabulary, B sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.ops.dispatch import Operation

NEVER = float("-inf")
"""The logit of a token that must not be chosen."""
_PREFIX = 256


class Filters(NamedTuple):
    """The filters of B sequences, and what the host knows of them.

    top_k_B: 0 is off; top_p_B: 1 is off; min_p_B: 0 is off. max_top_k: a bound of top-k, 0 where
    none is set. any_top_p, any_min_p: whether any sequence sets one. all_act: whether each sequence
    has a filter.
    """

    top_k_B: torch.Tensor
    top_p_B: torch.Tensor
    min_p_B: torch.Tensor
    max_top_k: int
    any_top_p: bool
    any_min_p: bool
    all_act: bool


@Operation
def scale_and_filter(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    temperature_B: torch.Tensor,
    filters: Filters | None,
) -> torch.Tensor:
    """Return float32 [R, V]: logits over the temperature, -inf for tokens that a filter removes.

    sequence_R: the sequence of each row. A temperature of 0 leaves the row as it is. filters: None
    where no sequence has one. `logits_RV` is not changed. The kernel treats tokens whose logits
    differ by less than 2^-18 as ties.
    """
    x_RV = _scaled(logits_RV, sequence_R, temperature_B)
    if filters is None:
        return x_RV
    picked = _filtered_rows(sequence_R, temperature_B, filters)
    sequence_R = sequence_R[picked]
    logits = x_RV[picked]
    if filters.max_top_k > 0:
        top_k_R1 = filters.top_k_B[sequence_R].unsqueeze(1)
        best = logits.topk(filters.max_top_k, dim=1).values
        threshold = best.gather(1, (top_k_R1 - 1).clamp(min=0))
        logits = logits.masked_fill((logits < threshold) & (top_k_R1 > 0), NEVER)
    if filters.any_top_p:
        top_p_R1 = filters.top_p_B[sequence_R].unsqueeze(1)
        outside = _outside_nucleus(logits, top_p_R1)
        logits = logits.masked_fill(outside & (top_p_R1 < 1), NEVER)
    if filters.any_min_p:
        min_p_R1 = filters.min_p_B[sequence_R].unsqueeze(1)
        threshold = logits.amax(dim=1, keepdim=True) + min_p_R1.log()
        logits = logits.masked_fill((logits < threshold) & (min_p_R1 > 0), NEVER)
    x_RV[picked] = logits
    return x_RV


@scale_and_filter.kernel
def _by_kernel(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    temperature_B: torch.Tensor,
    filters: Filters | None,
) -> torch.Tensor:
    x_RV = _scaled(logits_RV, sequence_R, temperature_B)
    if filters is None:
        return x_RV
    is_warm_B = (temperature_B > 0).to(torch.float32)  # x_RV is divided by the temperature already
    floor_R = floors_of(x_RV, sequence_R, is_warm_B, filters)
    return x_RV.masked_fill_(x_RV < floor_R.unsqueeze(1), NEVER)


def floors_of(
    logits_RV: torch.Tensor,
    sequence_R: torch.Tensor,
    temperature_B: torch.Tensor,
    filters: Filters,
    mask_RK: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return float32 [R]: the least logit over the temperature that a row's filters keep, by
    kernels."""
    from eyas.kernels.scale_and_filter import floors

    return floors(
        logits_RV,
        sequence_R,
        temperature_B,
        filters.top_k_B,
        filters.top_p_B,
        filters.min_p_B,
        mask_RK,
        any_top_k=filters.max_top_k > 0,
        any_top_p=filters.any_top_p,
    )


def _scaled(
    logits_RV: torch.Tensor, sequence_R: torch.Tensor, temperature_B: torch.Tensor
) -> torch.Tensor:
    temperature_R1 = temperature_B[sequence_R].unsqueeze(1)
    return logits_RV / torch.where(temperature_R1 > 0, temperature_R1, 1.0)


def _filtered_rows(
    sequence_R: torch.Tensor, temperature_B: torch.Tensor, filters: Filters
) -> torch.Tensor | slice:
    """The rows on which a filter acts."""
    if filters.all_act:
        return slice(None)
    acts_B = (filters.top_k_B > 0) | (filters.top_p_B < 1) | (filters.min_p_B > 0)
    return (acts_B & (temperature_B > 0))[sequence_R].nonzero().squeeze(1)


def _outside_nucleus(logits: torch.Tensor, top_p_R1: torch.Tensor) -> torch.Tensor:
    """bool [R, V]: not in the smallest set of likeliest tokens whose probabilities reach top_p.

    Probabilities are summed from the largest down, so the sums of a prefix of the order equal those
    of the whole order. On a CPU the whole row is sorted only where a prefix does not reach top_p.
    """
    probability = logits.softmax(dim=1)
    on_cpu = logits.device.type == "cpu"
    ordered = probability.topk(min(_PREFIX if on_cpu else logits.shape[1], logits.shape[1])).values
    mass = ordered.cumsum(dim=1)
    if on_cpu and bool(((mass[:, -1:] < top_p_R1) & (top_p_R1 < 1)).any()):
        ordered = probability.sort(dim=1, descending=True).values
        mass = ordered.cumsum(dim=1)
    last = (mass < top_p_R1).sum(dim=1, keepdim=True).clamp(max=ordered.shape[1] - 1)
    return probability < ordered.gather(1, last)
