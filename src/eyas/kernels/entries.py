"""Store the rows of a layer with compressed entries, and make the entries that they complete.

Promises: an entry's bits depend on the numbers stored for its positions alone: one program makes it,
whose sums have one order. What is no finite number reaches no slot.
Does not know: layouts, who attends to the entries.

Legend: T rows, X numbers of a row's inputs, S slots, D numbers of a slot, H width of an entry, C
columns of its inputs (H, or 2 H with overlap), I = H / 2 pairs, L positions that are read at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from eyas.kernels.add_norm import normalized
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.places import slots_at
from eyas.kernels.rotate_and_store import to_stored
from eyas.kernels.rotate_heads import angles_of_pairs, rotated_pairs

BLOCK_INPUTS = 1024
POSITIONS = 8
"""Positions of an entry that are read at once."""


@triton.jit(do_not_specialize=["size"])
def store_rows_kernel(
    inputs_TX, slots_T, slots_SD, size, row_stride, slot_stride,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK numbers."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    column_X = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column_X < size
    x_X = tl.load(inputs_TX + row * row_stride + column_X, mask=is_inside, other=0.0)
    place_X = slots_SD + tl.load(slots_T + row) * slot_stride + column_X
    tl.store(place_X, to_stored(x_X, 1.0, slots_SD, 0.0), mask=is_inside)


def store_rows(
    inputs_TX: torch.Tensor, slots_T: torch.Tensor, slots_SD: torch.Tensor, *, pdl: bool = False
) -> None:
    """Write each row to the first numbers of its slot. Rows that share a slot (the null slot) leave it
    with the numbers of one of them."""
    num_rows, size = inputs_TX.shape
    assert inputs_TX.stride(1) == 1 and slots_SD.stride(1) == 1
    if num_rows:
        store_rows_kernel[(num_rows, -(-size // BLOCK_INPUTS))](
            inputs_TX, slots_T, slots_SD, size, inputs_TX.stride(0), slots_SD.stride(0),
            BLOCK=BLOCK_INPUTS, num_warps=4, PDL=pdl, **launch_options(pdl),
        )  # fmt: skip


@triton.jit
def _gates(
    position, first_X, slots_SD, bias_XC, root, table, path, slots_AC, paths_BWP, slot_stride,
    INPUTS: tl.constexpr, HEAD_DIM: tl.constexpr, RATE: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    """[L, H] gates of an entry's positions in a block, -inf where there is none; where they stand."""
    inner_1H = tl.arange(0, BLOCK_H)[None, :]
    WIDTH: tl.constexpr = HEAD_DIM * (SPAN // RATE)
    at_L = position - SPAN + 1 + first_X
    is_there = (at_L >= 0) & (first_X < SPAN)
    slot_L = slots_at(at_L, is_there, root, table, path, slots_AC, paths_BWP, None)
    series_L = tl.where(first_X < RATE, 0, WIDTH - HEAD_DIM)  # with overlap the latter half is own
    column_LH = series_L[:, None] + inner_1H
    is_inside = is_there[:, None] & (inner_1H < HEAD_DIM)
    place_LH = slots_SD + slot_L[:, None] * slot_stride + INPUTS + column_LH
    gate_LH = tl.load(place_LH + WIDTH, mask=is_inside, other=0.0).to(tl.float32)
    bias_LH = bias_XC + (first_X % RATE)[:, None] * WIDTH + column_LH
    gate_LH += tl.load(bias_LH, mask=is_inside, other=0.0)
    return tl.where(is_inside, gate_LH, float("-inf")), place_LH, is_inside


@triton.jit
def _make_entry(
    position, own_slot, root, table, path, slots_AC, paths_BWP, slots_SD, bias_XC, weight_H,
    table_P2H, last_angle, slot_stride, epsilon,
    INPUTS: tl.constexpr, ENTRY: tl.constexpr, HEAD_DIM: tl.constexpr, ROTATED: tl.constexpr,
    RATE: tl.constexpr, SPAN: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Write the entry of the group that ends at a position to the row's slot. last_angle: a draft may
    go beyond the last position of the table."""
    inner_H = tl.arange(0, BLOCK_H)
    top_H = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    for first in range(0, SPAN, BLOCK_L):
        gate_LH, _, _ = _gates(
            position, first + tl.arange(0, BLOCK_L), slots_SD, bias_XC, root, table, path,
            slots_AC, paths_BWP, slot_stride, INPUTS, HEAD_DIM, RATE, SPAN, BLOCK_H,
        )  # fmt: skip
        top_H = tl.maximum(top_H, tl.max(gate_LH, 0))
    top_H = tl.where(inner_H < HEAD_DIM, top_H, 0.0)
    sum_H = tl.zeros((BLOCK_H,), tl.float32)
    value_H = tl.zeros((BLOCK_H,), tl.float32)
    for first in range(0, SPAN, BLOCK_L):
        gate_LH, place_LH, is_inside = _gates(
            position, first + tl.arange(0, BLOCK_L), slots_SD, bias_XC, root, table, path,
            slots_AC, paths_BWP, slot_stride, INPUTS, HEAD_DIM, RATE, SPAN, BLOCK_H,
        )  # fmt: skip
        power_LH = tl.exp(gate_LH - top_H[None, :])
        x_LH = tl.load(place_LH, mask=is_inside, other=0.0).to(tl.float32)
        sum_H += tl.sum(power_LH, 0)
        value_H += tl.sum(power_LH * x_LH, 0)
    dtype: tl.constexpr = slots_SD.dtype.element_ty
    is_inner = inner_H < HEAD_DIM
    entry_H = tl.where(is_inner, value_H / tl.where(is_inner, sum_H, 1.0), 0.0)
    entry_H = entry_H.to(dtype).to(tl.float32)
    weight = tl.load(weight_H + inner_H, mask=is_inner, other=0.0).to(tl.float32)
    entry_H = normalized(entry_H, weight, HEAD_DIM, epsilon, True).to(dtype).to(tl.float32)
    cosine_1I, sine_1I = angles_of_pairs(
        table_P2H, tl.minimum(position + 1 - RATE, last_angle), HEAD_DIM, ROTATED, BLOCK_H // 2
    )
    rotated_1H = rotated_pairs(entry_H[None, :], cosine_1I, sine_1I, 1, BLOCK_H // 2)
    inner_1H = inner_H[None, :]
    place_1H = slots_SD + own_slot * slot_stride + ENTRY + inner_1H
    kept_1H = to_stored(rotated_1H.to(dtype), 1.0, slots_SD, 0.0)
    tl.store(place_1H, kept_1H, mask=inner_1H < HEAD_DIM)


@triton.jit
def make_entries_kernel(
    places_4T, write_slots_T, slots_AC, paths_BWP, slots_SD, bias_XC, weight_H, index_bias_XC,
    index_weight_I, table_P2H, last_angle, places_stride, slot_stride, epsilon,
    HEAD_DIM: tl.constexpr, INDEX_DIM: tl.constexpr, ROTATED: tl.constexpr, RATE: tl.constexpr,
    SPAN: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_L: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and series; of a row that completes no group it has nothing to do."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(places_4T + row)
    if (position >= 0) & ((position + 1) % RATE == 0):
        root = tl.load(places_4T + places_stride + row)
        table = tl.load(places_4T + 2 * places_stride + row)
        path = tl.load(places_4T + 3 * places_stride + row)
        own_slot = tl.load(write_slots_T + row)
        OF_KEYS: tl.constexpr = HEAD_DIM * (SPAN // RATE)
        OF_INDEX: tl.constexpr = INDEX_DIM * (SPAN // RATE)
        ENTRY: tl.constexpr = HEAD_DIM + 2 * OF_KEYS + 2 * OF_INDEX
        if tl.program_id(1) == 0:
            _make_entry(
                position, own_slot, root, table, path, slots_AC, paths_BWP, slots_SD, bias_XC,
                weight_H, table_P2H, last_angle, slot_stride, epsilon, HEAD_DIM, ENTRY, HEAD_DIM,
                ROTATED, RATE, SPAN, BLOCK_H, BLOCK_L,
            )  # fmt: skip
        elif INDEX_DIM > 0:
            _make_entry(
                position, own_slot, root, table, path, slots_AC, paths_BWP, slots_SD, index_bias_XC,
                index_weight_I, table_P2H, last_angle, slot_stride, epsilon, HEAD_DIM + 2 * OF_KEYS,
                ENTRY + HEAD_DIM, INDEX_DIM, ROTATED, RATE, SPAN, BLOCK_I, BLOCK_L,
            )  # fmt: skip


def make_entries(
    places_4T: torch.Tensor,
    write_slots_T: torch.Tensor,
    slots_AC: torch.Tensor,
    paths_BWP: torch.Tensor,
    slots_SD: torch.Tensor,
    series: Sequence[tuple[torch.Tensor, torch.Tensor]],
    table_P2H: torch.Tensor,
    epsilon: float,
    *,
    span: int,
    pdl: bool = False,
) -> None:
    """Write the entries of the groups that rows complete to the rows' slots
    (`cache.store.CompressedStore.widths`).

    places_4T: from `node_places`. series: of the keys, and of the indexer if there is one: what is
    added to gates, float32, and the weight of the norm. span: positions of an entry.
    Reference: `ops.compress.pooled`.
    """
    (bias_XC, weight_H), (index_bias_XC, index_weight_I) = series[0], series[-1]
    head_dim, index_dim = len(weight_H), len(index_weight_I) if len(series) > 1 else 0
    rate = len(bias_XC)
    assert table_P2H.is_contiguous() and slots_AC.stride(1) == 1 and slots_SD.stride(1) == 1
    for bias, weight in series:
        assert bias.is_contiguous() and bias.numel() == len(weight) * span
    if not len(write_slots_T):
        return
    block, index_block = (max(16, triton.next_power_of_2(dim)) for dim in (head_dim, index_dim))
    make_entries_kernel[(len(write_slots_T), len(series))](
        places_4T, write_slots_T, slots_AC, paths_BWP, slots_SD, bias_XC, weight_H, index_bias_XC,
        index_weight_I, table_P2H, len(table_P2H) - 1, places_4T.stride(0), slots_SD.stride(0), epsilon,
        HEAD_DIM=head_dim, INDEX_DIM=index_dim, ROTATED=table_P2H.shape[-1], RATE=rate, SPAN=span,
        BLOCK_H=block, BLOCK_I=index_block, BLOCK_L=POSITIONS, num_warps=4 if block <= 256 else 8,
        enable_fp_fusion=False, PDL=pdl, **launch_options(pdl),
    )  # fmt: skip
