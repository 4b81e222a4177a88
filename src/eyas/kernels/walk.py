"""The kernel of `ops.walk`: one program a sequence.

Promises: tokens and counts are those of the torch body, entry for entry, and nodes up to the counts
(past a walk in a tree they repeat its last node).
Does not know: how a row chose.

Legend: B sequences, W nodes, X entries of a report (W tokens, W nodes, the count).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options

_WALKED = ("tokens", "parents", "sizes", "report")
_WALK_NUMBERS = ("width", *(f"{name}_stride" for name in _WALKED))
"""One compiled kernel serves all widths of a power of two."""


@triton.jit(do_not_specialize=_WALK_NUMBERS)
def _walk_kernel(
    chosen, tokens, parents, sizes, report, width,
    tokens_stride, parents_stride, sizes_stride, report_stride,
    IS_CHAIN: tl.constexpr, BLOCK_W: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One sequence. A chain's walk is the run of draft tokens that were chosen; in a tree each step
    goes to the first child that carries the chosen token."""
    b = tl.program_id(0).to(tl.int64)
    enter(PDL)
    node_W = tl.arange(0, BLOCK_W)
    is_node_W = node_W < width
    size = tl.load(sizes + b * sizes_stride)
    token_W = tl.load(tokens + b * tokens_stride + node_W, mask=is_node_W, other=-1)
    own_chosen = chosen + b * width
    if IS_CHAIN:
        out_token_W = tl.load(own_chosen + node_W, mask=is_node_W, other=-1)
        is_after_W = is_node_W & (node_W > 0)
        before_W = tl.load(own_chosen + node_W - 1, mask=is_after_W, other=-1)
        refuses_W = is_after_W & ((before_W != token_W) | (node_W >= size))
        count = tl.min(tl.where(refuses_W, node_W, width))
        out_node_W = node_W.to(tl.int64)
        last = tl.load(own_chosen + count - 1)
    else:
        parent_W = tl.load(parents + b * parents_stride + node_W, mask=is_node_W, other=-2)
        is_real_W = is_node_W & (node_W < size)
        out_token_W = tl.full((BLOCK_W,), -1, tl.int64)
        out_node_W = tl.zeros((BLOCK_W,), tl.int64)
        at = 0
        count = 0
        last = tl.load(own_chosen)
        is_walking = True
        while is_walking:
            last = tl.load(own_chosen + at)
            out_token_W = tl.where(node_W == count, last, out_token_W)
            out_node_W = tl.where(node_W >= count, at, out_node_W)
            count += 1
            is_next_W = is_real_W & (parent_W == at) & (token_W == last)
            child = tl.min(tl.where(is_next_W, node_W, BLOCK_W))
            is_walking = (child < BLOCK_W) & (count < width)
            at = tl.where(child < BLOCK_W, child, at)
    count -= (last < 0).to(tl.int32)
    count = tl.where(count == 0, -1, count)
    own_report = report + b * report_stride
    tl.store(own_report + node_W, out_token_W, mask=is_node_W)
    tl.store(own_report + width + node_W, out_node_W, mask=is_node_W)
    tl.store(own_report + 2 * width, count.to(tl.int64))


def walk(
    chosen_R: torch.Tensor,
    tokens_BW: torch.Tensor,
    parents_BW: torch.Tensor | None,
    sizes_B: torch.Tensor,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """`eyas.draft_tree.Verdict.report_BX` of each tree's walk.

    chosen_R: what each node's row chose, [B * W] or [B, W] without gaps. parents_BW: None for chains.
    Torch: `ops.walk.by_torch`.
    """
    num, width = tokens_BW.shape
    report_BX = torch.empty((num, 2 * width + 1), dtype=torch.int64, device=tokens_BW.device)
    if num:
        _walk_kernel[(num,)](
            chosen_R,
            tokens_BW,
            parents_BW,
            sizes_B,
            report_BX,
            width,
            tokens_BW.stride(0),
            0 if parents_BW is None else parents_BW.stride(0),
            sizes_B.stride(0),
            2 * width + 1,
            IS_CHAIN=parents_BW is None,
            BLOCK_W=block_of(width),
            PDL=pdl,
            num_warps=1,
            **launch_options(pdl),
        )
    return report_BX
