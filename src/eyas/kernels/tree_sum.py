"""The kernel of `ops.tree_sum`: the parts of a sum, added in a binary tree by one launch.

Promises: the bits of `ops.tree_sum.by_torch`.
Does not know: what the parts are of.

Legend: Z parts, X numbers of a part.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

BLOCK = 1024


@triton.jit
def _two(part, stride, is_inside):
    first = tl.load(part, mask=is_inside, other=0.0)
    return first + tl.load(part + stride, mask=is_inside, other=0.0)


@triton.jit
def _four(part, stride, is_inside):
    return _two(part, stride, is_inside) + _two(part + 2 * stride, stride, is_inside)


@triton.jit
def _eight(part, stride, is_inside):
    return _four(part, stride, is_inside) + _four(part + 4 * stride, stride, is_inside)


@triton.jit
def tree_sum_kernel(
    parts_ZX,
    out_X,
    size,
    NUM_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program BLOCK numbers."""
    enter(PDL)
    x = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = x < size
    part, stride = parts_ZX + x, tl.zeros((BLOCK,), tl.int64) + size
    if NUM_PARTS == 2:
        sum_X = _two(part, stride, is_inside)
    elif NUM_PARTS == 4:
        sum_X = _four(part, stride, is_inside)
    else:
        tl.static_assert(NUM_PARTS == 8)
        sum_X = _eight(part, stride, is_inside)
    tl.store(out_X + x, sum_X, mask=is_inside)


def tree_sum(parts_Z: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """The sum [...] of parts [Z, ...], contiguous, Z being 1, 2, 4 or 8."""
    num_parts = len(parts_Z)
    if num_parts == 1:
        return parts_Z[0]
    assert parts_Z.is_contiguous() and num_parts in (2, 4, 8)
    out = torch.empty_like(parts_Z[0])
    if size := out.numel():
        tree_sum_kernel[(triton.cdiv(size, BLOCK),)](
            parts_Z,
            out,
            size,
            NUM_PARTS=num_parts,
            BLOCK=BLOCK,
            PDL=pdl,
            **launch_options(pdl),
        )
    return out
