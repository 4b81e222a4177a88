"""The kernel of `ops.level_rows`: tokens, positions, tree so far and parents' states of one more level.

Promises: one launch, one program a row. The inner nodes of a tree are numbered level after level, Q
of them each, the root first; their slots are the scratch slots of their seat, in that order.
Does not know: how candidates were ranked, what a state is.

Legend: B sequences, Q nodes of a level, R rows (B * Q), P draft tokens from below the root to a node, W
inner nodes down to this level (1 + depth * Q), F size of a state, A seats, C columns (positions), X
numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options
from eyas.kernels.node_rows import empty_numbers, with_rows

_BLOCK = 2048
_NUM_ROW_FIELDS, _NUM_NODE_FIELDS = 6, 3
_NUMBERS = ("depth", "first_scratch", "per_seat", "padded_rows", "max_position")
_STRIDES = ("node_slots_stride", "table_slots_stride")


@triton.jit(
    do_not_specialize=(*_NUMBERS, *_STRIDES),
    do_not_specialize_on_alignment=("seats", "roots", "node_slots"),
)
def level_kernel(
    seats, roots, node_slots, paths, above, parents_above, states_above, table_slots,
    numbers, grids, states,
    depth, first_scratch, per_seat, padded_rows, max_position,
    node_slots_stride, table_slots_stride, states_stride,
    TOPK: tl.constexpr, IS_CHAIN: tl.constexpr, BLOCK_W: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence, node of the level); the first node's writes the grids of the sequence."""
    enter(PDL)
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = b * TOPK + k
    is_below_root = depth == 1
    num_above = tl.where(is_below_root, 1, TOPK)
    if SIZE > 0:
        source = states_above + (b * num_above + tl.load(above + row)) * states_stride
        for first in tl.static_range(0, SIZE, BLOCK):
            at = first + tl.arange(0, BLOCK)
            state = tl.load(source + at, mask=at < SIZE)
            tl.store(states + row * SIZE + at, state, mask=at < SIZE)

    seat, root = tl.load(seats + b), tl.load(roots + b)
    first_own = first_scratch + seat * per_seat
    slot = first_own + (depth - 1) * TOPK + k
    position = root + depth
    own = numbers + row
    stride = padded_rows.to(tl.int64)
    tl.store(own, tl.load(paths + row * depth + depth - 1))
    tl.store(own + stride, position)
    tl.store(own + 2 * stride, tl.minimum(position, max_position))
    tl.store(own + 3 * stride, slot)
    tl.store(own + 4 * stride, b)
    tl.store(own + 5 * stride, row)
    if IS_CHAIN:
        tl.store(table_slots + seat * table_slots_stride + position, slot)
    else:
        if k == 0:
            width = 1 + depth * TOPK
            before = width - TOPK
            node_W = tl.arange(0, BLOCK_W)
            is_node_W = node_W < width
            is_own_W = is_node_W & (node_W >= before)
            is_above_W = is_node_W & (node_W < before) & (node_W > 0)
            child_W = tl.load(above + b * TOPK + node_W - before, mask=is_own_W, other=0)
            first_above = tl.where(is_below_root, 0, before - TOPK)
            parent_W = tl.load(parents_above + b * before + node_W, mask=is_above_W, other=-1)
            parent_W = tl.where(is_own_W, first_above + child_W, parent_W)
            row_W = tl.where(is_own_W, b * TOPK + node_W - before, -1)
            root_slot = tl.load(node_slots + b * node_slots_stride)
            slot_W = tl.where(node_W > 0, first_own + node_W - 1, root_slot)
            grid = tl.num_programs(0).to(tl.int64) * width
            out = grids + b * width + node_W
            tl.store(out, row_W, mask=is_node_W)
            tl.store(out + grid, slot_W, mask=is_node_W)
            tl.store(out + 2 * grid, parent_W, mask=is_node_W)


def level_rows(
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    node_slots_BW: torch.Tensor,
    paths_BQP: torch.Tensor,
    above_BQ: torch.Tensor,
    parents_BW: torch.Tensor | None,
    states_RF: torch.Tensor | None,
    slots_AC: torch.Tensor,
    first_scratch: int,
    per_seat: int,
    max_position: int,
    *,
    pdl: bool = False,
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...] | None, torch.Tensor | None]:
    """The fields of `LevelRows` and of `InnerNodes` (None for chains), and each row's state.
    Reference: `ops.level_rows.by_torch`, whose arguments these are."""
    num, topk, depth = paths_BQP.shape
    device = paths_BQP.device
    num_rows, width, is_chain = num * topk, 1 + depth * topk, topk == 1
    numbers_XR = empty_numbers(_NUM_ROW_FIELDS, num_rows, device)
    grids, above_RF, below_RF, size = None, numbers_XR, states_RF, 0
    if not is_chain:
        assert depth == 1 or parents_BW is not None
        grids = torch.empty((_NUM_NODE_FIELDS, num, width), dtype=torch.int64, device=device)
        if states_RF is not None:
            above_RF, size = with_rows(states_RF), states_RF.shape[1]
            below_RF = torch.empty((num_rows, size), dtype=states_RF.dtype, device=device)
    if num_rows:
        level_kernel[(num, topk)](
            seats_B, roots_B, node_slots_BW, paths_BQP.contiguous(), above_BQ.contiguous(),
            above_BQ if parents_BW is None else parents_BW.contiguous(), above_RF, slots_AC,
            numbers_XR, numbers_XR if grids is None else grids,
            numbers_XR if below_RF is None else below_RF,
            depth, first_scratch, per_seat, numbers_XR.stride(0), max_position,
            node_slots_BW.stride(0), slots_AC.stride(0), above_RF.stride(0),
            topk, is_chain, block_of(width),
            size, min(_BLOCK, triton.next_power_of_2(max(size, 1))), pdl,
            num_warps=4 if size else 1, **launch_options(pdl),
        )  # fmt: skip
    return numbers_XR.unbind(0), None if grids is None else grids.unbind(0), below_RF
