"""Products with weights, y = x @ w.T, with one reduction order for every number of rows.

Promises: a row of the result has the same bits in any call, at any place, with any `Tile` of
`tiles` (with those by warpgroups where a device adds up alike, `gemm_warpgroups` and
`gemm_persistent`), and with a packed weight those of the same weight unpacked. The weights are on the M
side of the matrix instruction and the rows on its N side, so the row count selects only a tile's width;
sums run over ascending columns in float32, within each of `num_splits` ranges of
columns whose borders follow from the weight's shape alone. With `pdl` weights are read while the
kernel before still runs, so that kernel must not write them.
Does not know: layers, what a row is.

Legend: T rows, O output features, I input features (the contraction), Z splits of I, F feed-forward
size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.tools.tensor_descriptor import TensorDescriptor

from eyas.kernels.gate import gated
from eyas.kernels.gemm_packed import accumulate_packed, layout_options, step_of, tensors_of
from eyas.kernels.gemm_tile import (
    accumulate,
    accumulate_pairs,
    bias_of,
    prefetch_lines,
    store,
    zeros,
)
from eyas.kernels.launch import launch_options
from eyas.kernels.packed import PackedWeight, Weight
from eyas.kernels.tiles import (
    LEAST_OUT,
    SPLIT_MULTIPLE,
    Tile,
    folded_tiles_for,
    gated_tiles_for,
    packed_tiles_for,
    tiles_for,
)

COMPILER = f"triton {triton.__version__}"
"""The compiler's version, on which the kernels' speed depends."""
GROUP_ROW_TILES = 8
"""Row tiles that run next to each other, so that they share a tile of weights in the L2 cache."""
PREFETCHED_BYTES = 4 << 20
"""Bytes of a product's weights that its programs together prefetch before the kernel before has ended;
more of them delay the programs' own loads."""
LINE_BYTES, MOST_LINES = 128, 8
"""Bytes of a line of the L2 cache, and the most lines of a row that are prefetched."""


@triton.jit(do_not_specialize=["num_rows", "group_tiles", "num_groups"])
def product_kernel(
    x_TI,
    weight_OI,
    scales_OG,
    x_blocks,
    more_blocks,
    weight_blocks,
    bias_O,
    out_ZTO,
    num_rows,
    num_out,
    num_columns,
    split_columns,
    x_stride,
    weight_stride,
    scales_stride,
    group_tiles,
    num_groups,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MORE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    NUM_FOLDED: tl.constexpr,
    BY_COPY_ENGINE: tl.constexpr,
    PREFETCH: tl.constexpr,
    LAYOUT: tl.constexpr,
    SCALE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a tile of rows, a tile of weight rows and a split. The grid is (row tiles of a
    group, tiles of weight rows, groups and splits): rows go first, then weights, then groups.

    GATED: half of the weight tile are rows of the gate, the other half the same rows of "up"; the copy
    engine brings them as two blocks, which have sums of their own.
    NUM_FOLDED: a program runs so many splits one after the other and adds their sums in order.
    MORE_ROWS: the tile has so many rows more, with sums of their own, since a block's height is a power
    of two; the copy engine brings them.
    x_blocks, more_blocks, weight_blocks: tensor descriptors of x and weight, None but BY_COPY_ENGINE.
    LAYOUT: of a packed weight, or "plain"; then weight_OI points to words of so many NUMBERS, and
    scales_OG, SCALE, SCALE_ROWS and SCALE_COLUMNS describe the scales (`packed.Layout`).
    weight_stride: of its rows. scales_stride: from one scale of a row to the next. PREFETCH: lines of
    each row's part in a split that are prefetched. NUM_STAGES: of the loop over its columns.
    """
    columns_of_tile: tl.constexpr = BLOCK_OUT // 2 if GATED else BLOCK_OUT
    PAIRED: tl.constexpr = GATED and BY_COPY_ENGINE
    group = tl.program_id(2) % num_groups
    split = tl.program_id(2) // num_groups
    first_row = (group * group_tiles + tl.program_id(0)) * (BLOCK_ROWS + MORE_ROWS)
    if first_row >= num_rows:
        return
    first_out = tl.program_id(1) * columns_of_tile
    tile = tl.arange(0, BLOCK_OUT)
    inner = tl.arange(0, BLOCK_K)
    if GATED:
        out_O = first_out + tile % columns_of_tile
        weight_row_O = out_O.to(tl.int64) + (tile // columns_of_tile).to(tl.int64) * num_out
    else:
        out_O = first_out + tile
        weight_row_O = out_O.to(tl.int64)
    first = split * split_columns
    last = min(first + split_columns, num_columns)
    if PREFETCH:
        line: tl.constexpr = 1024 // weight_OI.dtype.element_ty.primitive_bitwidth
        lines = first // NUMBERS + tl.arange(0, PREFETCH) * line
        last_row = num_out * 2 - 1 if GATED else num_out - 1
        rows = tl.minimum(weight_row_O, last_row)[:, None] * weight_stride
        prefetch_lines(weight_OI + rows + tl.minimum(lines, weight_stride - 1)[None, :])
    bias = 0.0
    if HAS_BIAS and not PAIRED:  # for the first part of a sum alone
        bias = bias_of(bias_O, weight_row_O, (out_O < num_out) & (split == 0))
    if PDL:
        cuda.gdc_wait()
    row_T = tl.arange(0, BLOCK_ROWS)
    is_row_1T = (first_row + row_T < num_rows)[None, :]
    is_out_O1 = (out_O < num_out)[:, None]
    x_row_T = x_TI + (first_row.to(tl.int64) * x_stride + row_T * x_stride)
    weight_row_at_O = weight_OI + weight_row_O * weight_stride
    if BY_COPY_ENGINE:
        x_IT = x_blocks
        weight_tile_OI = weight_blocks
    else:
        x_IT = x_row_T[None, :] + inner[:, None]
        weight_tile_OI = weight_row_at_O[:, None] + inner[None, :]
    rounded: tl.constexpr = x_TI.dtype.element_ty
    if PAIRED:
        gate, up, more_gate, more_up = accumulate_pairs(
            x_IT, more_blocks, weight_tile_OI, first_row, first_out, num_out, last,
            columns_of_tile, BLOCK_ROWS, MORE_ROWS, BLOCK_K,
        )  # fmt: skip
        if PDL:
            cuda.gdc_launch_dependents()
        out_O = first_out + tl.arange(0, columns_of_tile)
        if HAS_BIAS:
            gate_bias = bias_of(bias_O, out_O, out_O < num_out)
            up_bias = bias_of(bias_O, num_out + out_O, out_O < num_out)
            gate, up = gate + gate_bias, up + up_bias
            more_gate, more_up = more_gate + gate_bias, more_up + up_bias
        total = gated(gate.to(rounded), up.to(rounded))
        more = gated(more_gate.to(rounded), more_up.to(rounded))
    else:
        if LAYOUT != "plain":
            total = accumulate_packed(
                x_row_T, weight_row_at_O, scales_OG + weight_row_O // SCALE_ROWS, is_row_1T, is_out_O1,
                first, last, num_columns, scales_stride, BLOCK_OUT, BLOCK_ROWS, BLOCK_K, NUM_STAGES,
                EVEN_OUT, EVEN_K, LAYOUT, SCALE, SCALE_COLUMNS, NUMBERS,
            )  # fmt: skip
            more = zeros(BLOCK_OUT, 0)
        else:
            total, more = accumulate(
                x_IT, more_blocks, weight_tile_OI, is_row_1T, is_out_O1, first_row, first_out, first,
                last, num_columns, BLOCK_OUT, BLOCK_ROWS, MORE_ROWS, BLOCK_K, EVEN_OUT, EVEN_K,
                BY_COPY_ENGINE,
            )  # fmt: skip
        if HAS_BIAS:
            total, more = total + bias, more + bias
        for folded in tl.static_range(1, NUM_FOLDED):
            first = folded * split_columns
            last = min(first + split_columns, num_columns)
            if LAYOUT != "plain":
                total += accumulate_packed(
                    x_row_T, weight_row_at_O, scales_OG + weight_row_O // SCALE_ROWS, is_row_1T,
                    is_out_O1, first, last, num_columns, scales_stride, BLOCK_OUT, BLOCK_ROWS, BLOCK_K,
                    NUM_STAGES, EVEN_OUT, EVEN_K, LAYOUT, SCALE, SCALE_COLUMNS, NUMBERS,
                )  # fmt: skip
            else:
                next_total, next_more = accumulate(
                    x_IT, more_blocks, weight_tile_OI, is_row_1T, is_out_O1, first_row, first_out,
                    first, last, num_columns, BLOCK_OUT, BLOCK_ROWS, MORE_ROWS, BLOCK_K, EVEN_OUT,
                    EVEN_K, BY_COPY_ENGINE,
                )  # fmt: skip
                total, more = total + next_total, more + next_more
        if PDL:  # not earlier: programs that come early crowd the first multiprocessors with room
            cuda.gdc_launch_dependents()
        if GATED:
            halves_2OT = tl.reshape(total, (2, columns_of_tile, BLOCK_ROWS))
            gate, up = tl.split(tl.permute(halves_2OT, (1, 2, 0)))
            total = gated(gate.to(rounded), up.to(rounded))
    store(
        total, out_ZTO, split, first_row, num_rows, first_out, num_out, BLOCK_ROWS, columns_of_tile
    )  # fmt: skip
    if MORE_ROWS > 0:
        store(
            more, out_ZTO, split, first_row + BLOCK_ROWS, num_rows, first_out, num_out, MORE_ROWS,
            columns_of_tile,
        )  # fmt: skip


def split_columns(num_columns: int, num_splits: int) -> int:
    """Columns of a split: all but the last begin and end at multiples of SPLIT_MULTIPLE."""
    if num_splits == 1:
        return num_columns
    return -(-num_columns // (num_splits * SPLIT_MULTIPLE)) * SPLIT_MULTIPLE


def prefetched_lines(weight_OI: torch.Tensor, num_splits: int) -> int:
    """Return how many lines of a row's part in a split are prefetched: a power of two, or 0."""
    lines = PREFETCHED_BYTES // (LINE_BYTES * len(weight_OI) * num_splits)
    row_lines = weight_OI.stride(0) * weight_OI.element_size() // (LINE_BYTES * num_splits)
    most = min(lines, row_lines, MOST_LINES)
    return 1 << (most.bit_length() - 1) if most else 0


def product(
    x_TI: torch.Tensor,
    weight_OI: Weight,
    *,
    num_splits: int = 1,
    folded: bool = False,
    tile: Tile | None = None,
    bias_O: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out_TO: torch.Tensor | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """`F.linear(x_TI, weight_OI, bias_O)`, the bias added before the one rounding.

    One split: [T, O] in `out_dtype`, by default x's, or in `out_TO`, a tensor without gaps. More:
    float32 sums of the splits [Z, T, O], which the reader adds in order; the bias is added to the
    first. folded: [1, T, O], the splits' sums added in that order, which for many rows costs less
    than writing all of them.
    """
    num_rows, num_out = len(x_TI), len(weight_OI)
    _check(x_TI, weight_OI)
    if num_splits == 1 and not folded:
        if out_TO is None:
            out_TO = x_TI.new_empty((num_rows, num_out), dtype=out_dtype or x_TI.dtype)
    else:
        out_TO = x_TI.new_empty(
            (1 if folded else num_splits, num_rows, num_out), dtype=torch.float32
        )
    if num_rows:
        if tile is None:
            tile = _default_tiles(weight_OI, num_rows, x_TI.dtype, folded=folded)[0]
        _launch(
            x_TI, weight_OI, bias_O, out_TO, num_out, tile, pdl,
            num_splits=num_splits, num_folded=num_splits if folded else 1, is_gated=False,
        )  # fmt: skip
    return out_TO


def gated_product(
    x_TI: torch.Tensor,
    gate_up_weight_2FI: Weight,
    *,
    tile: Tile | None = None,
    bias_2F: torch.Tensor | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """[T, F], the same bits as `activation.gated_silu(product(...))` of a weight [gate; up]."""
    num_rows = len(x_TI)
    size = gate_up_weight_2FI.shape[0] // 2
    _check(x_TI, gate_up_weight_2FI)
    out_TF = x_TI.new_empty((num_rows, size))
    if num_rows:
        if tile is None:
            is_packed = isinstance(gate_up_weight_2FI, PackedWeight)
            choose = packed_tiles_for if is_packed else gated_tiles_for
            tile = choose(num_rows, x_TI.dtype)[0]
        _launch(
            x_TI, gate_up_weight_2FI, bias_2F, out_TF, size, tile, pdl,
            num_splits=1, num_folded=1, is_gated=True,
        )  # fmt: skip
    return out_TF


def _default_tiles(
    weight_OI: Weight, num_rows: int, dtype: torch.dtype, *, folded: bool
) -> tuple[Tile, ...]:
    if folded:
        return folded_tiles_for(num_rows, dtype, packed=isinstance(weight_OI, PackedWeight))
    if isinstance(weight_OI, PackedWeight):
        return packed_tiles_for(num_rows, dtype)
    return tiles_for(num_rows, dtype)


def _check(x_TI: torch.Tensor, weight_OI: Weight) -> None:
    if weight_OI.shape[1] % 16:
        raise ValueError(f"products take multiples of 16 input features, not {weight_OI.shape[1]}")
    assert x_TI.shape[1] == weight_OI.shape[1] and x_TI.stride(1) == 1
    is_packed = isinstance(weight_OI, PackedWeight)
    assert is_packed or weight_OI.stride(0) == weight_OI.shape[1]


def _is_aligned(*matrices: torch.Tensor) -> bool:
    """Whether the copy engine can bring rows of these."""
    numbers = [n for m in matrices for n in (m.data_ptr(), m.stride(0) * m.element_size())]
    return all(number % 16 == 0 for number in numbers)


def _tile_for(
    x_TI: torch.Tensor, weight: Weight, tile: Tile, *, num_folded: int, is_gated: bool
) -> Tile:
    """Return a tile that can run over these operands: the given one, or the first one for their sizes
    if the copy engine cannot bring them."""
    num_rows = x_TI.shape[0]
    if isinstance(weight, PackedWeight):
        assert not tile.by_warpgroups
        if tile.by_copy_engine and not (weight.layout.kind == "fp8" and _is_aligned(x_TI)):
            return packed_tiles_for(num_rows, x_TI.dtype)[0]
    elif tile.by_warpgroups and not _is_aligned(x_TI, weight):
        choose = folded_tiles_for if num_folded > 1 else tiles_for
        return (gated_tiles_for if is_gated else choose)(num_rows, x_TI.dtype)[0]
    return tile


def _launch(
    x_TI: torch.Tensor,
    weight: Weight,
    bias_O: torch.Tensor | None,
    out: torch.Tensor,
    num_out: int,
    tile: Tile,
    pdl: bool,
    *,
    num_splits: int,
    num_folded: int,
    is_gated: bool,
) -> None:
    num_rows, num_columns = x_TI.shape
    split_width = split_columns(num_columns, num_splits)
    weight_OI, scales_OG = tensors_of(weight)
    tile = _tile_for(x_TI, weight, tile, num_folded=num_folded, is_gated=is_gated)
    rest = (bias_O, out, num_out, tile, split_width)
    if isinstance(weight, PackedWeight) and tile.by_copy_engine:
        from eyas.kernels import gemm_packed_stages

        assert num_folded == 1, "these programs fold no sums"
        gemm_packed_stages.launch(
            x_TI, weight, *rest, num_splits=num_splits, is_gated=is_gated, pdl=pdl
        )
        return
    if tile.is_persistent:
        from eyas.kernels import gemm_persistent

        assert num_folded == num_splits, "persistent programs have all columns"
        gemm_persistent.launch(
            x_TI, weight_OI, *rest, num_parts=num_folded, is_gated=is_gated, pdl=pdl
        )
        return
    if tile.by_warpgroups:
        from eyas.kernels import gemm_warpgroups  # a language that not every Triton has

        assert num_folded == 1, "tiles by warpgroups fold no sums"
        assert num_splits == 1 or bias_O is None, "nor add they a bias to the first of several"
        gemm_warpgroups.launch(
            x_TI, weight_OI, *rest, num_splits=num_splits, is_gated=is_gated, pdl=pdl
        )
        return
    columns_of_tile = tile.block_out // 2 if is_gated else tile.block_out
    is_high_enough = columns_of_tile >= LEAST_OUT  # for the instruction, half of a tile alone too
    by_copy_engine = tile.by_copy_engine and is_high_enough and _is_aligned(x_TI, weight_OI)
    more_rows = tile.more_rows if by_copy_engine else 0
    row_tiles = -(-num_rows // (tile.block_rows + more_rows))
    num_groups = -(-row_tiles // GROUP_ROW_TILES)
    group_tiles = -(-row_tiles // num_groups)
    num_planes = num_groups * (1 if num_folded > 1 else num_splits)
    x_blocks, more_blocks, weight_blocks = None, None, None
    if by_copy_engine:
        x_blocks = TensorDescriptor.from_tensor(x_TI, [tile.block_rows, tile.block_k])
        block_shape = [columns_of_tile, tile.block_k]
        weight_blocks = TensorDescriptor.from_tensor(weight_OI, block_shape)
    if more_rows:
        more_blocks = TensorDescriptor.from_tensor(x_TI, [more_rows, tile.block_k])
    grid = (group_tiles, -(-num_out // columns_of_tile), num_planes)
    product_kernel[grid](
        x_TI,
        weight_OI,
        scales_OG,
        x_blocks,
        more_blocks,
        weight_blocks,
        bias_O,
        out,
        num_rows,
        num_out,
        num_columns,
        split_width,
        x_TI.stride(0),
        weight_OI.stride(0),
        0 if scales_OG is None else scales_OG.stride(1),
        group_tiles,
        num_groups,
        BLOCK_OUT=tile.block_out,
        BLOCK_ROWS=tile.block_rows,
        MORE_ROWS=more_rows,
        BLOCK_K=step_of(weight, tile),
        NUM_STAGES=tile.num_stages,
        EVEN_OUT=num_out % columns_of_tile == 0,
        EVEN_K=num_columns % step_of(weight, tile) == 0,
        HAS_BIAS=bias_O is not None,
        GATED=is_gated,
        NUM_FOLDED=num_folded,
        BY_COPY_ENGINE=by_copy_engine,
        PREFETCH=prefetched_lines(weight_OI, num_splits) if pdl else 0,
        **layout_options(weight),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        PDL=pdl,
        **launch_options(pdl),
    )
