"""The choice of the compressed entries that a row attends to: scores of all its entries, and the best.

Promises: a score's bits depend on the row and the entry alone: products have one shape, sums one order.
Of equal scores the lowest index is chosen; indices ascend. A row with no more entries than may be
chosen is left alone: it attends to all of them. Launch sizes depend on shapes and on the host's upper
bound of positions, so launches can be captured.
Does not know: what entries are made of, who attends to them.

Legend: T rows, J index heads, I width of index keys, E entries of a row, K entries that are chosen, S
slots, D numbers of a slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options
from eyas.kernels.places import slots_at
from eyas.kernels.softmax import PRECISION, UNFUSED

BLOCK_ENTRIES = 64
BLOCK_SCORES = 1024
DIGIT = 4
"""Bits of a score that one pass decides."""


@triton.jit(do_not_specialize=["num_entries"])
def score_entries_kernel(
    queries_TJI, weights_TJ, places_4T, slots_AC, paths_BWP, slots_SD, scores_TE,
    num_entries, places_stride, query_stride, head_stride, weight_stride, slot_stride,
    dot_scale, weight_scale,
    KEY: tl.constexpr, RATE: tl.constexpr, NUM_CHOSEN: tl.constexpr, NUM_HEADS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK_E entries."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK_E
    number = (tl.load(places_4T + row) + 1) // RATE
    if (number > NUM_CHOSEN) & (first < number):
        root = tl.load(places_4T + places_stride + row)
        table = tl.load(places_4T + 2 * places_stride + row)
        path = tl.load(places_4T + 3 * places_stride + row)
        entry_E = first + tl.arange(0, BLOCK_E)
        is_there = entry_E < number
        last_E = (entry_E.to(tl.int64) + 1) * RATE - 1
        slot_E = slots_at(last_E, is_there, root, table, path, slots_AC, paths_BWP, None)
        inner_I = tl.arange(0, BLOCK_I)
        head_J = tl.arange(0, BLOCK_J)
        is_inner, is_head = inner_I < WIDTH, head_J < NUM_HEADS
        key_EI = slots_SD + slot_E[:, None] * slot_stride + KEY + inner_I[None, :]
        key_EI = tl.load(key_EI, mask=is_there[:, None] & is_inner[None, :], other=0.0)
        query_IJ = queries_TJI + row * query_stride + head_J[None, :] * head_stride
        query_IJ = tl.load(
            query_IJ + inner_I[:, None], mask=is_inner[:, None] & is_head[None, :], other=0.0
        )
        weight_J = tl.load(weights_TJ + row * weight_stride + head_J, mask=is_head, other=0.0)
        dot_EJ = tl.dot(key_EI, query_IJ.to(key_EI.dtype), input_precision=PRECISION)
        dot_EJ = tl.maximum(dot_EJ, 0.0) * dot_scale
        score_E = tl.sum(dot_EJ * (weight_J.to(tl.float32) * weight_scale)[None, :], 1)
        tl.store(scores_TE + row * num_entries + entry_E, score_E, mask=is_there)


@triton.jit
def _keys(scores, entry_E, number):
    """Whole numbers of 32 bits that are ordered as the scores are, in 64; -1 beyond the entries."""
    is_there = entry_E < number
    score_E = tl.load(scores + entry_E, mask=is_there, other=0.0)
    score_E = tl.where(score_E == score_E, score_E, float("-inf")) + 0.0
    bits_E = score_E.to(tl.int32, bitcast=True)
    ordered_E = tl.where(bits_E < 0, bits_E ^ 0x7FFFFFFF, bits_E).to(tl.int64) + 0x80000000
    return tl.where(is_there, ordered_E, -1)


@triton.jit(do_not_specialize=["num_entries"])
def choose_entries_kernel(
    scores_TE, places_4T, chosen_TK, num_entries,
    RATE: tl.constexpr, NUM_CHOSEN: tl.constexpr, DIGIT: tl.constexpr, BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a row: the lowest chosen score, digit by digit, then the entries in order."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    number = (tl.load(places_4T + row) + 1) // RATE
    if number > NUM_CHOSEN:
        scores = scores_TE + row * num_entries
        DIGITS: tl.constexpr = 1 << DIGIT
        digit_V = tl.arange(0, DIGITS)
        lowest = row * 0
        wanted = row * 0 + NUM_CHOSEN
        for decided in range(0, 32, DIGIT):
            shift = 32 - DIGIT - decided
            count_V = tl.zeros((DIGITS,), tl.int64)
            for first in range(0, number, BLOCK_E):
                key_E = _keys(scores, first + tl.arange(0, BLOCK_E), number)
                is_alike = (key_E >= 0) & ((key_E >> (shift + DIGIT)) == lowest)
                own_E = tl.where(is_alike, (key_E >> shift) & (DIGITS - 1), -1)
                is_own_EV = own_E[:, None] == digit_V[None, :]
                count_V += tl.sum(is_own_EV.to(tl.int32), 0).to(tl.int64)
            is_above_VV = digit_V[None, :] >= digit_V[:, None]
            from_V = tl.sum(tl.where(is_above_VV, count_V[None, :], 0), 1)
            digit = tl.max(tl.where(from_V >= wanted, digit_V, 0), 0)
            wanted -= tl.sum(tl.where(digit_V > digit, count_V, 0), 0)
            lowest = lowest * DIGITS + digit
        num_stored = row * 0
        num_equal = row * 0
        for first in range(0, number, BLOCK_E):
            entry_E = first + tl.arange(0, BLOCK_E)
            key_E = _keys(scores, entry_E, number)
            equal_E = (key_E == lowest).to(tl.int64)
            equal_before_E = num_equal + tl.cumsum(equal_E, 0) - equal_E
            is_chosen = (key_E > lowest) | ((equal_E > 0) & (equal_before_E < wanted))
            one_E = is_chosen.to(tl.int64)
            place_E = num_stored + tl.cumsum(one_E, 0) - one_E
            tl.store(chosen_TK + row * NUM_CHOSEN + place_E, entry_E.to(tl.int32), mask=is_chosen)
            num_stored += tl.sum(one_E, 0)
            num_equal += tl.sum(equal_E, 0)


def choose_entries(
    queries_TJI: torch.Tensor,
    weights_TJ: torch.Tensor,
    places_4T: torch.Tensor,
    slots_AC: torch.Tensor,
    paths_BWP: torch.Tensor,
    slots_SD: torch.Tensor,
    scores_TE: torch.Tensor,
    chosen_TK: torch.Tensor,
    *,
    key: int,
    rate: int,
    pdl: bool = False,
) -> None:
    """Write the indices of the chosen entries of each row that has more than K, ascending.

    places_4T: from `kernels.places.node_places`. key: where the key of the indexer begins in the slot
    of a group's last position. scores_TE: scratch, float32, for all entries that a row may have.
    Reference: `ops.compress.chosen_entries`.
    """
    num_rows, num_heads, width = queries_TJI.shape
    num_entries, num_chosen = scores_TE.shape[1], chosen_TK.shape[1]
    assert queries_TJI.stride(2) == 1 and weights_TJ.stride(1) == 1 and slots_AC.stride(1) == 1
    assert scores_TE.is_contiguous() and chosen_TK.is_contiguous()
    if not num_rows or num_entries <= num_chosen:
        return
    grid = (num_rows, -(-num_entries // BLOCK_ENTRIES))
    score_entries_kernel[grid](
        queries_TJI, weights_TJ, places_4T, slots_AC, paths_BWP, slots_SD, scores_TE,
        num_entries, places_4T.stride(0), queries_TJI.stride(0), queries_TJI.stride(1),
        weights_TJ.stride(0), slots_SD.stride(0), width**-0.5, num_heads**-0.5,
        KEY=key, RATE=rate, NUM_CHOSEN=num_chosen, NUM_HEADS=num_heads, WIDTH=width,
        BLOCK_J=max(16, triton.next_power_of_2(num_heads)),
        BLOCK_I=max(16, triton.next_power_of_2(width)), BLOCK_E=BLOCK_ENTRIES,
        num_warps=4, PDL=pdl, **UNFUSED, **launch_options(pdl),
    )  # fmt: skip
    choose_entries_kernel[(num_rows,)](
        scores_TE, places_4T, chosen_TK, num_entries,
        RATE=rate, NUM_CHOSEN=num_chosen, DIGIT=DIGIT, BLOCK_E=BLOCK_SCORES,
        num_warps=8, PDL=pdl, **launch_options(pdl),
    )  # fmt: skip
