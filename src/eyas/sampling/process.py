"""Process logits row by row: bias, penalties, mask, temperature, top-k, top-p, min-p.

Promises: they act in this order. A row's result depends only on its logits, its sequence's
parameters and the tokens before it (the ancestors of its node included). Tokens that tie at a top-k
or top-p threshold are all kept. On a device with kernels nothing waits for the device, unless there
are a bias, penalties or `min_tokens`.
Does not know: the drafter, the verdict.

Legend: R rows, V vocabulary, B sequences, W nodes, L positions, K mask words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.ops.choose import unpack_mask
from eyas.ops.scale_and_filter import NEVER, scale_and_filter
from eyas.sampling.params import BatchParams


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sequence, position and ancestors of each logits row.

    sequence_R: index into the batch's parameters; position_R: of the row's own token. tokens_RD,
    is_ancestor_RD: D draft tokens, and which of them are on the path from below the root to the
    row's node; None if there are none. history_BL, length_B: committed tokens of each sequence and
    their number. Only penalties read ancestors and history.
    """

    sequence_R: torch.Tensor
    position_R: torch.Tensor
    tokens_RD: torch.Tensor | None
    is_ancestor_RD: torch.Tensor | None
    history_BL: torch.Tensor
    length_B: torch.Tensor


def process(
    logits_RV: torch.Tensor, rows: SamplingRows, params: BatchParams, mask_RK: torch.Tensor | None
) -> torch.Tensor:
    """Return float32 [R, V], -inf for tokens that must not be chosen. `logits_RV` is not changed."""
    if params.is_plain and mask_RK is None:
        return logits_RV
    x = before_temperature(logits_RV, rows, params, mask_RK)
    if not any(params.noisy):
        return x
    return scale_and_filter(x, rows.sequence_R, params.temperature_B, params.filters)


def before_temperature(
    logits_RV: torch.Tensor, rows: SamplingRows, params: BatchParams, mask_RK: torch.Tensor | None
) -> torch.Tensor:
    """Return [R, V] with bias, penalties, mask and `min_tokens` applied. `logits_RV` is not changed."""
    x = logits_RV
    if params.is_changed_before_temperature or mask_RK is not None:
        x = x.clone()
    if params.biased:
        _add_bias(x, rows, params)
    if any(params.penalised):
        _penalise(x, rows, params)
    if mask_RK is not None:
        x.masked_fill_(~unpack_mask(mask_RK, x.shape[1]), NEVER)
    if params.barred:
        _bar(x, rows, params, is_masked=mask_RK is not None)
    return x


def _rows_of(rows: SamplingRows, marked_B: torch.Tensor) -> torch.Tensor:
    """Return the rows whose sequence is marked."""
    return marked_B[rows.sequence_R].nonzero().squeeze(1)


def _penalised_rows(rows: SamplingRows, params: BatchParams) -> torch.Tensor | slice:
    if all(params.penalised):
        return slice(None)
    counted_B = (params.frequency_B != 0) | (params.presence_B != 0)
    return _rows_of(rows, counted_B | (params.repetition_B != 1))


def _add_bias(x: torch.Tensor, rows: SamplingRows, params: BatchParams) -> None:
    for b, (ids, values) in params.biased.items():
        picked = (rows.sequence_R == b).nonzero()
        x[picked, ids] += values


def _penalise(x: torch.Tensor, rows: SamplingRows, params: BatchParams) -> None:
    """Repetition counts prompt and output; frequency and presence count the output."""
    picked = _penalised_rows(rows, params)
    sequence_R = rows.sequence_R[picked]
    history_RL = rows.history_BL[sequence_R]
    columns_L = torch.arange(history_RL.shape[1], device=x.device)
    known_RL = columns_L < rows.length_B[sequence_R].unsqueeze(1)
    output_RL = known_RL & (columns_L >= params.num_prompt_B[sequence_R].unsqueeze(1))
    counts_RV = torch.zeros((len(sequence_R), x.shape[1]), dtype=torch.float32, device=x.device)
    counts_RV.scatter_add_(1, history_RL, output_RL.to(torch.float32))
    if rows.tokens_RD is not None and rows.is_ancestor_RD is not None:
        counts_RV.scatter_add_(
            1, rows.tokens_RD[picked], rows.is_ancestor_RD[picked].to(torch.float32)
        )
    seen_RV = counts_RV.clone()
    seen_RV.scatter_add_(1, history_RL, known_RL.to(torch.float32))
    logits = x[picked]
    repetition = params.repetition_B[sequence_R].unsqueeze(1)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen_RV > 0, repeated, logits)
    logits = logits - params.frequency_B[sequence_R].unsqueeze(1) * counts_RV
    logits = logits - params.presence_B[sequence_R].unsqueeze(1) * (counts_RV > 0)
    x[picked] = logits


def _bar(x: torch.Tensor, rows: SamplingRows, params: BatchParams, *, is_masked: bool) -> None:
    """Set the logits of end tokens to -inf before `min_tokens`.

    A row at position p follows p - prompt + 1 output tokens. If the mask allows nothing but end
    tokens, the output is complete and may end.
    """
    for b, (min_tokens, ids) in params.barred.items():
        early = rows.position_R - params.num_prompt_B[b] + 1 < min_tokens
        picked = (early & (rows.sequence_R == b)).nonzero()
        if is_masked:
            others_RV = x[picked.squeeze(1)].index_fill(1, ids, NEVER)
            picked = picked[(others_RV > NEVER).any(dim=1)]
        x[picked, ids] = NEVER
