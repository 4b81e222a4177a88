"""Products of `gemm` whose warpgroups have 64 rows each, for a Hopper device.

Promises: the bits of `gemm.product`, wherever the matrix instruction adds up alike on both its sides,
which `layers.gemm.products` tries at every start: rows stand on its M side here, weights on its N side,
so that all of a tile's weights pass it once for 64 rows, and shared memory is asked for less (decision
0014).
Does not know: which tile is whose (`tiles`).

Written in Gluon, Triton's lower language, since Triton's own pipeline gives all warps one instruction.

Legend: T rows, O output features, K input features (the contraction), S splits of K, Q stages, G
warpgroups, P = Q * G; H half of a tile's weights, where they are gate and up.
"""

from __future__ import annotations

from functools import cache
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
from eyas.kernels.launch import launch_options
from eyas.kernels.tiles import GROUP_ROWS, Tile

BLOCK_K = 64
"""Columns of a stage: as wide as the swizzle of shared memory."""
WARPS = 4
"""Of a warpgroup."""
_gated = gluon.jit(gated.fn)
"""The same text in this language."""


@gluon.jit
def _load_weights(
    blocks, memory, stage, first_out, num_out, column, is_wanted, GATED: gl.constexpr
):
    """Ask for a tile's weights of BLOCK_K columns; the barrier of the stage counts their bytes."""
    weight_blocks, weight_QOK, full_Q = blocks[1], memory[1], memory[2]
    barrier = full_Q.index(stage)
    if GATED:
        HALF: gl.constexpr = weight_QOK.shape[1] // 2
        gate_HK = weight_QOK.index(stage).slice(0, HALF)
        up_HK = weight_QOK.index(stage).slice(HALF, HALF)
        tma.async_copy_global_to_shared(
            weight_blocks, [first_out, column], barrier, gate_HK, pred=is_wanted
        )
        tma.async_copy_global_to_shared(
            weight_blocks, [num_out + first_out, column], barrier, up_HK, pred=is_wanted
        )
    else:
        tma.async_copy_global_to_shared(
            weight_blocks, [first_out, column], barrier, weight_QOK.index(stage), pred=is_wanted
        )


@gluon.jit
def _load_rows(blocks, memory, stage, first_row, column, is_wanted, GROUPS: gl.constexpr):
    """The same for the rows of all warpgroups."""
    x_blocks, x_PTK, full_Q = blocks[0], memory[0], memory[2]
    for g in gl.static_range(GROUPS):
        tma.async_copy_global_to_shared(
            x_blocks,
            [first_row + g * x_PTK.shape[1], column],
            full_Q.index(stage),
            x_PTK.index(stage * GROUPS + g),
            pred=is_wanted,
        )


@gluon.jit
def _bias_of(bias_O, first_out, num_out, total_TO):
    """The biases of a tile's columns, float32 [1, O]."""
    out_O = gl.arange(0, total_TO.shape[1], layout=gl.SliceLayout(0, total_TO.type.layout))
    out_O += first_out
    return gl.load(bias_O + out_O, mask=out_O < num_out, other=0.0).to(gl.float32)[None, :]


@gluon.jit
def _run_group(
    blocks,
    memory,
    place,
    GROUP: gl.constexpr,
    GROUPS: gl.constexpr,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    PDL: gl.constexpr,
):
    """What a warpgroup does: the sums of its 64 rows, and their place. The first also asks for the
    blocks of all, one stage as soon as the others have left it."""
    bias_O, out_STO = blocks[2], blocks[3]
    x_PTK, weight_QOK, full_Q, empty_Q = memory
    split, first_row, first_out, first_column, num_blocks, num_rows, num_out = place
    STAGES: gl.constexpr = weight_QOK.shape[0]
    OUT: gl.constexpr = weight_QOK.shape[1]
    ROWS: gl.constexpr = x_PTK.shape[1]
    COLUMNS: gl.constexpr = weight_QOK.shape[2]
    BYTES: gl.constexpr = (GROUPS * ROWS + OUT) * COLUMNS * 2
    gl.static_assert(STAGES >= 2)
    if GROUP == 0:
        for early in gl.static_range(STAGES - 1):
            is_wanted = early < num_blocks
            column = first_column + early * COLUMNS
            mbarrier.expect(full_Q.index(early), BYTES, pred=is_wanted)
            _load_weights(blocks, memory, early, first_out, num_out, column, is_wanted, GATED)
    if PDL:  # weights do not depend on the kernel before; rows do, and what may be written
        cuda.gdc_wait()
    if GROUP == 0:
        for early in gl.static_range(STAGES - 1):
            column = first_column + early * COLUMNS
            _load_rows(blocks, memory, early, first_row, column, early < num_blocks, GROUPS)
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, OUT, 16]
    )
    total_TO = gl.zeros((ROWS, OUT), gl.float32, sums)
    stage, phase = 0, 0
    for block in range(num_blocks):
        mbarrier.wait(full_Q.index(stage), phase)
        x_TK = x_PTK.index(stage * GROUPS + GROUP)
        weight_KO = weight_QOK.index(stage).permute((1, 0))
        total_TO = warpgroup_mma(x_TK, weight_KO, total_TO, is_async=True)
        total_TO = warpgroup_mma_wait(num_outstanding=1, deps=[total_TO])
        # The block before this one is summed, so its stage can take block + STAGES - 1.
        is_first_stage = stage == 0
        left = gl.where(is_first_stage, STAGES - 1, stage - 1)
        if GROUP == 0:
            is_wanted = block + STAGES - 1 < num_blocks
            column = first_column + (block + STAGES - 1) * COLUMNS
            left_phase = gl.where(is_first_stage, phase ^ 1, phase)
            mbarrier.wait(empty_Q.index(left), left_phase, pred=is_wanted & (block > 0))
            mbarrier.expect(full_Q.index(left), BYTES, pred=is_wanted)
            _load_weights(blocks, memory, left, first_out, num_out, column, is_wanted, GATED)
            _load_rows(blocks, memory, left, first_row, column, is_wanted, GROUPS)
        else:
            mbarrier.arrive(empty_Q.index(left), count=1, pred=block > 0)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        phase = gl.where(stage == 0, phase ^ 1, phase)
    total_TO = warpgroup_mma_wait(num_outstanding=0, deps=[total_TO])
    if PDL:  # not earlier, as in `gemm.product_kernel`
        cuda.gdc_launch_dependents()
    rounded: gl.constexpr = out_STO.dtype.element_ty
    if GATED:
        gate_and_up_TH2 = gl.permute(gl.reshape(total_TO, (ROWS, 2, OUT // 2)), (0, 2, 1))
        gate_TO, up_TO = gl.split(gate_and_up_TH2)
        if HAS_BIAS:
            gate_TO += _bias_of(bias_O, first_out, num_out, gate_TO)
            up_TO += _bias_of(bias_O + num_out, first_out, num_out, up_TO)
        out_TO = _gated(gate_TO.to(rounded), up_TO.to(rounded)).to(rounded)
    else:
        if HAS_BIAS:
            total_TO += _bias_of(bias_O, first_out, num_out, total_TO)
        out_TO = total_TO.to(rounded)
    row_T = gl.arange(0, ROWS, layout=gl.SliceLayout(1, out_TO.type.layout))
    row_T += first_row + GROUP * ROWS
    out_O = first_out + gl.arange(0, out_TO.shape[1], layout=gl.SliceLayout(0, out_TO.type.layout))
    place_T = (split.to(gl.int64) * num_rows + row_T) * num_out
    is_inside_TO = (row_T < num_rows)[:, None] & (out_O < num_out)[None, :]
    gl.store(out_STO + place_T[:, None] + out_O[None, :], out_TO, mask=is_inside_TO)


@gluon.jit(do_not_specialize=["num_rows"])
def grouped_product_kernel(
    x_blocks,
    weight_blocks,
    bias_O,
    out_STO,
    num_rows,
    num_out,
    num_columns,
    split_columns,
    GROUPS: gl.constexpr,
    OUT: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    PDL: gl.constexpr,
):
    """One program a tile of rows, a tile of weight rows and a split, in this order of the grid.

    OUT: weight rows of a tile. GATED: half of them are rows of the gate, the other half of "up".
    x_blocks, weight_blocks: tensor descriptors, of a warpgroup's rows and of a tile's weights (half of
    them where GATED).
    """
    ROWS: gl.constexpr = x_blocks.block_shape[0]
    COLUMNS: gl.constexpr = x_blocks.block_shape[1]
    split = gl.program_id(2)
    first_column = split * split_columns
    end = gl.minimum(first_column + split_columns, num_columns)
    num_blocks = (end - first_column + COLUMNS - 1) // COLUMNS
    first_out = gl.program_id(1) * (OUT // 2 if GATED else OUT)
    first_row = gl.program_id(0) * (GROUPS * ROWS)
    dtype: gl.constexpr = x_blocks.dtype
    x_PTK = gl.allocate_shared_memory(dtype, [STAGES * GROUPS, ROWS, COLUMNS], x_blocks.layout)
    weight_QOK = gl.allocate_shared_memory(dtype, [STAGES, OUT, COLUMNS], weight_blocks.layout)
    full_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full_Q.index(stage), count=1)
        mbarrier.init(empty_Q.index(stage), count=GROUPS - 1)
    blocks = (x_blocks, weight_blocks, bias_O, out_STO)
    memory = (x_PTK, weight_QOK, full_Q, empty_Q)
    place = (split, first_row, first_out, first_column, num_blocks, num_rows, num_out)
    REGISTERS: gl.constexpr = 65536 // (128 * GROUPS) // 8 * 8
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_run_group, (blocks, memory, place, 0, GROUPS, GATED, HAS_BIAS, PDL)),
                (_run_group, (blocks, memory, place, 1, GROUPS, GATED, HAS_BIAS, PDL)),
            ],
            [4],
            [REGISTERS],
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (_run_group, (blocks, memory, place, 0, GROUPS, GATED, HAS_BIAS, PDL)),
                (_run_group, (blocks, memory, place, 1, GROUPS, GATED, HAS_BIAS, PDL)),
                (_run_group, (blocks, memory, place, 2, GROUPS, GATED, HAS_BIAS, PDL)),
            ],
            [4, 4],
            [REGISTERS, REGISTERS],
        )
    else:
        gl.static_assert(GROUPS == 4)
        gl.warp_specialize(
            [
                (_run_group, (blocks, memory, place, 0, GROUPS, GATED, HAS_BIAS, PDL)),
                (_run_group, (blocks, memory, place, 1, GROUPS, GATED, HAS_BIAS, PDL)),
                (_run_group, (blocks, memory, place, 2, GROUPS, GATED, HAS_BIAS, PDL)),
                (_run_group, (blocks, memory, place, 3, GROUPS, GATED, HAS_BIAS, PDL)),
            ],
            [4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS],
        )


@cache
def shared_layout(num_rows: int, dtype: torch.dtype, num_columns: int = BLOCK_K) -> Any:
    """How a block of so many rows and columns lies in shared memory."""
    kinds = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.int32: gl.int32}
    return gl.NVMMASharedLayout.get_default_for([num_rows, num_columns], kinds[dtype])


def launch(
    x_TK: torch.Tensor,
    weight_OK: torch.Tensor,
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
    """The same bits as `gemm.product` and `gemm.gated_product` into `out`, which is [S, T, O] or has
    one split; x and weight are aligned as the copy engine needs them."""
    assert tile.block_k == BLOCK_K and tile.num_warps == WARPS * tile.block_rows // GROUP_ROWS
    num_rows, num_columns = x_TK.shape
    columns_of_tile = tile.block_out // 2 if is_gated else tile.block_out
    blocks = [
        TensorDescriptor.from_tensor(each, [high, BLOCK_K], shared_layout(high, each.dtype))
        for each, high in ((x_TK, GROUP_ROWS), (weight_OK, columns_of_tile))
    ]
    grid = (-(-num_rows // tile.block_rows), -(-num_out // columns_of_tile), num_splits)
    grouped_product_kernel[grid](
        *blocks,
        out if bias_O is None else bias_O,
        out,
        num_rows,
        num_out,
        num_columns,
        split_columns,
        GROUPS=tile.block_rows // GROUP_ROWS,
        OUT=tile.block_out,
        STAGES=tile.num_stages,
        GATED=is_gated,
        HAS_BIAS=bias_O is not None,
        PDL=pdl,
        num_warps=WARPS,
        **launch_options(pdl),
    )
