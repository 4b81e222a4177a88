"""The steps of a product's program: sum a tile and store it.

Promises: sums run over ascending columns in float32, whatever the tile and however it is loaded.
Does not know: which tile a program has (`gemm.product_kernel`).

Legend: T rows, O output features, I input features (the contraction), Z splits of I.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefetch_lines(pointers):
    """Ask for the cache lines of these addresses; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def zeros(BLOCK_OUT: tl.constexpr, ROWS: tl.constexpr):
    """The initial sum; with no rows a dummy that is not read."""
    rows: tl.constexpr = ROWS if ROWS > 0 else 1
    return tl.zeros((BLOCK_OUT, rows), dtype=tl.float32)


@triton.jit
def accumulate(
    x_IT,
    more_IT,
    weight_OI,
    is_row_1T,
    is_out_O1,
    first_row,
    first_out,
    first,
    last,
    num_columns,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MORE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    BY_COPY_ENGINE: tl.constexpr,
):
    """The sums over columns first to last, in ascending order: float32 [BLOCK_OUT, BLOCK_ROWS], and of
    the MORE_ROWS rows behind these."""
    total, more = zeros(BLOCK_OUT, BLOCK_ROWS), zeros(BLOCK_OUT, MORE_ROWS)
    for start in tl.range(first, last, BLOCK_K):
        if BY_COPY_ENGINE:
            x = x_IT.load([first_row, start]).T
            weight = weight_OI.load([first_out, start])
        elif EVEN_K:
            x = tl.load(x_IT + start, mask=is_row_1T, other=0.0)
            if EVEN_OUT:
                weight = tl.load(weight_OI + start)
            else:
                weight = tl.load(weight_OI + start, mask=is_out_O1, other=0.0)
        else:
            is_column = start + tl.arange(0, BLOCK_K) < num_columns
            x = tl.load(x_IT + start, mask=is_row_1T & is_column[:, None], other=0.0)
            is_weight = is_out_O1 & is_column[None, :]
            weight = tl.load(weight_OI + start, mask=is_weight, other=0.0)
        total = tl.dot(weight, x, total, input_precision="ieee")
        if MORE_ROWS > 0:
            more_x = more_IT.load([first_row + BLOCK_ROWS, start]).T
            more = tl.dot(weight, more_x, more, input_precision="ieee")
    return total, more


@triton.jit
def accumulate_pairs(
    x_blocks,
    more_blocks,
    weight_blocks,
    first_row,
    first_out,
    num_out,
    last,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MORE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sums of rows of the gate and of the same rows of "up", as `accumulate`; their weights are two
    blocks of one matrix."""
    gate, more_gate = zeros(BLOCK_OUT, BLOCK_ROWS), zeros(BLOCK_OUT, MORE_ROWS)
    up, more_up = zeros(BLOCK_OUT, BLOCK_ROWS), zeros(BLOCK_OUT, MORE_ROWS)
    for start in tl.range(0, last, BLOCK_K):
        x = x_blocks.load([first_row, start]).T
        gate_weight = weight_blocks.load([first_out, start])
        up_weight = weight_blocks.load([num_out + first_out, start])
        gate = tl.dot(gate_weight, x, gate, input_precision="ieee")
        up = tl.dot(up_weight, x, up, input_precision="ieee")
        if MORE_ROWS > 0:
            more_x = more_blocks.load([first_row + BLOCK_ROWS, start]).T
            more_gate = tl.dot(gate_weight, more_x, more_gate, input_precision="ieee")
            more_up = tl.dot(up_weight, more_x, more_up, input_precision="ieee")
    return gate, up, more_gate, more_up


@triton.jit
def store(
    total,
    out_ZTO,
    split,
    first_row,
    num_rows,
    first_out,
    num_out,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
):
    """Store float32 [OUT, ROWS] to the rows and columns of the tile."""
    row_T, out_O = first_row + tl.arange(0, ROWS), first_out + tl.arange(0, OUT)
    out_row_T = (split.to(tl.int64) * num_rows + row_T) * num_out
    out_TO = out_ZTO + out_row_T[:, None] + out_O[None, :]
    is_inside_TO = (row_T < num_rows)[:, None] & (out_O < num_out)[None, :]
    tl.store(out_TO, tl.trans(total).to(out_ZTO.dtype.element_ty), mask=is_inside_TO)


@triton.jit
def bias_of(bias_O, row_O, is_inside_O):
    """The biases of these rows of weights, float32 [O, 1]."""
    bias = tl.load(bias_O + row_O, mask=is_inside_O, other=0.0)
    return bias.to(tl.float32)[:, None]
