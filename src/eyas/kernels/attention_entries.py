"""Attention of rows to a window of keys, which are values too, and to listed entries before it.

All query heads read the same keys. The columns of a row are its window, then its entries in ascending
order; they are cut into splits of SPLIT columns, whose partial softmaxes are merged in order.

Promises: a row's bits depend on its own prefix alone: which column a key has follows from the row's
position, and tiles have one height. Whether one program has all splits of a row or each has its own
changes no bit. Launch sizes depend on shapes and on the host's upper bound of positions.
Does not know: layouts, how entries were made or chosen.

Legend: T rows, N query heads, H head dim, M heads of a tile, L columns, S slots, D numbers of a slot, K
entries that are chosen, Z splits of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options
from eyas.kernels.partials import keep, merge_kept
from eyas.kernels.places import slots_at
from eyas.kernels.softmax import (
    LOG2_E,
    PRECISION,
    SHARED_ROW_LINES,
    SPLIT,
    UNFUSED,
    empty,
    finish,
    merge,
)

MANY_PROGRAMS = 1024
"""From this many rows and tiles on, a program has all splits of a row."""

STAGES = 2
"""Blocks of keys that are loaded at a time."""


@dataclass(frozen=True, slots=True)
class EntryShape:
    """What attention of one kind of layer is compiled for.

    window: columns of keys. rate: positions of an entry; 0 without entries. num_chosen: entries that
    are listed; 0 where a row sees all. entry: where an entry begins in its slot. first_position: first
    position that has a key; a row sees its own in any case.
    """

    num_heads: int
    head_dim: int
    window: int
    rate: int
    num_chosen: int
    entry: int
    scale: float
    first_position: int = 0

    def num_splits(self, limit: int) -> int:
        """Return the most splits of a row at a position of at most `limit`."""
        splits = -(-self.window // SPLIT)
        if self.rate:
            most = (limit + 1) // self.rate
            most = min(most, self.num_chosen) if self.num_chosen else most
            splits += -(-most // SPLIT)
        return splits


@triton.jit
def _attend_split(
    q_MH, split, position, number, root, table, path, own_entries, slots_AC, paths_BWP,
    window_slots, slots_SD, slot_stride, scale,
    WINDOW: tl.constexpr, FIRST: tl.constexpr, RATE: tl.constexpr, ENTRY: tl.constexpr,
    NUM_CHOSEN: tl.constexpr, WINDOW_SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    HEAD_DIM: tl.constexpr, INNER: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The partial softmax of a tile of heads over a split, up to its last column."""
    top_M, sum_M, value_MH = empty(HEADS, INNER)
    inner_1H = tl.arange(0, INNER)[None, :]
    last = WINDOW - split * SPLIT
    if RATE > 0:
        last = tl.where(split < WINDOW_SPLITS, last, number - (split - WINDOW_SPLITS) * SPLIT)
    for offset in tl.range(0, tl.minimum(last, SPLIT), KEYS, num_stages=STAGES):
        column_L = split * SPLIT + offset + tl.arange(0, KEYS).to(tl.int64)
        at_L = position - WINDOW + 1 + column_L
        is_there = (column_L < WINDOW) & ((at_L >= FIRST) | ((at_L == position) & (at_L >= 0)))
        offset_L = column_L * 0
        if RATE > 0:
            entry_L = column_L - WINDOW_SPLITS * SPLIT
            is_entry = (entry_L >= 0) & (entry_L < number)
            if NUM_CHOSEN > 0:
                if (position + 1) // RATE > NUM_CHOSEN:
                    entry_L = tl.load(own_entries + entry_L, mask=is_entry, other=0).to(tl.int64)
            at_L = tl.where(is_entry, (entry_L + 1) * RATE - 1, at_L)
            is_there = is_there | is_entry
            offset_L = tl.where(is_entry, ENTRY, 0)
        slot_L = slots_at(at_L, is_there, root, table, path, slots_AC, paths_BWP, window_slots)
        place_LH = slots_SD + (slot_L * slot_stride + offset_L)[:, None] + inner_1H
        key_LH = tl.load(place_LH, mask=is_there[:, None] & (inner_1H < HEAD_DIM), other=0.0)
        score_ML = tl.dot(q_MH, tl.trans(key_LH), input_precision=PRECISION)
        score_ML = tl.where(is_there[None, :], score_ML, float("-inf"))
        own_top_M = tl.max(score_ML, 1) * scale
        finite_top_M = tl.where(own_top_M == float("-inf"), 0.0, own_top_M)
        weight_ML = tl.exp2(tl.fma(score_ML, scale, -finite_top_M[:, None])).to(key_LH.dtype)
        own_sum_M = tl.sum(weight_ML.to(tl.float32), 1)
        own_value_MH = tl.dot(weight_ML, key_LH, input_precision=PRECISION)
        top_M, sum_M, value_MH = merge(top_M, sum_M, value_MH, own_top_M, own_sum_M, own_value_MH)
    return top_M, sum_M, value_MH


@triton.jit
def _num_entries(position, RATE: tl.constexpr, NUM_CHOSEN: tl.constexpr):
    """The entries that a row attends to."""
    number = position * 0
    if RATE > 0:
        number = (position + 1) // RATE
        if NUM_CHOSEN > 0:
            number = tl.minimum(number, NUM_CHOSEN)
    return number


@triton.jit(do_not_specialize=["num_splits"])
def attend_entries_kernel(
    q_TNH, slots_SD, out_TNH, sinks_N, states_TNZ2, values_TNZH, places_4T, chosen_TK, slots_AC,
    paths_BWP, window_slots, q_stride, places_stride, slot_stride, num_splits, scale,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, INNER: tl.constexpr, WINDOW: tl.constexpr,
    FIRST: tl.constexpr, RATE: tl.constexpr, ENTRY: tl.constexpr, NUM_CHOSEN: tl.constexpr,
    WINDOW_SPLITS: tl.constexpr, SPLIT: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, IS_WHOLE: tl.constexpr, HAS_SINKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row, a tile of heads and, unless IS_WHOLE, a split."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    head_M = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = head_M < NUM_HEADS
    inner_1H = tl.arange(0, INNER)[None, :]
    is_wanted = is_head[:, None] & (inner_1H < HEAD_DIM)
    place_MH = (row * NUM_HEADS + head_M)[:, None] * HEAD_DIM + inner_1H
    position = tl.load(places_4T + row)
    root = tl.load(places_4T + places_stride + row)
    table = tl.load(places_4T + 2 * places_stride + row)
    path = tl.load(places_4T + 3 * places_stride + row)
    number = _num_entries(position, RATE, NUM_CHOSEN)
    end = tl.where(position >= 0, WINDOW_SPLITS + tl.cdiv(number, SPLIT), 0)
    own_entries = chosen_TK + row * NUM_CHOSEN
    q_MH = q_TNH + row * q_stride + head_M[:, None] * HEAD_DIM + inner_1H
    q_MH = tl.load(q_MH, mask=is_wanted, other=0.0)
    if IS_WHOLE:
        top_M, sum_M, value_MH = empty(HEADS, INNER)
        for split in range(end):
            own_top_M, own_sum_M, own_value_MH = _attend_split(
                q_MH, split, position, number, root, table, path, own_entries, slots_AC, paths_BWP,
                window_slots, slots_SD, slot_stride, scale, WINDOW, FIRST, RATE, ENTRY, NUM_CHOSEN,
                WINDOW_SPLITS, SPLIT, HEAD_DIM, INNER, HEADS, KEYS, STAGES,
            )  # fmt: skip
            top_M, sum_M, value_MH = merge(
                top_M, sum_M, value_MH, own_top_M, own_sum_M, own_value_MH
            )
        sink_M = tl.zeros((HEADS,), tl.float32)
        if HAS_SINKS:
            sink_M = tl.load(sinks_N + head_M, mask=is_head, other=0.0)
        out_MH = finish(top_M, sum_M, value_MH, sink_M, 1.0, HAS_SINKS)
        tl.store(out_TNH + place_MH, out_MH.to(out_TNH.dtype.element_ty), mask=is_wanted)
    else:
        split = tl.program_id(2)
        if split < end:
            top_M, sum_M, value_MH = _attend_split(
                q_MH, split, position, number, root, table, path, own_entries, slots_AC, paths_BWP,
                window_slots, slots_SD, slot_stride, scale, WINDOW, FIRST, RATE, ENTRY, NUM_CHOSEN,
                WINDOW_SPLITS, SPLIT, HEAD_DIM, INNER, HEADS, KEYS, STAGES,
            )  # fmt: skip
            partial_M = (row * NUM_HEADS + head_M) * num_splits + split
            keep(
                states_TNZ2,
                values_TNZH,
                partial_M,
                top_M,
                sum_M,
                value_MH,
                is_head,
                HEAD_DIM,
                INNER,
            )


@triton.jit(do_not_specialize=["num_splits"])
def merge_entries_kernel(
    out_TNH, sinks_N, states_TNZ2, values_TNZH, places_4T, num_splits,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, INNER: tl.constexpr, RATE: tl.constexpr,
    NUM_CHOSEN: tl.constexpr, WINDOW_SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, HAS_SINKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and HEADS heads: its splits in order; zeros for a row without a position."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    head_M = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = head_M < NUM_HEADS
    inner_1H = tl.arange(0, INNER)[None, :]
    position = tl.load(places_4T + row)
    number = _num_entries(position, RATE, NUM_CHOSEN)
    end = tl.where(position >= 0, WINDOW_SPLITS + tl.cdiv(number, SPLIT), 0)
    top_M, sum_M, value_MH = empty(HEADS, INNER)
    for split in range(end):
        partial_M = (row * NUM_HEADS + head_M) * num_splits + split
        top_M, sum_M, value_MH = merge_kept(
            top_M, sum_M, value_MH, states_TNZ2, values_TNZH, partial_M, is_head, HEAD_DIM, INNER
        )
    sink_M = tl.zeros((HEADS,), tl.float32)
    if HAS_SINKS:
        sink_M = tl.load(sinks_N + head_M, mask=is_head, other=0.0)
    out_MH = finish(top_M, sum_M, value_MH, sink_M, 1.0, HAS_SINKS)
    place_MH = (row * NUM_HEADS + head_M)[:, None] * HEAD_DIM + inner_1H
    is_wanted = is_head[:, None] & (inner_1H < HEAD_DIM)
    tl.store(out_TNH + place_MH, out_MH.to(out_TNH.dtype.element_ty), mask=is_wanted)


def attend_entries(
    q_TNH: torch.Tensor,
    slots_SD: torch.Tensor,
    places_4T: torch.Tensor,
    slots_AC: torch.Tensor,
    paths_BWP: torch.Tensor,
    shape: EntryShape,
    limit: int,
    *,
    chosen_TK: torch.Tensor | None = None,
    sinks_N: torch.Tensor | None = None,
    window_slots_S: torch.Tensor | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """Return the outputs [T, N, H]; zeros for rows without a position.

    places_4T: from `kernels.places.node_places`. limit: upper bound of positions. chosen_TK: from
    `kernels.indexer.choose_entries`. window_slots_S: the place in `slots_SD` of each slot; None if it
    is the slot. Reference: `attention.compressed.CompressedPlan`.
    """
    num_rows, num_heads, head_dim = q_TNH.shape
    assert (num_heads, head_dim) == (shape.num_heads, shape.head_dim)
    assert slots_SD.stride(1) == 1 and slots_AC.stride(1) == 1
    assert q_TNH.stride(2) == 1 and q_TNH.stride(1) == head_dim
    out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
    if not num_rows:
        return out_TNH
    inner = max(16, triton.next_power_of_2(head_dim))
    num_tiles = -(-num_heads // SHARED_ROW_LINES)
    num_splits = shape.num_splits(limit)
    is_whole = num_splits == 1 or num_rows * num_tiles >= MANY_PROGRAMS
    keys = min(64, max(16, 32768 // (inner * q_TNH.element_size())))
    num_partials = 0 if is_whole else num_rows * num_heads * num_splits
    states = q_TNH.new_empty(num_partials * 2, dtype=torch.float32)
    values = q_TNH.new_empty(num_partials * head_dim, dtype=torch.float32)
    if chosen_TK is None:
        chosen_TK = places_4T.new_empty((1, 1), dtype=torch.int32)  # nobody reads it
    sinks_or_none = states if sinks_N is None else sinks_N
    grid = (num_rows, num_tiles, 1 if is_whole else num_splits)
    attend_entries_kernel[grid](
        q_TNH, slots_SD, out_TNH, sinks_or_none, states, values, places_4T, chosen_TK, slots_AC,
        paths_BWP, window_slots_S, q_TNH.stride(0), places_4T.stride(0), slots_SD.stride(0), num_splits,
        shape.scale * LOG2_E.value,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim, INNER=inner, WINDOW=shape.window,
        FIRST=shape.first_position, RATE=shape.rate, ENTRY=shape.entry,
        NUM_CHOSEN=shape.num_chosen, WINDOW_SPLITS=-(-shape.window // SPLIT),
        SPLIT=SPLIT, HEADS=SHARED_ROW_LINES, KEYS=keys, STAGES=STAGES,
        IS_WHOLE=is_whole,
        HAS_SINKS=sinks_N is not None, num_warps=4 if inner <= 128 else 8, num_stages=1, PDL=pdl,
        **UNFUSED, **launch_options(pdl),
    )  # fmt: skip
    if is_whole:
        return out_TNH
    heads = max(1, min(triton.next_power_of_2(num_heads), 2048 // inner))
    merge_entries_kernel[(num_rows, -(-num_heads // heads))](
        out_TNH, sinks_or_none, states, values, places_4T, num_splits,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim, INNER=inner, RATE=shape.rate,
        NUM_CHOSEN=shape.num_chosen, WINDOW_SPLITS=-(-shape.window // SPLIT), SPLIT=SPLIT,
        HEADS=heads, HAS_SINKS=sinks_N is not None, num_warps=4, PDL=pdl, **UNFUSED,
        **launch_options(pdl),
    )  # fmt: skip
    return out_TNH
