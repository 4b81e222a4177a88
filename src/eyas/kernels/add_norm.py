"""The kernel of `ops.add_norm`: add to the residual stream and normalise it, in one pass over a row.

Promises: a row's bits depend on that row alone: one program a row, whose sums run in an order that the
row's width alone decides. The new residual is rounded once and normalised as rounded; parts of a
product are added in ascending order.
Does not know: which product made the parts.

Legend: T rows, D width of a row, Z parts of a split product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from eyas.kernels.launch import launch_options
from eyas.kernels.parts import part_sum


@triton.jit
def normalized(x, weight, size, epsilon, HAS_WEIGHT: tl.constexpr):
    """x / sqrt(mean(x^2) + epsilon) * weight in float32; x and weight are 0 beyond `size`."""
    mean_square = tl.sum(x * x, 0) / size
    normed = x * tl.rsqrt(mean_square + epsilon)
    if HAS_WEIGHT:
        normed = normed * weight
    return normed


@triton.jit
def add_norm_kernel(
    residual_TD,
    parts_ZTD,
    weight_D,
    new_residual_TD,
    out_TD,
    size,
    residual_stride,
    part_stride,
    part_row_stride,
    epsilon,
    NUM_PARTS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row."""
    if PDL:
        cuda.gdc_launch_dependents()
    columns = tl.arange(0, BLOCK)
    is_inside = columns < size
    weight = 1.0
    if HAS_WEIGHT:
        weight = tl.load(weight_D + columns, mask=is_inside, other=0.0).to(tl.float32)
    if PDL:
        cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    residual = tl.load(residual_TD + row * residual_stride + columns, mask=is_inside, other=0.0)
    if NUM_PARTS > 0:
        part_row = parts_ZTD + row * part_row_stride + columns
        added = part_sum(part_row, part_stride, is_inside, NUM_PARTS)
        residual = (residual.to(tl.float32) + added).to(residual_TD.dtype.element_ty)
        tl.store(new_residual_TD + row * size + columns, residual, mask=is_inside)
    normed = normalized(residual.to(tl.float32), weight, size, epsilon, HAS_WEIGHT)
    normed = normed.to(out_TD.dtype.element_ty)
    tl.store(out_TD + row * size + columns, normed, mask=is_inside)


def add_norm(
    residual_TD: torch.Tensor,
    parts: torch.Tensor | None,
    weight_D: torch.Tensor | None,
    epsilon: float,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new residual [T, D], and its norm [T, D].

    parts: [T, D] in the model's type, or float32 [Z, T, D] as `gemm.product` leaves them; None is
    nothing to add: the residual is then returned as it is. weight_D None: no weight. The reference is
    `ops.add_norm.by_torch`. Rows may stand apart.
    """
    num_rows, size = residual_TD.shape
    new_residual_TD, num_parts, part_stride, part_row_stride = residual_TD, 0, 0, 0
    if parts is not None:
        new_residual_TD = residual_TD.new_empty((num_rows, size))
        num_parts, part_row_stride = 1, parts.stride(-2)
        if parts.ndim == 3:
            num_parts, part_stride = parts.shape[0], parts.stride(0)
    out_TD = residual_TD.new_empty((num_rows, size))
    if num_rows:
        block = triton.next_power_of_2(size)
        add_norm_kernel[(num_rows,)](
            residual_TD,
            parts,
            weight_D,
            new_residual_TD,
            out_TD,
            size,
            residual_TD.stride(0),
            part_stride,
            part_row_stride,
            epsilon,
            NUM_PARTS=num_parts,
            HAS_WEIGHT=weight_D is not None,
            BLOCK=block,
            num_warps=warps_for(block),
            PDL=pdl,
            **launch_options(pdl),
        )
    return new_residual_TD, out_TD


def norm(
    x_TD: torch.Tensor,
    weight_D: torch.Tensor | None,
    epsilon: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """[T, D] normalised; the reference is `normalized` of ops/add_norm.py."""
    return add_norm(x_TD, None, weight_D, epsilon, pdl=pdl)[1]


def warps_for(block: int) -> int:
    """Warps for a row of `block` elements: 8 of them a thread, which is one 16-byte load."""
    return min(max(block // 256, 1), 16)
