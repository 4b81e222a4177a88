"""Products of `gemm` for many rows on a Hopper device, by programs that compute one tile after another.

Promises: the bits of `gemm.product`, folded or in one split, and of `gemm.gated_product`, on the
condition of `gemm_warpgroups`: rows are on the M side of the matrix instruction, weights on its N side.
Does not know: which tile is whose (`tiles`).

There is a program for each multiprocessor, and blocks of its next tile arrive while one is stored. The
parts of a folded sum are added without leaving the multiprocessor. Registers hold no second sum of 64
rows and 256 weights, so one half of a warpgroup's total is in registers and the other in shared memory
(decision 0049). Results leave through the same shared memory, in whole rows.

Legend: T rows, O output features, K input features (the contraction), Q stages, G warpgroups, H half of
a tile's weights.
"""

from __future__ import annotations

from functools import cache

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
from eyas.kernels.gemm_warpgroups import BLOCK_K, WARPS, shared_layout
from eyas.kernels.launch import launch_options
from eyas.kernels.tiles import GROUP_ROWS, Tile

GROUPS = 2
"""Warpgroups of a program."""
NEIGHBOURS = 32
"""Row tiles that run next to each other, so that the tiles of all multiprocessors together have about
as many rows as weights, and the least is read from memory."""
_HIGH = gl.constexpr(GROUP_ROWS)
_gated = gluon.jit(gated.fn)
"""The same text in this language."""


@gluon.jit
def _tile_of(unit, sizes, NEIGHBOURS: gl.constexpr):
    """The row tile and the weight tile of a unit: rows of a group first, then weights, then groups."""
    row_tiles, weight_tiles = sizes[1], sizes[2]
    of_group = NEIGHBOURS * weight_tiles
    first = unit // of_group * NEIGHBOURS
    high = gl.maximum(
        gl.minimum(row_tiles - first, NEIGHBOURS), 1
    )  # beyond the last unit it is none
    rest = unit % of_group
    return first + rest % high, rest // high


@gluon.jit
def _load(blocks, memory, sizes, stage, wanted, GATED: gl.constexpr):
    """Ask for the wanted block, if there is one; the barrier of the stage counts its bytes."""
    x_blocks, weight_blocks = blocks[0], blocks[1]
    x_QTK, weight_QOK, full_Q = memory[0], memory[1], memory[2]
    unit, block, row_tile, weight_tile = wanted
    num_units, num_out = sizes[0], sizes[3]
    ROWS: gl.constexpr = x_QTK.shape[1]
    OUT: gl.constexpr = weight_QOK.shape[1]
    COLUMNS: gl.constexpr = weight_QOK.shape[2]
    HALF: gl.constexpr = OUT // 2
    is_wanted, column = unit < num_units, block * COLUMNS
    full, weight_OK = full_Q.index(stage), weight_QOK.index(stage)
    mbarrier.expect(full, (ROWS + OUT) * COLUMNS * 2, pred=is_wanted)
    tma.async_copy_global_to_shared(
        x_blocks, [row_tile * ROWS, column], full, x_QTK.index(stage), pred=is_wanted
    )
    if GATED:
        gate, up = weight_tile * HALF, num_out + weight_tile * HALF
        tma.async_copy_global_to_shared(
            weight_blocks, [gate, column], full, weight_OK.slice(0, HALF), pred=is_wanted
        )
        tma.async_copy_global_to_shared(
            weight_blocks, [up, column], full, weight_OK.slice(HALF, HALF), pred=is_wanted
        )
    else:
        tma.async_copy_global_to_shared(
            weight_blocks, [weight_tile * OUT, column], full, weight_OK, pred=is_wanted
        )


@gluon.jit
def _after(wanted, sizes, NEIGHBOURS: gl.constexpr):
    """The block that follows: of the same unit, or the first one of the program's next unit."""
    unit, block, row_tile, weight_tile = wanted
    block += 1
    if block == sizes[5]:
        block = gl.to_tensor(0)
        unit += gl.num_programs(0)
        row_tile, weight_tile = _tile_of(unit, sizes, NEIGHBOURS)
    return unit, block, row_tile, weight_tile


@gluon.jit
def _zeros(OUT: gl.constexpr):
    """The initial sums of a warpgroup, float32 [T, O]."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, OUT, 16]
    )
    return gl.zeros((_HIGH, OUT), gl.float32, layout)


@gluon.jit
def _sum(
    blocks,
    memory,
    sizes,
    num_blocks,
    place,
    wanted,
    GROUP: gl.constexpr,
    NEIGHBOURS: gl.constexpr,
    GATED: gl.constexpr,
):
    """The sums of a warpgroup's rows over the next blocks, float32 [T, O], and `place` and `wanted`
    after them. The first warpgroup also asks for blocks, one stage as soon as the other has left it.

    place: the stage of the next block, its phase, and whether there was a block before it."""
    x_QTK, weight_QOK, full_Q, empty_Q = memory[0], memory[1], memory[2], memory[3]
    stage, phase, is_any = place
    STAGES: gl.constexpr = weight_QOK.shape[0]
    OUT: gl.constexpr = weight_QOK.shape[1]
    sums_TO = _zeros(OUT)
    for _ in range(num_blocks):
        mbarrier.wait(full_Q.index(stage), phase)
        x_TK = x_QTK.index(stage).slice(GROUP * _HIGH, _HIGH)
        weight_KO = weight_QOK.index(stage).permute((1, 0))
        sums_TO = warpgroup_mma(x_TK, weight_KO, sums_TO, is_async=True)
        sums_TO = warpgroup_mma_wait(num_outstanding=1, deps=[sums_TO])
        # The block before this one is summed, so its stage can take the wanted one.
        is_first_stage = stage == 0
        left = gl.where(is_first_stage, STAGES - 1, stage - 1)
        if GROUP == 0:
            left_phase = gl.where(is_first_stage, phase ^ 1, phase)
            mbarrier.wait(empty_Q.index(left), left_phase, pred=is_any)
            _load(blocks, memory, sizes, left, wanted, GATED)
            wanted = _after(wanted, sizes, NEIGHBOURS)
        else:
            mbarrier.arrive(empty_Q.index(left), count=1, pred=is_any)
        is_any = stage >= 0
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        phase = gl.where(stage == 0, phase ^ 1, phase)
    sums_TO = warpgroup_mma_wait(num_outstanding=0, deps=[sums_TO])
    return sums_TO, (stage, phase, is_any), wanted


@gluon.jit
def _halves(sums_TO):
    """The two halves of the columns; nothing moves."""
    halves_TH2 = gl.permute(gl.reshape(sums_TO, (_HIGH, 2, sums_TO.shape[1] // 2)), (0, 2, 1))
    return gl.split(halves_TH2)


@gluon.jit
def _with_bias(sums_TH, bias_O, first_out, num_out):
    out_H = gl.arange(0, sums_TH.shape[1], layout=gl.SliceLayout(0, sums_TH.type.layout))
    out_H += first_out
    bias_H = gl.load(bias_O + out_H, mask=out_H < num_out, other=0.0)
    return sums_TH + bias_H.to(gl.float32)[None, :]


@gluon.jit
def _store(kept_TH, out_TO, first_row, first_out, num_rows, num_out):
    """Store what a warpgroup has in shared memory, in whole rows."""
    HALF: gl.constexpr = kept_TH.shape[1]
    NUMBERS: gl.constexpr = 128 // kept_TH.dtype.primitive_bitwidth
    LANES: gl.constexpr = HALF // NUMBERS
    layout: gl.constexpr = gl.BlockedLayout([1, NUMBERS], [32 // LANES, LANES], [4, 1], [1, 0])
    row_T = first_row + gl.arange(0, _HIGH, layout=gl.SliceLayout(1, layout))
    out_H = first_out + gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
    place_TH = (row_T.to(gl.int64) * num_out)[:, None] + out_H[None, :]
    is_inside_TH = (row_T < num_rows)[:, None] & (out_H < num_out)[None, :]
    gl.store(out_TO + place_TH, kept_TH.load(layout), mask=is_inside_TH)


@gluon.jit
def _run_group(
    blocks,
    memory,
    sizes,
    GROUP: gl.constexpr,
    PARTS: gl.constexpr,
    NEIGHBOURS: gl.constexpr,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    PDL: gl.constexpr,
):
    """What a warpgroup does: the sums of its rows of each of the program's units, and their place."""
    bias_O, out_TO = blocks[2], blocks[3]
    x_QTK, weight_QOK, kept_TH = memory[0], memory[1], memory[4].index(GROUP)
    num_units, num_out, num_rows = sizes[0], sizes[3], sizes[4]
    num_blocks, part_blocks = sizes[5], sizes[6]
    ROWS: gl.constexpr = x_QTK.shape[1]
    STAGES: gl.constexpr = weight_QOK.shape[0]
    HALF: gl.constexpr = weight_QOK.shape[1] // 2
    kind: gl.constexpr = out_TO.dtype.element_ty
    gl.static_assert(STAGES >= 2)
    if PDL:
        cuda.gdc_wait()
    zero = gl.to_tensor(0)
    row_tile, weight_tile = _tile_of(gl.program_id(0), sizes, NEIGHBOURS)
    wanted = (gl.program_id(0), zero, row_tile, weight_tile)
    if GROUP == 0:
        for early in gl.static_range(STAGES - 1):
            _load(blocks, memory, sizes, early, wanted, GATED)
            wanted = _after(wanted, sizes, NEIGHBOURS)
    place = (zero, zero, zero > 0)
    for unit in range(gl.program_id(0), num_units, gl.num_programs(0)):
        row_tile, weight_tile = _tile_of(unit, sizes, NEIGHBOURS)
        first_row = row_tile * ROWS + GROUP * _HIGH
        first_out = weight_tile * (HALF if GATED else 2 * HALF)
        if PARTS == 1:
            sums_TO, place, wanted = _sum(
                blocks, memory, sizes, num_blocks, place, wanted, GROUP, NEIGHBOURS, GATED
            )
            low_TH, high_TH = _halves(sums_TO)
        else:
            low_TH, high_TH = _halves(_zeros(2 * HALF))
            for part in range(PARTS):
                rest = gl.minimum(num_blocks - part * part_blocks, part_blocks)
                sums_TO, place, wanted = _sum(
                    blocks, memory, sizes, rest, place, wanted, GROUP, NEIGHBOURS, GATED
                )
                more_low_TH, high_TH = _halves(sums_TO)
                low_TH += more_low_TH
                if part > 0:  # a block of its own, before which registers become free
                    high_TH += kept_TH.load(high_TH.type.layout)
                kept_TH.store(high_TH)
        if PDL:  # not earlier, as in `gemm.product_kernel`
            if unit + gl.num_programs(0) >= num_units:
                cuda.gdc_launch_dependents()
        if GATED:
            if HAS_BIAS:
                low_TH = _with_bias(low_TH, bias_O, first_out, num_out)
                high_TH = _with_bias(high_TH, bias_O + num_out, first_out, num_out)
            kept_TH.store(_gated(low_TH.to(kind), high_TH.to(kind)).to(kind))
            _store(kept_TH, out_TO, first_row, first_out, num_rows, num_out)
        else:
            if PARTS == 1:
                if HAS_BIAS:
                    low_TH = _with_bias(low_TH, bias_O, first_out, num_out)
                    high_TH = _with_bias(high_TH, bias_O, first_out + HALF, num_out)
                kept_TH.store(high_TH.to(kind))
            _store(kept_TH, out_TO, first_row, first_out + HALF, num_rows, num_out)
            kept_TH.store(low_TH.to(kind))
            _store(kept_TH, out_TO, first_row, first_out, num_rows, num_out)


@gluon.jit(do_not_specialize=["num_rows", "num_units", "row_tiles", "weight_tiles"])
def persistent_product_kernel(
    x_blocks,
    weight_blocks,
    bias_O,
    out_TO,
    num_rows,
    num_out,
    num_columns,
    part_columns,
    num_units,
    row_tiles,
    weight_tiles,
    OUT: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    NEIGHBOURS: gl.constexpr,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    PDL: gl.constexpr,
):
    """A unit is a tile of rows and a tile of weight rows. Program p computes unit p and those that
    follow it in steps of the number of programs.

    OUT: weight rows of a tile. GATED: half of them are rows of the gate, the other half of "up".
    PARTS: ranges of part_columns columns, whose sums are added in order.
    x_blocks, weight_blocks: tensor descriptors, of a tile's rows and of its weights (half of them where
    GATED).
    """
    ROWS: gl.constexpr = x_blocks.block_shape[0]
    COLUMNS: gl.constexpr = x_blocks.block_shape[1]
    num_blocks = (num_columns + COLUMNS - 1) // COLUMNS
    part_blocks = gl.minimum((part_columns + COLUMNS - 1) // COLUMNS, num_blocks)
    dtype: gl.constexpr = x_blocks.dtype
    kind: gl.constexpr = out_TO.dtype.element_ty
    # Of each 8 columns a thread has 2; the 8 are moved so that rows of a warp meet in no bank.
    moved: gl.constexpr = gl.SwizzledSharedLayout(
        vec=8, per_phase=1, max_phase=128 // kind.primitive_bitwidth, order=[1, 0]
    )
    x_QTK = gl.allocate_shared_memory(dtype, [STAGES, ROWS, COLUMNS], x_blocks.layout)
    weight_QOK = gl.allocate_shared_memory(dtype, [STAGES, OUT, COLUMNS], weight_blocks.layout)
    kept_GTH = gl.allocate_shared_memory(kind, [ROWS // _HIGH, _HIGH, OUT // 2], moved)
    full_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full_Q.index(stage), count=1)
        mbarrier.init(empty_Q.index(stage), count=1)
    blocks = (x_blocks, weight_blocks, bias_O, out_TO)
    memory = (x_QTK, weight_QOK, full_Q, empty_Q, kept_GTH)
    sizes = (num_units, row_tiles, weight_tiles, num_out, num_rows, num_blocks, part_blocks)
    gl.warp_specialize(
        [
            (_run_group, (blocks, memory, sizes, 0, PARTS, NEIGHBOURS, GATED, HAS_BIAS, PDL)),
            (_run_group, (blocks, memory, sizes, 1, PARTS, NEIGHBOURS, GATED, HAS_BIAS, PDL)),
        ],
        [4],
        [256],
    )


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def launch(
    x_TK: torch.Tensor,
    weight_OK: torch.Tensor,
    bias_O: torch.Tensor | None,
    out_TO: torch.Tensor,
    num_out: int,
    tile: Tile,
    part_columns: int,
    *,
    num_parts: int,
    is_gated: bool,
    pdl: bool,
) -> None:
    """The same bits as `gemm.product` and `gemm.gated_product` into `out_TO`, which is float32 and has
    no bias where there are several parts, and else of x's type; x and weight are aligned as the copy
    engine needs them."""
    assert tile.block_k == BLOCK_K and tile.block_rows == GROUPS * GROUP_ROWS
    assert out_TO.dtype == (x_TK.dtype if num_parts == 1 else torch.float32)
    num_rows, num_columns = x_TK.shape
    columns_of_tile = tile.block_out // 2 if is_gated else tile.block_out
    blocks = [
        TensorDescriptor.from_tensor(each, [high, BLOCK_K], shared_layout(high, each.dtype))
        for each, high in ((x_TK, tile.block_rows), (weight_OK, columns_of_tile))
    ]
    row_tiles, weight_tiles = -(-num_rows // tile.block_rows), -(-num_out // columns_of_tile)
    num_units = row_tiles * weight_tiles
    persistent_product_kernel[(min(num_units, _num_multiprocessors(x_TK.device)),)](
        *blocks,
        out_TO if bias_O is None else bias_O,
        out_TO,
        num_rows,
        num_out,
        num_columns,
        part_columns,
        num_units,
        row_tiles,
        weight_tiles,
        OUT=tile.block_out,
        STAGES=tile.num_stages,
        PARTS=num_parts,
        NEIGHBOURS=NEIGHBOURS,
        GATED=is_gated,
        HAS_BIAS=bias_O is not None,
        PDL=pdl,
        num_warps=WARPS,
        **launch_options(pdl),
    )
