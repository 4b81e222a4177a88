"""The kernel of `ops.merge_trees`: one program a sequence, one node after the other.

Promises: the same nodes at the same places as `ops.merge_trees.by_torch` finds, entry
by entry, padding included.
Does not know: which drafter proposed the trees.

Legend: B sequences, W nodes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options


@triton.jit
def add_tree(
    old_tokens, old_parents, old_sources, old_sizes, new_tokens, new_parents, new_sizes,
    tokens, parents, sources, sizes,
    old_tokens_stride, old_parents_stride, old_sources_stride,
    new_tokens_stride, new_parents_stride, source, old_width, width,
    NEW_WIDTH: tl.constexpr, NEW_PADDED: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (sequence): keep the merged tree in registers and add the new nodes one by one.
    place_W: the node of the merged tree for each new node, -1 if there is none."""
    enter(PDL)
    b = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    is_old = column < old_width
    tokens_W = tl.load(old_tokens + b * old_tokens_stride + column, mask=is_old, other=0)
    parents_W = tl.load(old_parents + b * old_parents_stride + column, mask=is_old, other=0)
    parents_W = parents_W.to(tl.int32)
    sources_W = tl.load(old_sources + b * old_sources_stride + column, mask=is_old, other=0)
    size = tl.load(old_sizes + b).to(tl.int32)
    new_size = tl.load(new_sizes + b).to(tl.int32)
    new_column = tl.arange(0, NEW_PADDED)
    place_W = tl.zeros((NEW_PADDED,), tl.int32)
    for w in range(1, NEW_WIDTH):
        if w < new_size:
            parent = tl.load(new_parents + b * new_parents_stride + w).to(tl.int32)
            token = tl.load(new_tokens + b * new_tokens_stride + w)
            is_parent_W = new_column == tl.maximum(parent, 0)
            above = tl.max(tl.where(is_parent_W, place_W, -1), axis=0)
            is_same_W = (parents_W == above) & (tokens_W == token) & (column > 0) & (column < size)
            known = tl.min(tl.where(is_same_W, column, PADDED), axis=0)
            is_new = (above >= 0) & (known == PADDED) & (size < width)
            is_at_W = (column == size) & is_new
            tokens_W = tl.where(is_at_W, token, tokens_W)
            parents_W = tl.where(is_at_W, above, parents_W)
            sources_W = tl.where(is_at_W, source, sources_W)
            found = tl.where(known < PADDED, known, tl.where(is_new, size, -1))
            found = tl.where(above >= 0, found, -1)
            place_W = tl.where(new_column == w, found, place_W)
            size += is_new.to(tl.int32)
    out = b * width + column
    is_out = column < width
    tl.store(tokens + out, tokens_W, mask=is_out)
    tl.store(parents + out, parents_W.to(tl.int64), mask=is_out)
    tl.store(sources + out, sources_W, mask=is_out)
    tl.store(sizes + b, size.to(tl.int64))


def merge_trees(
    old: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    new: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    source: int,
    width: int,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, parents, sources [B, width] and sizes [B] of the merged trees. Reference:
    `ops.merge_trees.by_torch`.

    old: tokens, parents, sources [B, W] and sizes [B], W at most `width`. new: tokens, parents and
    sizes of the trees whose nodes are added, with this `source`, while they fit. Rows may be views
    (a chain's parents are one row for all).
    """
    old_rows, new_rows = [_rows(each) for each in old[:3]], [_rows(each) for each in new[:2]]
    (num, old_width), new_width = old[0].shape, new[0].shape[1]
    device = old[0].device
    tokens_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    parents_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    sources_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    sizes_B = torch.empty((num,), dtype=torch.int64, device=device)
    if num:
        add_tree[(num,)](
            *old_rows, old[3], *new_rows, new[2], tokens_BW, parents_BW, sources_BW, sizes_B,
            *(each.stride(0) for each in old_rows), *(each.stride(0) for each in new_rows),
            source, old_width, width, new_width, triton.next_power_of_2(new_width),
            triton.next_power_of_2(width), pdl,
            num_warps=1 if width <= 256 else 4, **launch_options(pdl),
        )  # fmt: skip
    return tokens_BW, parents_BW, sources_BW, sizes_B


def _rows(values_BW: torch.Tensor) -> torch.Tensor:
    """Return the grid with contiguous rows."""
    if values_BW.stride(1) == 1 or values_BW.shape[1] == 1:
        return values_BW
    return values_BW.contiguous()
