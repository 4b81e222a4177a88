"""The sum of a tile whose weights are packed: `gemm_tile.accumulate` with weights made in registers.

Promises: the order of a sum does not depend on the tile: partial sums of STEP columns, ascending, in
float32, each times the scale of its block and added in ascending order (FP8); or sums of the values of
`ops.dequantise` over ascending columns (4 bits). `ops.dequantise.product` defines both.
Does not know: which tile a program has, what is done with the sum.

A tile's numbers come from memory as they are stored, and become the left operand of the matrix
instruction where they are, in registers; only numbers, and scales of 4-bit ones, pass through shared
memory. Numbers of FP8 and FP4 are stored in such an order (`ops.dequantise.arrange`) that 16 bytes hold
those that one thread needs, and that a word's numbers become pairs of 16 bits by shifts and masks,
without moving between words. So that all loads can run ahead, none is narrower than 4 bytes: scales of
16 and 8 bits are read as words.

Legend: T rows, O output features, I input features (the contraction), N words or bytes of numbers, W
words.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from eyas.kernels.gemm_tile import zeros
from eyas.kernels.packed import STEP, Weight
from eyas.kernels.tiles import Tile
from eyas.kernels.unpack import FP4_SHRUNK, IS_COMPILED, fp4_values, fp8_numbers, integers


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
def load_words(
    words_OW,
    is_out_O1,
    column,
    num_columns,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """Load the words of STEP columns from `column` on, each of so many numbers."""
    if EVEN_OUT and EVEN_K:
        words = tl.load(words_OW + column // NUMBERS)
    elif EVEN_K:
        words = tl.load(words_OW + column // NUMBERS, mask=is_out_O1, other=0)
    else:
        words = tl.load(
            words_OW + column // NUMBERS, mask=is_out_O1 & (column < num_columns), other=0
        )
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

    x_T, numbers_O, scales_O: where each row's numbers and scales begin. GROUP: columns that share a
    scale or a word of scales, a multiple of STEP; 0 are all. NUMBERS: of a word or byte. BLOCK_K: a
    multiple of STEP. NUM_STAGES: steps of the loop whose loads are under way; but for FP4 the launch
    says that.
    """
    total = zeros(BLOCK_OUT, BLOCK_ROWS)
    if LAYOUT == "int4":
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
                low = integers(pair & 15, word_O1, SCALE)
                high = integers(pair >> 4, word_O1, SCALE)
                total = tl.dot(low.to(low_x.dtype), low_x, total, input_precision="ieee")
                total = tl.dot(high.to(high_x.dtype), high_x, total, input_precision="ieee")
    else:
        dtype: tl.constexpr = x_T.dtype.element_ty
        IS_FP8: tl.constexpr = LAYOUT == "fp8"
        x_IT = x_T[None, :] + tl.arange(0, 128)[:, None]
        words_OW = numbers_O[:, None] + tl.arange(0, 128 // NUMBERS)[None, :]
        # Scales of FP8 are loaded one block ahead, to registers. With stages of the loop's own they
        # would pass through shared memory, and one program less would have room on a multiprocessor.
        stages: tl.constexpr = None if IS_FP8 else NUM_STAGES
        AHEAD: tl.constexpr = 128 if IS_FP8 else 0
        first_scale_O = scales_O
        if GROUP > 0:
            first_scale_O += tl.minimum(first, num_columns - 1) // GROUP
        scale_O1 = load_scales(first_scale_O, is_out_O1, EVEN_OUT)
        for start in tl.range(first, last, BLOCK_K, num_stages=stages):
            for step in tl.static_range(BLOCK_K // 128):
                column = start + 128 * step
                x = load_rows(x_IT, is_row_1T, column, num_columns, EVEN_K)
                words_now_OW = load_words(
                    words_OW, is_out_O1, column, num_columns, EVEN_OUT, EVEN_K, NUMBERS
                )
                next_O1 = scale_O1
                if GROUP > 0:
                    group = (column + AHEAD) // GROUP
                    if AHEAD > 0 or not EVEN_K:
                        group = tl.minimum(group, (num_columns - 1) // GROUP)
                    next_O1 = load_scales(scales_O + group, is_out_O1, EVEN_OUT)
                if IS_FP8:
                    numbers = fp8_numbers(words_now_OW, dtype)
                    partial = tl.dot(numbers, x, input_precision="ieee")
                    total = tl.fma(partial, tl.broadcast_to(scale_O1, partial.shape), total)
                else:
                    values = fp4_values(words_now_OW, next_O1, dtype)
                    total = tl.dot(values, x, total, input_precision="ieee")
                scale_O1 = next_O1
        if IS_COMPILED and not IS_FP8 and dtype == tl.bfloat16:
            total *= FP4_SHRUNK
    return total


def tensors_of(weight: Weight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what a kernel reads of a weight: its values, or its numbers (words, and bytes of "int4")
    and scales."""
    if isinstance(weight, torch.Tensor):
        return weight, None
    is_in_words = weight.layout.kind != "int4"
    return weight.numbers.view(torch.int32) if is_in_words else weight.numbers, weight.scales


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
        "NUMBERS": {"fp8": 4, "mxfp4": 8, "int4": 2}[layout.kind],
    }


def step_of(weight: Weight, tile: Tile) -> int:
    """Return the columns of a step of the loop over a weight's columns."""
    if isinstance(weight, torch.Tensor):
        return tile.block_k
    return STEP if weight.layout.kind == "int4" else max(STEP, tile.block_k)
