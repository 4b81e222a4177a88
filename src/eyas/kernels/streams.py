"""The kernels of `ops.streams`: weights of residual streams, their sum, and the way back to them.

The product of a row's streams with the weights is summed in ranges of columns whose borders depend on
the width alone; the ranges are added in one tree. The norm of the streams is a factor of the product,
so it is applied to the sums.

Promises: a row's bits depend on that row alone. Weights are float32; streams are rounded once.
Does not know: the blocks between.

Legend: T rows, M streams, D hidden size, X = M * D, W weights of a row, Z ranges of columns, Y parts of
a block's output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from eyas.kernels.add_norm import normalized, warps_for
from eyas.kernels.launch import enter, launch_options

RANGE = 256
"""Columns of a range."""
FEW_ROWS = 16
"""Up to so many rows a program has one of them; beyond, so many."""
BLOCK_WEIGHTS = 32
"""Numbers of a row that are summed: its weights, and behind them its squares."""
BLOCK_COLUMNS = 1024


@triton.jit(do_not_specialize=["num_rows", "rows_a_program"])
def weigh_streams_kernel(
    streams_TX, weight_WX, sums_ZTW, num_rows, num_weights, width, row_stride, rows_a_program,
    RANGE: tl.constexpr, BLOCK_WEIGHTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a range of columns, whose weights it keeps, and rows_a_program rows."""
    part = tl.program_id(0)
    column_X = part * RANGE + tl.arange(0, RANGE)
    weight_W = tl.arange(0, BLOCK_WEIGHTS)
    is_column = column_X < width
    is_inside = (weight_W < num_weights)[:, None] & is_column[None, :]
    place_WX = weight_WX + weight_W[:, None] * width + column_X[None, :]
    if PDL:
        cuda.gdc_launch_dependents()
    own_WX = tl.load(place_WX, mask=is_inside, other=0.0)  # no kernel writes weights
    if PDL:
        cuda.gdc_wait()
    first = tl.program_id(1).to(tl.int64) * rows_a_program
    for step in range(tl.minimum(num_rows - first, rows_a_program)):
        row = first + step
        x_X = streams_TX + row * row_stride + column_X
        x_X = tl.load(x_X, mask=is_column, other=0.0).to(tl.float32)
        factor_WX = tl.where((weight_W == num_weights)[:, None], x_X[None, :], own_WX)
        total_W = tl.sum(factor_WX * x_X[None, :], 1)
        place_W = sums_ZTW + (part * num_rows + row) * BLOCK_WEIGHTS + weight_W
        tl.store(place_W, total_W, mask=weight_W <= num_weights)


@triton.jit
def _summed(
    sums_ZTW, base_W, scale_W, row, num_rows, num_parts, num_weights, width, norm_epsilon, weight_W,
    is_weight, PARTS: tl.constexpr, BLOCK_WEIGHTS: tl.constexpr,
):  # fmt: skip
    """The raw weights of a row with these numbers, a block of one dimension."""
    part_Z = tl.arange(0, PARTS)
    place_Z = sums_ZTW + (part_Z * num_rows + row) * BLOCK_WEIGHTS
    is_part = part_Z < num_parts
    square = tl.sum(tl.load(place_Z + num_weights, mask=is_part, other=0.0), 0)
    is_sum = is_part[:, None] & is_weight[None, :]
    total_W = tl.sum(tl.load(place_Z[:, None] + weight_W[None, :], mask=is_sum, other=0.0), 0)
    total_W = total_W * tl.rsqrt(square / width + norm_epsilon)
    scale_W = tl.load(scale_W + weight_W, mask=is_weight, other=0.0)
    return total_W * scale_W + tl.load(base_W + weight_W, mask=is_weight, other=0.0)


@triton.jit(do_not_specialize=["num_rows"])
def sum_streams_kernel(
    streams_TX, sums_ZTW, base_W, scale_W, norm_weight_D, out_TD, raw_TW,
    num_rows, num_parts, num_weights, size, row_stride, norm_epsilon, epsilon,
    NUM_STREAMS: tl.constexpr, PARTS: tl.constexpr, BLOCK_WEIGHTS: tl.constexpr,
    BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row: its weights, the weighted sum of its streams, and that sum's norm."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    weight_W = tl.arange(0, BLOCK_WEIGHTS)
    is_weight = weight_W < num_weights
    raw_W = _summed(
        sums_ZTW, base_W, scale_W, row, num_rows, num_parts, num_weights, NUM_STREAMS * size,
        norm_epsilon, weight_W, is_weight, PARTS, BLOCK_WEIGHTS,
    )  # fmt: skip
    num_left = num_weights - NUM_STREAMS
    place_W = raw_TW + row * num_left + weight_W - NUM_STREAMS
    tl.store(place_W, raw_W, mask=is_weight & (weight_W >= NUM_STREAMS))
    share_W = 1.0 / (1.0 + tl.exp(-raw_W)) + epsilon
    column_D = tl.arange(0, BLOCK_D)
    is_inside = column_D < size
    total_D = tl.zeros((BLOCK_D,), tl.float32)
    for stream in tl.static_range(NUM_STREAMS):
        x_D = streams_TX + row * row_stride + stream * size + column_D
        x_D = tl.load(x_D, mask=is_inside, other=0.0).to(tl.float32)
        total_D += x_D * tl.sum(tl.where(weight_W == stream, share_W, 0.0), 0)
    dtype: tl.constexpr = out_TD.dtype.element_ty
    total_D = total_D.to(dtype).to(tl.float32)
    norm_weight = tl.load(norm_weight_D + column_D, mask=is_inside, other=0.0).to(tl.float32)
    normed_D = normalized(total_D, norm_weight, size, norm_epsilon, True)
    tl.store(out_TD + row * size + column_D, normed_D.to(dtype), mask=is_inside)


@triton.jit
def mix_streams_kernel(
    streams_TX, raw_TW, parts_YTD, out_TX, size, row_stride, part_stride, part_row_stride, epsilon,
    NUM_STREAMS: tl.constexpr, BLOCK_M: tl.constexpr, NUM_ITERATIONS: tl.constexpr,
    NUM_PARTS: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK_D columns of all streams."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    column_D = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    is_inside = column_D < size
    stream_M = tl.arange(0, BLOCK_M)
    is_stream = stream_M < NUM_STREAMS
    dtype: tl.constexpr = streams_TX.dtype.element_ty
    part_D = parts_YTD + row * part_row_stride + column_D
    block_D = tl.load(part_D, mask=is_inside, other=0.0).to(tl.float32)
    for _part in tl.static_range(1, NUM_PARTS):
        part_D += part_stride
        block_D += tl.load(part_D, mask=is_inside, other=0.0).to(tl.float32)
    block_D = block_D.to(dtype).to(tl.float32)
    raw = raw_TW + row * (NUM_STREAMS + NUM_STREAMS * NUM_STREAMS)
    out_weight_M = tl.load(raw + stream_M, mask=is_stream, other=0.0)
    out_weight_M = 2.0 / (1.0 + tl.exp(-out_weight_M))
    is_pair = is_stream[:, None] & is_stream[None, :]
    mixing_MM = raw + NUM_STREAMS + stream_M[:, None] * NUM_STREAMS + stream_M[None, :]
    mixing_MM = tl.load(mixing_MM, mask=is_pair, other=float("-inf"))
    top_M = tl.where(is_stream, tl.max(mixing_MM, 1), 0.0)
    mixing_MM = tl.exp(mixing_MM - top_M[:, None])
    sum_M = tl.where(is_stream, tl.sum(mixing_MM, 1), 1.0)
    mixing_MM = tl.where(is_pair, mixing_MM / sum_M[:, None] + epsilon, 0.0)
    mixing_MM = mixing_MM / (tl.sum(mixing_MM, 0) + epsilon)[None, :]
    for _ in range(NUM_ITERATIONS - 1):
        mixing_MM = mixing_MM / (tl.sum(mixing_MM, 1) + epsilon)[:, None]
        mixing_MM = mixing_MM / (tl.sum(mixing_MM, 0) + epsilon)[None, :]
    out_MD = out_weight_M[:, None] * block_D[None, :]
    for stream in tl.static_range(NUM_STREAMS):
        x_D = streams_TX + row * row_stride + stream * size + column_D
        x_D = tl.load(x_D, mask=is_inside, other=0.0).to(tl.float32)
        share_M = tl.sum(tl.where((stream_M == stream)[:, None], mixing_MM, 0.0), 0)
        out_MD += share_M[:, None] * x_D[None, :]
    place_MD = out_TX + row * (NUM_STREAMS * size) + stream_M[:, None] * size + column_D[None, :]
    tl.store(place_MD, out_MD.to(dtype), mask=is_stream[:, None] & is_inside[None, :])


def sum_streams(
    streams_TMD: torch.Tensor,
    weight_WX: torch.Tensor,
    base_W: torch.Tensor,
    scale_W: torch.Tensor,
    norm_weight_D: torch.Tensor,
    norm_epsilon: float,
    epsilon: float,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised weighted sum of each row's streams [T, D], and the raw weights beyond its own.

    weight_WX: float32, contiguous. scale_W: one for each weight. Reference: `ops.streams`.
    """
    num_rows, num_streams, size = streams_TMD.shape
    num_weights, width = weight_WX.shape
    assert streams_TMD.is_contiguous() and weight_WX.is_contiguous()
    assert width == num_streams * size and num_weights < BLOCK_WEIGHTS
    float32 = {"dtype": torch.float32, "device": streams_TMD.device}
    num_parts = -(-width // RANGE)
    sums_ZTW = torch.empty((num_parts, num_rows, BLOCK_WEIGHTS), **float32)
    out_TD = streams_TMD.new_empty((num_rows, size))
    raw_TW = torch.empty((num_rows, num_weights - num_streams), **float32)
    if not num_rows:
        return out_TD, raw_TW
    rows = 1 if num_rows <= FEW_ROWS else FEW_ROWS
    weigh_streams_kernel[(num_parts, -(-num_rows // rows))](
        streams_TMD, weight_WX, sums_ZTW, num_rows, num_weights, width, width, rows,
        RANGE=RANGE, BLOCK_WEIGHTS=BLOCK_WEIGHTS,
        num_warps=4, enable_fp_fusion=False, PDL=pdl, **launch_options(pdl),
    )  # fmt: skip
    block = triton.next_power_of_2(size)
    sum_streams_kernel[(num_rows,)](
        streams_TMD, sums_ZTW, base_W, scale_W, norm_weight_D, out_TD, raw_TW,
        num_rows, num_parts, num_weights, size, width, norm_epsilon, epsilon,
        NUM_STREAMS=num_streams, PARTS=triton.next_power_of_2(num_parts),
        BLOCK_WEIGHTS=BLOCK_WEIGHTS, BLOCK_D=block, num_warps=warps_for(block), enable_fp_fusion=False,
        PDL=pdl, **launch_options(pdl),
    )  # fmt: skip
    return out_TD, raw_TW


def mix_streams(
    streams_TMD: torch.Tensor,
    raw_TW: torch.Tensor,
    parts: torch.Tensor,
    num_iterations: int,
    epsilon: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The streams [T, M, D] after a block. raw_TW: from `sum_streams`. parts: of the block's output,
    [T, D] or float32 [Y, T, D], which are added in order. Reference: `ops.streams`."""
    num_rows, num_streams, size = streams_TMD.shape
    assert streams_TMD.is_contiguous() and raw_TW.is_contiguous() and parts.stride(-1) == 1
    num_parts, part_stride = (len(parts), parts.stride(0)) if parts.dim() == 3 else (1, 0)
    out_TMD = torch.empty_like(streams_TMD)
    if num_rows:
        block = min(BLOCK_COLUMNS, triton.next_power_of_2(size))
        mix_streams_kernel[(num_rows, -(-size // block))](
            streams_TMD, raw_TW, parts, out_TMD, size, num_streams * size, part_stride,
            parts.stride(-2), epsilon,
            NUM_STREAMS=num_streams, BLOCK_M=triton.next_power_of_2(num_streams),
            NUM_ITERATIONS=num_iterations, NUM_PARTS=num_parts, BLOCK_D=block, num_warps=4,
            enable_fp_fusion=False, PDL=pdl, **launch_options(pdl),
        )  # fmt: skip
    return out_TMD
