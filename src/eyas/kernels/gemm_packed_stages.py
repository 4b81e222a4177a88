"""Products of few rows with FP8 weights on a Hopper device, whose weights the copy engine brings.

Promises: the bits of `gemm.product` and `gemm.gated_product` with the same weight: sums of 128 columns
by the same instruction, in the same order, each times its scale (`gemm_packed`). With `pdl` the first
stages are on their way before the kernel before has ended, which must not write weights.
Does not know: which tile is whose (`tiles`).

One warp asks for blocks, four others compute; the first meets the others at the barriers of stages
alone. All four have read a stage when it is given back: an arrival stands behind a barrier of its
warps, which Triton places before it (a test reads the assembler's text). A thread's part of the left
operand, 16 bytes of a row, is read from shared memory without conflicts: neighbouring threads read rows
that are four apart, so the rows of a tile stand in another order on the M side of the instruction
(`_place`). Of a gate and its "up" the same rows stand eight apart there, so that one thread has both.

Legend: T rows, O output features, I input features (the contraction), Z splits of I, Q stages, W words,
M rows of the instruction, N its columns, G scales of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra import cuda

from eyas.kernels.gate import gated
from eyas.kernels.gemm_warpgroups import WARPS, shared_layout
from eyas.kernels.launch import launch_options
from eyas.kernels.packed import STEP, PackedWeight
from eyas.kernels.tiles import Tile
from eyas.kernels.unpack import FP8_TO_BFLOAT16, FP8_TO_FLOAT16, TWO_PAIRS

OUT = 64
REGISTERS = 64
"""Of a thread, of which a program has 256: four programs share a multiprocessor."""
_OUT = gl.constexpr(OUT)
_WORDS = gl.constexpr(STEP // 4)
_COLUMNS = gl.constexpr(STEP)
_gated = gluon.jit(gated.fn)
"""The same text in this language."""


@gluon.jit
def _load_words(blocks, memory, place, stage, block, is_wanted, GATED: gl.constexpr):
    """Ask for a tile's words of a block of columns; the barrier of the stage counts their bytes, and
    those of the rows."""
    x_QTI, words_QOW, full_Q = memory[0], memory[1], memory[2]
    first_out, first_column, num_out = place[1], place[2], place[3]
    OUT: gl.constexpr = words_QOW.shape[1]
    HALF: gl.constexpr = OUT // 2
    BYTES: gl.constexpr = (OUT + 2 * x_QTI.shape[1]) * _COLUMNS
    full, words_OW = full_Q.index(stage), words_QOW.index(stage)
    word = (first_column + block * _COLUMNS) // 4
    mbarrier.expect(full, BYTES, pred=is_wanted)
    if GATED:
        gate_HW, up_HW = words_OW.slice(0, HALF), words_OW.slice(HALF, HALF)
        tma.async_copy_global_to_shared(blocks[1], [first_out, word], full, gate_HW, pred=is_wanted)
        tma.async_copy_global_to_shared(
            blocks[1], [num_out + first_out, word], full, up_HW, pred=is_wanted
        )
    else:
        tma.async_copy_global_to_shared(
            blocks[1], [first_out, word], full, words_OW, pred=is_wanted
        )


@gluon.jit
def _load_rows(blocks, memory, place, stage, block, is_wanted):
    """Ask for the rows' numbers of a block of columns."""
    x_QTI, full_Q = memory[0], memory[2]
    column = place[2] + block * _COLUMNS
    tma.async_copy_global_to_shared(
        blocks[0], [place[0], column], full_Q.index(stage), x_QTI.index(stage), pred=is_wanted
    )


@gluon.jit
def _place(row_M, GATED: gl.constexpr):
    """The row of the tile that stands at a row of the instruction."""
    of_eight = ((row_M & 1) << 2) | ((row_M & 7) >> 1)
    if GATED:
        return ((row_M >> 3) & 1) * 32 + (row_M >> 4) * 8 + of_eight
    return (row_M & 56) + of_eight


@gluon.jit
def _operand(words_OW, operand: gl.constexpr, dtype: gl.constexpr, GATED: gl.constexpr):
    """The numbers of a stage's words as the left operand, [M, I]; nothing moves between threads."""
    if GATED:
        layout: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [32, 0], [0, 16]],
            [[0, 4], [0, 8], [4, 0], [1, 0], [2, 0]],
            [[8, 0], [16, 0]],
            [],
            [64, 32],
        )
        places = gl.reshape(words_OW.load(layout), (2, 4, 2, 4, _WORDS))
        words_MW = gl.reshape(gl.permute(places, (1, 0, 3, 2, 4)), (64, _WORDS))
    else:
        layout: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [8, 0], [0, 16]],
            [[0, 4], [0, 8], [4, 0], [1, 0], [2, 0]],
            [[16, 0], [32, 0]],
            [],
            [64, 32],
        )
        places = gl.reshape(words_OW.load(layout), (4, 2, 2, 4, _WORDS))
        words_MW = gl.reshape(gl.permute(places, (0, 1, 3, 2, 4)), (64, _WORDS))
    if dtype == gl.bfloat16:
        a, b, c, d = gl.inline_asm_elementwise(
            FP8_TO_BFLOAT16, TWO_PAIRS, [words_MW], dtype=(gl.bfloat16,) * 4, is_pure=True, pack=1
        )
    else:
        a, b, c, d = gl.inline_asm_elementwise(
            FP8_TO_FLOAT16, TWO_PAIRS, [words_MW], dtype=(gl.float16,) * 4, is_pure=True, pack=1
        )
    pairs = gl.join(gl.join(a, c), gl.join(b, d))
    numbers = gl.permute(gl.reshape(pairs, (64, 2, 4, 4, 2, 2)), (0, 1, 3, 4, 2, 5))
    return gl.convert_layout(gl.reshape(numbers, (64, _COLUMNS)), operand, assert_trivial=True)


@gluon.jit
def _bring(
    blocks,
    memory,
    place,
    num_blocks,
    GATED: gl.constexpr,
    PDL: gl.constexpr,
):
    """Ask for all blocks, each as soon as the warps that compute have left its stage."""
    full_Q, empty_Q = memory[2], memory[3]
    STAGES: gl.constexpr = full_Q.shape[0]
    for early in gl.static_range(STAGES):
        _load_words(blocks, memory, place, early, early, early < num_blocks, GATED)
    if PDL:  # weights do not depend on the kernel before; rows do
        cuda.gdc_wait()
    for early in gl.static_range(STAGES):
        _load_rows(blocks, memory, place, early, early, early < num_blocks)
    stage, phase = 0, 0
    for block in range(STAGES, num_blocks):
        mbarrier.wait(empty_Q.index(stage), phase)
        _load_words(blocks, memory, place, stage, block, True, GATED)
        _load_rows(blocks, memory, place, stage, block, True)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        phase = gl.where(stage == 0, phase ^ 1, phase)


@gluon.jit
def _sum(
    memory,
    pointers,
    sizes,
    SCALE_ROWS: gl.constexpr,
    SCALE_COLUMNS: gl.constexpr,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    PDL: gl.constexpr,
):
    """Add up the blocks as they arrive, and store the sums."""
    x_QTI, words_QOW, full_Q, empty_Q = memory
    scales_OG, bias_O, out_ZTO = pointers
    split, first_row, first_out, first_column, num_blocks = sizes[:5]
    num_rows, num_out, num_columns, scales_stride = sizes[5:]
    STAGES: gl.constexpr = full_Q.shape[0]
    OUT: gl.constexpr = words_QOW.shape[1]
    ROWS: gl.constexpr = x_QTI.shape[1]
    dtype: gl.constexpr = x_QTI.dtype
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16]
    )
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    place_M = _place(gl.arange(0, OUT, layout=gl.SliceLayout(1, sums)), GATED)
    if GATED:
        weight_row_M = first_out + place_M % 32 + place_M // 32 * num_out
        last_row = 2 * num_out - 1
    else:
        weight_row_M = first_out + place_M
        last_row = num_out - 1
    weight_row_M = gl.minimum(weight_row_M, last_row)
    scales_M = scales_OG + weight_row_M // SCALE_ROWS
    GROUP: gl.constexpr = SCALE_COLUMNS if SCALE_COLUMNS > 0 else 1 << 30  # one of all columns
    last_group = (num_columns - 1) // GROUP
    scale_M = gl.load(scales_M + gl.minimum(first_column // GROUP, last_group) * scales_stride)
    zeros_MN = gl.zeros((OUT, ROWS), gl.float32, sums)
    total_MN = zeros_MN
    stage, phase = 0, 0
    for block in range(num_blocks):
        next_scale_M = scale_M
        if SCALE_COLUMNS > 0:
            column = first_column + (block + 1) * _COLUMNS
            group = gl.minimum(column // GROUP, last_group)
            next_scale_M = gl.load(scales_M + group * scales_stride)
        mbarrier.wait(full_Q.index(stage), phase)
        numbers_MI = _operand(words_QOW.index(stage), operand, dtype, GATED)
        x_IN = x_QTI.index(stage).permute((1, 0))
        sums_MN = warpgroup_mma(numbers_MI, x_IN, zeros_MN, use_acc=False, is_async=True)
        sums_MN = warpgroup_mma_wait(num_outstanding=0, deps=[sums_MN])
        mbarrier.arrive(empty_Q.index(stage), count=1)
        scale_MN = gl.expand_dims(scale_M, 1).broadcast_to(sums_MN.shape)
        total_MN = gl.fma(sums_MN, scale_MN, total_MN)
        scale_M = next_scale_M
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        phase = gl.where(stage == 0, phase ^ 1, phase)
    if PDL:  # not earlier, as in `gemm.product_kernel`
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()  # for what may be written
    if HAS_BIAS:  # for the first part of a sum alone
        bias_M = gl.load(bias_O + weight_row_M).to(gl.float32)
        bias_M = gl.where(split == 0, bias_M, 0.0)
        total_MN += gl.expand_dims(bias_M, 1)
    kind: gl.constexpr = out_ZTO.dtype.element_ty
    if GATED:
        pairs = gl.permute(gl.reshape(total_MN, (4, 2, 8, ROWS)), (0, 2, 3, 1))
        gate, up = gl.split(pairs)
        out = gl.reshape(_gated(gate.to(dtype), up.to(dtype)).to(kind), (32, ROWS))
        row = gl.arange(0, 32, layout=gl.SliceLayout(1, out.type.layout))
    else:
        out = total_MN.to(kind)
        row = gl.arange(0, OUT, layout=gl.SliceLayout(1, out.type.layout))
    out_M = first_out + _place(row, False)
    row_N = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(0, out.type.layout))
    at_N = (split.to(gl.int64) * num_rows + row_N) * num_out
    is_inside = (out_M < num_out)[:, None] & (row_N < num_rows)[None, :]
    gl.store(out_ZTO + at_N[None, :] + out_M[:, None], out, mask=is_inside)


@gluon.jit(do_not_specialize=["num_rows"])
def staged_product_kernel(
    x_blocks,
    word_blocks,
    scales_OG,
    bias_O,
    out_ZTO,
    num_rows,
    num_out,
    num_columns,
    split_columns,
    scales_stride,
    SCALE_ROWS: gl.constexpr,
    SCALE_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    PDL: gl.constexpr,
):
    """One program a tile of rows, a tile of weight rows and a split, in this order of the grid.

    GATED: half of the weight rows are the gate's, the other half those of "up". x_blocks, word_blocks:
    tensor descriptors, of a tile's rows and of its words (half of them where GATED).
    """
    ROWS: gl.constexpr = x_blocks.block_shape[0]
    OUT: gl.constexpr = _OUT
    split = gl.program_id(2)
    first_column = split * split_columns
    end = gl.minimum(first_column + split_columns, num_columns)
    num_blocks = gl.maximum(end - first_column + _COLUMNS - 1, 0) // _COLUMNS
    first_out = gl.program_id(1) * (OUT // 2 if GATED else OUT)
    first_row = gl.program_id(0) * ROWS
    x_QTI = gl.allocate_shared_memory(x_blocks.dtype, [STAGES, ROWS, _COLUMNS], x_blocks.layout)
    words_QOW = gl.allocate_shared_memory(gl.int32, [STAGES, OUT, _WORDS], word_blocks.layout)
    full_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full_Q.index(stage), count=1)
        mbarrier.init(empty_Q.index(stage), count=1)
    blocks = (x_blocks, word_blocks)
    memory = (x_QTI, words_QOW, full_Q, empty_Q)
    place = (first_row, first_out, first_column, num_out)
    sizes = (split, first_row, first_out, first_column, num_blocks)
    sizes += (num_rows, num_out, num_columns, scales_stride)
    pointers = (scales_OG, bias_O, out_ZTO)
    gl.warp_specialize(
        [
            (_sum, (memory, pointers, sizes, SCALE_ROWS, SCALE_COLUMNS, GATED, HAS_BIAS, PDL)),
            (_bring, (blocks, memory, place, num_blocks, GATED, PDL)),
        ],
        [1],
        [24],
    )


def layouts(num_rows: int, num_out: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """How a stage's rows and words lie in shared memory."""
    rows = shared_layout(num_rows, dtype, STEP)
    return rows, shared_layout(num_out, torch.int32, STEP // 4)


def launch(
    x_TI: torch.Tensor,
    weight: PackedWeight,
    bias_O: torch.Tensor | None,
    out: torch.Tensor,
    num_out: int,
    tile: Tile,
    split_columns: int,
    *,
    num_splits: int,
    is_gated: bool,
    pdl: bool,
) -> None:
    """The same bits as `gemm.product` and `gemm.gated_product` into `out`, which is [Z, T, O] or has
    one split; x is aligned as the copy engine needs it."""
    assert tile.block_out == OUT and tile.block_k == STEP and tile.num_warps == WARPS
    num_rows, num_columns = x_TI.shape
    columns_of_tile = OUT // 2 if is_gated else OUT
    of_rows, of_words = layouts(tile.block_rows, columns_of_tile, x_TI.dtype)
    words = weight.numbers.view(torch.int32)
    grid = (-(-num_rows // tile.block_rows), -(-num_out // columns_of_tile), num_splits)
    staged_product_kernel[grid](
        TensorDescriptor.from_tensor(x_TI, [tile.block_rows, STEP], of_rows),
        TensorDescriptor.from_tensor(words, [columns_of_tile, STEP // 4], of_words),
        weight.scales,
        out if bias_O is None else bias_O,
        out,
        num_rows,
        num_out,
        num_columns,
        split_columns,
        weight.scales.stride(1),
        SCALE_ROWS=weight.layout.rows,
        SCALE_COLUMNS=weight.layout.num_splittable,
        STAGES=tile.num_stages,
        GATED=is_gated,
        HAS_BIAS=bias_O is not None,
        PDL=pdl,
        num_warps=WARPS,
        maxnreg=REGISTERS,
        **launch_options(pdl),
    )
