"""The sum of a tile whose weights are packed: `gemm_tile.accumulate` with weights made in registers.

Promises: values are those of `ops.dequantise`, and sums run over ascending columns in float32, so
every sum has the bits of the same weights unpacked.
Does not know: which tile a program has, what is done with the sum.

A tile's numbers come from memory as they are stored. They become the left operand of the matrix
instruction where they are, in registers; only numbers and scales pass through shared memory. So that
all loads can run ahead, none is narrower than 4 bytes: scales of 16 and 8 bits are read as words.

Legend: T rows, O output features, I input features (the contraction), N bytes of numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from eyas.kernels.gemm_tile import zeros
from eyas.kernels.packed import STEP, Weight
from eyas.kernels.tiles import Tile

FP4_UNIT = tl.constexpr(2.0**126)
"""An FP4 number in the upper bits of a float32 is so many times too small."""
INTEGER_BITS = tl.constexpr(0x4B000000)
INTEGER_UNIT = tl.constexpr(8388608.0)
"""An integer below 2^23 in the lower bits of this float32 is added to it."""


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
def four_bits(number, scale_O1, word_O1, LAYOUT: tl.constexpr, SCALE: tl.constexpr):
    """The float32 values of numbers of 4 bits. scale_O1: of FP4; word_O1: of integers."""
    if LAYOUT == "mxfp4":
        bits = ((number & 8) << 28) | ((number & 7) << 22)
        value = bits.to(tl.float32, bitcast=True) * FP4_UNIT * scale_O1
    else:
        if SCALE == "bfloat16":
            scale_O1 = (word_O1 << 16).to(tl.float32, bitcast=True)
        else:
            half = (word_O1 & 0xFFFF).to(tl.int16)
            scale_O1 = half.to(tl.float16, bitcast=True).to(tl.float32)
        zero_O1 = INTEGER_UNIT + (word_O1 >> 16).to(tl.float32)
        value = ((number | INTEGER_BITS).to(tl.float32, bitcast=True) - zero_O1) * scale_O1
    return value


@triton.jit
def fp4_scale(word_O1, place: tl.constexpr):
    """The power of two in a byte of a word, float32."""
    exponent = (word_O1 >> (8 * place)) & 0xFF
    smallest = 0x00400000  # 2^-127, whose exponent float32 has no bits for
    bits = tl.where(exponent == 0, smallest, exponent << 23)
    return bits.to(tl.float32, bitcast=True)


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
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    LAYOUT: tl.constexpr,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The sums over columns first to last, in ascending order: float32 [BLOCK_OUT, BLOCK_ROWS].

    x_T, numbers_O, scales_O: where each row's numbers and scales begin. GROUP: columns that share a
    scale or a word of scales; 0 are all. BLOCK_K: a divisor of GROUP; numbers of 4 bits have steps of
    128 columns, whatever it is.
    """
    total = zeros(BLOCK_OUT, BLOCK_ROWS)
    if LAYOUT == "fp8":
        inner = tl.arange(0, BLOCK_K)
        x_IT = x_T[None, :] + inner[:, None]
        numbers_OI = numbers_O[:, None] + inner[None, :]
        scale_O1 = load_scales(scales_O, is_out_O1, EVEN_OUT)
        for start in tl.range(first, last, BLOCK_K):
            x = load_rows(x_IT, is_row_1T, start, num_columns, EVEN_K)
            if EVEN_K and EVEN_OUT:
                number = tl.load(numbers_OI + start)
            else:
                is_column_1I = (start + inner < num_columns)[None, :]
                number = tl.load(numbers_OI + start, mask=is_out_O1 & is_column_1I, other=0)
            if GROUP > 0:
                scale_O1 = load_scales(scales_O + start // GROUP, is_out_O1, EVEN_OUT)
            value = number.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale_O1
            total = tl.dot(value.to(x.dtype), x, total, input_precision="ieee")
    else:
        inner = tl.arange(0, 32)
        x_IT = x_T[None, :] + inner[:, None]
        numbers_ON = numbers_O[:, None] + inner[None, :]
        word_O1 = load_scales(scales_O, is_out_O1, EVEN_OUT)
        for start in tl.range(first, last, 128):
            if GROUP > 0:
                word_O1 = load_scales(scales_O + start // GROUP, is_out_O1, EVEN_OUT)
            for part in tl.static_range(2):
                column = start + 64 * part
                low_x = load_rows(x_IT, is_row_1T, column, num_columns, EVEN_K)
                high_x = load_rows(x_IT, is_row_1T, column + 32, num_columns, EVEN_K)
                if EVEN_OUT:
                    pair = tl.load(numbers_ON + column // 2).to(tl.int32)
                else:
                    pair = tl.load(numbers_ON + column // 2, mask=is_out_O1, other=0).to(tl.int32)
                low_scale, high_scale = word_O1, word_O1
                if LAYOUT == "mxfp4":
                    low_scale = fp4_scale(word_O1, 2 * part)
                    high_scale = fp4_scale(word_O1, 2 * part + 1)
                low = four_bits(pair & 15, low_scale, word_O1, LAYOUT, SCALE)
                high = four_bits(pair >> 4, high_scale, word_O1, LAYOUT, SCALE)
                total = tl.dot(low.to(low_x.dtype), low_x, total, input_precision="ieee")
                total = tl.dot(high.to(high_x.dtype), high_x, total, input_precision="ieee")
    return total


def tensors_of(weight: Weight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what a kernel reads of a weight: its values, or its numbers and scales."""
    if isinstance(weight, torch.Tensor):
        return weight, None
    return weight.numbers, weight.scales


def layout_options(weight: Weight) -> dict[str, Any]:
    """Return the constants of a kernel that say how a weight is packed."""
    if isinstance(weight, torch.Tensor):
        return {"LAYOUT": "plain", "SCALE": "", "SCALE_ROWS": 1, "SCALE_COLUMNS": 0}
    layout = weight.layout
    return {
        "LAYOUT": layout.kind,
        "SCALE": layout.scale_dtype,
        "SCALE_ROWS": layout.rows,
        "SCALE_COLUMNS": layout.num_splittable,
    }


def step_of(weight: Weight, tile: Tile) -> int:
    """Return the columns of a step of the loop over a weight's columns."""
    is_four_bits = not isinstance(weight, torch.Tensor) and weight.layout.kind != "fp8"
    return STEP if is_four_bits else tile.block_k
