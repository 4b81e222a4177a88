"""The sum of a tile whose weights are packed: `gemm_tile.accumulate` with weights made in registers.

Promises: the order of a sum does not depend on the tile: partial sums of STEP columns, ascending, in
float32, each times the scale of its block and added in ascending order (FP8, integers); or sums of the
values of `ops.dequantise` over ascending columns (FP4). `ops.dequantise.product` defines both.
Does not know: which tile a program has, what is done with the sum.

A tile's numbers come from memory as they are stored, and become the left operand of the matrix
instruction where they are, in registers; only numbers, and scales of 4-bit ones, pass through shared
memory. Numbers are stored in such an order (`ops.dequantise.arrange`) that 16 bytes hold
those that one thread needs, and that a word's numbers become pairs of 16 bits by shifts and masks,
without moving between words. So that all loads can run ahead, none is narrower than 4 bytes: scales of
16 and 8 bits are read as words.

Legend: T rows, O output features, I input features (the contraction), W words.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from eyas.kernels.gemm_tile import zeros
from eyas.kernels.packed import STEP, Weight
from eyas.kernels.tiles import Tile
from eyas.kernels.unpack import (
    FP4_SHRUNK,
    IS_COMPILED,
    fp4_values,
    fp8_numbers,
    int4_numbers,
    int4_scale,
)


@triton.jit
def load_rows(x_IT, is_row_1T, column, num_columns, EVEN_K: tl.constexpr):
    """Load the columns of x from `column` on, as many as the block has."""
    if EVEN_K:
        x = tl.load(x_IT + column, mask=is_row_1T, other=0.0)
    else:
        is_column = column + tl.arange(0, x_IT.shape[0]) < num_columns
        x = tl.load(x_IT + column, mask=is_row_1T & is_column[:, None], other=0.0)
    return x


@triton.jit
def load_scales(scales_O, is_out_O1, EVEN_OUT: tl.constexpr):
    """Load a scale, or a word with scales, of each row [O, 1]."""
    if EVEN_OUT:
        scales = tl.load(scales_O[:, None])
    else:
        scales = tl.load(scales_O[:, None], mask=is_out_O1, other=0)
    return scales


@triton.jit
def load_words(words_OW, is_out_O1, column, EVEN_OUT: tl.constexpr, NUMBERS: tl.constexpr):
    """Load the words of STEP columns from `column` on, each of so many numbers."""
    if EVEN_OUT:
        words = tl.load(words_OW + column // NUMBERS)
    else:
        words = tl.load(words_OW + column // NUMBERS, mask=is_out_O1, other=0)
    return words


@triton.jit
def accumulate_packed(
    x_T,
    numbers_O,
    scales_O,
    is_row_1T,
    is_out_O1,
    first,
    last,
    num_columns,
    scales_stride,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    LAYOUT: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """The sums over columns first to last, in ascending order: float32 [BLOCK_OUT, BLOCK_ROWS].

    x_T, numbers_O, scales_O: where each row's numbers and scales begin. scales_stride: from one scale
    of a row to the next. GROUP: columns that share a scale or a word of scales, a multiple of STEP; 0
    are all. NUMBERS: of a word. BLOCK_K: a multiple of STEP. NUM_STAGES: steps of the loop whose loads
    are under way; for FP8 the launch says that.

    Beyond the last column the last STEP columns are read again, for rows of x that are zero there.
    """
    dtype: tl.constexpr = x_T.dtype.element_ty
    total = zeros(BLOCK_OUT, BLOCK_ROWS)
    x_IT = x_T[None, :] + tl.arange(0, 128)[:, None]
    words_OW = numbers_O[:, None] + tl.arange(0, 128 // NUMBERS)[None, :]
    last_step = (num_columns - 1) // 128 * 128
    if LAYOUT == "fp8":
        # Scales are loaded one block ahead, to registers. With stages of the loop's own they would pass
        # through shared memory, and one program less would have room on a multiprocessor.
        scale_at_O = scales_O
        if GROUP > 0:
            scale_at_O += tl.minimum(first, last_step) // GROUP * scales_stride
        scale_O1 = load_scales(scale_at_O, is_out_O1, EVEN_OUT)
        for start in tl.range(first, last, BLOCK_K):
            for step in tl.static_range(BLOCK_K // 128):
                column = start + 128 * step
                x = load_rows(x_IT, is_row_1T, column, num_columns, EVEN_K)
                if not EVEN_K:
                    column = tl.minimum(column, last_step)
                word_OW = load_words(words_OW, is_out_O1, column, EVEN_OUT, NUMBERS)
                next_O1 = scale_O1
                if GROUP > 0:
                    group = tl.minimum(column + 128, last_step) // GROUP
                    next_O1 = load_scales(scales_O + group * scales_stride, is_out_O1, EVEN_OUT)
                sums = tl.dot(fp8_numbers(word_OW, dtype), x, input_precision="ieee")
                total = tl.fma(sums, tl.broadcast_to(scale_O1, sums.shape), total)
                scale_O1 = next_O1
    else:
        for start in tl.range(first, last, BLOCK_K, num_stages=NUM_STAGES):
            for step in tl.static_range(BLOCK_K // 128):
                column = start + 128 * step
                x = load_rows(x_IT, is_row_1T, column, num_columns, EVEN_K)
                if not EVEN_K:
                    column = tl.minimum(column, last_step)
                word_OW = load_words(words_OW, is_out_O1, column, EVEN_OUT, NUMBERS)
                scale_at_O = scales_O
                if GROUP > 0:
                    scale_at_O += column // GROUP * scales_stride
                scale_O1 = load_scales(scale_at_O, is_out_O1, EVEN_OUT)
                if LAYOUT == "mxfp4":
                    values = fp4_values(word_OW, scale_O1, dtype)
                    total = tl.dot(values, x, total, input_precision="ieee")
                else:
                    numbers = int4_numbers(word_OW, scale_O1, dtype)
                    sums = tl.dot(numbers, x, input_precision="ieee")
                    factor_O1 = int4_scale(scale_O1, SCALE)
                    total = tl.fma(sums, tl.broadcast_to(factor_O1, sums.shape), total)
        if LAYOUT == "mxfp4" and IS_COMPILED and dtype == tl.bfloat16:
            total *= FP4_SHRUNK
    return total


def tensors_of(weight: Weight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what a kernel reads of a weight: its values, or the words of its numbers, and scales, of
    which those of neighbouring rows are next to each other."""
    if isinstance(weight, torch.Tensor):
        return weight, None
    assert weight.scales.shape[-2] == 1 or weight.scales.stride(-2) == 1
    return weight.numbers.view(torch.int32), weight.scales


def layout_options(weight: Weight) -> dict[str, Any]:
    """Return the constants of a kernel that say how a weight is packed."""
    if isinstance(weight, torch.Tensor):
        return {"LAYOUT": "plain", "SCALE": "", "SCALE_ROWS": 1, "SCALE_COLUMNS": 0, "NUMBERS": 1}
    layout = weight.layout
    return {
        "LAYOUT": layout.kind,
        "SCALE": layout.scale_dtype,
        "SCALE_ROWS": layout.rows,
        "SCALE_COLUMNS": layout.num_splittable,
        "NUMBERS": 4 * layout.columns_per_byte,
    }


def step_of(weight: Weight, tile: Tile) -> int:
    """Return the columns of a step of the loop over a weight's columns."""
    if isinstance(weight, torch.Tensor):
        return tile.block_k
    return max(STEP, tile.block_k)
