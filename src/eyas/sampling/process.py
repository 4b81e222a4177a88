"""Logits to processed logits, row by row: bias, penalties, mask, temperature, top-k, top-p, min-p.

Promises: the order above; a row's result depends on its logits, its sequence's parameters and the
tokens before it (the ancestors of its node included) and on nothing else; ties at a top-k or top-p
threshold are all kept. On a device with kernels nothing waits for it, unless there are a bias,
penalties or `min_tokens`.
Does not know: the drafter, the verdict.

Legend: R rows, V vocabulary, B sequences, W nodes, L positions, K mask words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.kernels import usable
from eyas.sampling.params import BatchParams

NEVER = float("-inf")
_PREFIX = 256


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Which node each logits row belongs to.

    sequence_R: index into the batch's parameters; position_R: of the row's own token.
    tokens_RD, is_ancestor_RD: draft tokens on the way from the root to the row's node, the node's
    own included, the root's not (D candidates, those that count marked); None for width 1.
    history_BL, length_B: committed tokens of each sequence, only read where penalties act.
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
    """[R, V] float32; -inf where a token may not be chosen. `logits_RV` itself is left alone."""
    if params.is_plain and mask_RK is None:
        return logits_RV
    x = before_temperature(logits_RV, rows, params, mask_RK)
    if any(params.noisy):
        temperature_R1 = params.temperature_B[rows.sequence_R].unsqueeze(1)
        x = x / torch.where(temperature_R1 > 0, temperature_R1, 1.0)
        if any(params.filtered):
            _filter(x, rows, params)
    return x


def before_temperature(
    logits_RV: torch.Tensor, rows: SamplingRows, params: BatchParams, mask_RK: torch.Tensor | None
) -> torch.Tensor:
    """[R, V] with bias, penalties, mask, `min_tokens`; `logits_RV` itself is left alone."""
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


def unpack_mask(mask_RK: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Mask words to bool [R, V]; ids past the mask are not allowed."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask_RK.device)
    bits = (mask_RK.unsqueeze(-1) >> shifts) & 1
    flat = bits.view(mask_RK.shape[0], -1)[:, :vocab_size].bool()
    return torch.nn.functional.pad(flat, (0, vocab_size - flat.shape[1]))


def _rows_of(rows: SamplingRows, marked_B: torch.Tensor) -> torch.Tensor:
    """The rows whose sequence is marked."""
    return marked_B[rows.sequence_R].nonzero().squeeze(1)


def _penalised_rows(rows: SamplingRows, params: BatchParams) -> torch.Tensor | slice:
    if all(params.penalised):
        return slice(None)
    counted_B = (params.frequency_B != 0) | (params.presence_B != 0)
    return _rows_of(rows, counted_B | (params.repetition_B != 1))


def _filtered_rows(rows: SamplingRows, params: BatchParams) -> torch.Tensor | slice:
    if all(params.filtered):
        return slice(None)
    acts_B = (params.top_k_B > 0) | (params.top_p_B < 1) | (params.min_p_B > 0)
    return _rows_of(rows, acts_B & (params.temperature_B > 0))


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
    """No end before `min_tokens`: a row at position p follows p - prompt + 1 output tokens. Where the
    mask leaves nothing but the end, the text is whole and may end."""
    for b, (min_tokens, ids) in params.barred.items():
        early = rows.position_R - params.num_prompt_B[b] + 1 < min_tokens
        picked = (early & (rows.sequence_R == b)).nonzero()
        if is_masked:
            others_RV = x[picked.squeeze(1)].index_fill(1, ids, NEVER)
            picked = picked[(others_RV > NEVER).any(dim=1)]
        x[picked, ids] = NEVER


def _filter(x: torch.Tensor, rows: SamplingRows, params: BatchParams) -> None:
    """top-k, top-p, min-p in place, each over what the one before left."""
    if usable(x.device):
        from eyas.kernels.filters import floors

        floor_R = floors(
            x,
            rows.sequence_R,
            (params.temperature_B > 0).to(torch.float32),  # x has been divided by it
            params.top_k_B,
            params.top_p_B,
            params.min_p_B,
            any_top_k=params.max_top_k > 0,
            any_top_p=params.any_top_p,
        )
        x.masked_fill_(x < floor_R.unsqueeze(1), NEVER)
        return
    picked = _filtered_rows(rows, params)
    sequence_R = rows.sequence_R[picked]
    logits = x[picked]
    if params.max_top_k > 0:
        top_k_R1 = params.top_k_B[sequence_R].unsqueeze(1)
        best = logits.topk(params.max_top_k, dim=1).values
        threshold = best.gather(1, (top_k_R1 - 1).clamp(min=0))
        logits = logits.masked_fill((logits < threshold) & (top_k_R1 > 0), NEVER)
    if params.any_top_p:
        top_p_R1 = params.top_p_B[sequence_R].unsqueeze(1)
        outside = _outside_nucleus(logits, top_p_R1)
        logits = logits.masked_fill(outside & (top_p_R1 < 1), NEVER)
    if params.any_min_p:
        min_p_R1 = params.min_p_B[sequence_R].unsqueeze(1)
        threshold = logits.amax(dim=1, keepdim=True) + min_p_R1.log()
        logits = logits.masked_fill((logits < threshold) & (min_p_R1 > 0), NEVER)
    x[picked] = logits


def _outside_nucleus(logits: torch.Tensor, top_p_R1: torch.Tensor) -> torch.Tensor:
    """bool [R, V]: not in the smallest set of likeliest tokens whose probabilities reach top_p.

    Probabilities are summed from the largest down, so a prefix of the order gives the same sums as
    the whole order, and the whole is sorted only where a prefix does not reach.
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
