"""The kernel of `ops.node_rows`: token, position and slot of each tree node.

Promises: one launch, one program a sequence; every node has a row, padding too. Depths follow the
parents, so nodes may be in any order.
Does not know: prompt chunks, models, which sequence owns a seat.

Legend: B sequences, W nodes of a tree, R node rows (B * W), A seats, C columns (positions), X
numbers of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options

_NUM_FIELDS = 7
"""Numbers of a row."""
_NUMBERS = ("width", "padded_rows", "max_position")
_STRIDES = ("node_slots_stride", "tokens_stride", "parents_stride", "table_slots_stride")


@triton.jit(
    do_not_specialize=(*_NUMBERS, *_STRIDES),
    do_not_specialize_on_alignment=("seats", "roots", "node_slots", "tokens", "parents"),
)
def node_rows_kernel(
    seats, roots, node_slots, tokens, parents, table_slots, numbers,
    width, padded_rows, max_position,
    node_slots_stride, tokens_stride, parents_stride, table_slots_stride,
    IS_CHAIN: tl.constexpr, BLOCK_W: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence), one element a node: all follow their parents to the root at once."""
    enter(PDL)
    b = tl.program_id(0).to(tl.int64)
    node_W = tl.arange(0, BLOCK_W)
    is_node_W = node_W < width
    root = tl.load(roots + b)
    token_W = tl.load(tokens + b * tokens_stride + node_W, mask=is_node_W, other=0)
    slot_W = tl.load(node_slots + b * node_slots_stride + node_W, mask=is_node_W, other=0)
    depth_W = node_W.to(tl.int64)
    if IS_CHAIN:
        own_slots = table_slots + tl.load(seats + b) * table_slots_stride + root
        tl.store(own_slots + node_W, slot_W, mask=is_node_W)
    else:
        depth_W = tl.zeros((BLOCK_W,), tl.int64)
        at_W = tl.where(is_node_W, node_W, 0).to(tl.int64)
        step = 0
        while (step < width) & (tl.max(at_W, 0) > 0):
            is_below_W = at_W > 0
            depth_W += is_below_W.to(tl.int64)
            above_W = tl.load(parents + b * parents_stride + at_W, mask=is_below_W, other=0)
            at_W = tl.maximum(above_W, 0)
            step += 1
    position_W = root + depth_W
    row_W = b * width + node_W
    own = numbers + row_W
    stride = padded_rows.to(tl.int64)
    tl.store(own, token_W, mask=is_node_W)
    tl.store(own + stride, position_W, mask=is_node_W)
    tl.store(own + 2 * stride, tl.minimum(position_W, max_position), mask=is_node_W)
    tl.store(own + 3 * stride, slot_W, mask=is_node_W)
    tl.store(own + 4 * stride, tl.zeros((BLOCK_W,), tl.int64) + b, mask=is_node_W)
    tl.store(own + 5 * stride, node_W.to(tl.int64), mask=is_node_W)
    tl.store(own + 6 * stride, row_W, mask=is_node_W)


def node_rows(
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    node_slots_BW: torch.Tensor,
    tokens_BW: torch.Tensor,
    parents_BW: torch.Tensor | None,
    slots_AC: torch.Tensor,
    max_position: int,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The rows of all nodes, sequence by sequence. Reference: `ops.node_rows.by_torch`, where
    all nodes are real. Returns the first seven fields of its `NodeRows`, whose arguments these are.
    """
    num, width = tokens_BW.shape
    num_rows = num * width
    numbers_XR = empty_numbers(_NUM_FIELDS, num_rows, tokens_BW.device)
    if num_rows:
        tokens_BW, node_slots_BW = with_rows(tokens_BW), with_rows(node_slots_BW)
        parents = tokens_BW if parents_BW is None else with_rows(parents_BW)
        node_rows_kernel[(num,)](
            seats_B, roots_B, node_slots_BW, tokens_BW, parents, slots_AC, numbers_XR,
            width, numbers_XR.stride(0), max_position,
            node_slots_BW.stride(0), tokens_BW.stride(0), parents.stride(0), slots_AC.stride(0),
            parents_BW is None, block_of(width), pdl,
            num_warps=1 if width <= 64 else 4, **launch_options(pdl),
        )  # fmt: skip
    return numbers_XR.unbind(0)


def empty_numbers(count: int, num: int, device: torch.device) -> torch.Tensor:
    """Return uninitialised int64 [count, num] whose rows begin at multiples of 16 bytes."""
    numbers_XR = torch.empty((count, num + num % 2), dtype=torch.int64, device=device)
    return numbers_XR[:, :num] if num % 2 else numbers_XR


def with_rows(grid: torch.Tensor) -> torch.Tensor:
    """Return the grid with contiguous rows."""
    return grid if grid.stride(1) == 1 else grid.contiguous()
