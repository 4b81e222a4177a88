"""Products with weights, y = x @ w.T, whose reduction order is one whatever the number of rows.

Promises: a row of the result has the same bits in any call, at any place, with any `Tile` of
`tiles_for`. The weights stand on the M side of the matrix instruction and the rows on its N side, so
the row count chooses nothing but a tile's width; sums run over ascending columns in float32, within
each of `num_splits` ranges of columns whose borders follow from the weight's shape alone.
Does not know: layers, what a row is.

Legend: T rows, O output features, K input features (the contraction), S splits of K, F feed-forward
size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.tools.tensor_descriptor import TensorDescriptor

from eyas.kernels.activation import gated
from eyas.kernels.launch import launch_options

SPLIT_MULTIPLE = 256
"""Splits begin at multiples of so many columns, and so at borders of every tile's blocks."""
GROUP_ROW_TILES = 8
"""Row tiles that run next to each other, so that they share a tile of weights in the L2 cache."""
PREFETCH = 512
"""Columns of a program's weights that are on their way before the kernel before has ended."""


@dataclass(frozen=True, slots=True)
class Tile:
    """block_out: weight rows of a program, 64 or more, so that every tile uses the same instruction.
    block_rows: rows of x. block_k: columns of a step of the loop, a divisor of SPLIT_MULTIPLE.
    by_copy_engine: blocks of x and weight come through tensor descriptors, where x is aligned and the
    product is not gated."""

    block_out: int
    block_rows: int
    block_k: int
    num_warps: int
    num_stages: int
    by_copy_engine: bool = False


TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (16, (Tile(64, 16, 128, 4, 4), Tile(64, 16, 128, 4, 6), Tile(128, 16, 128, 8, 3))),
    (32, (Tile(64, 32, 128, 4, 4), Tile(64, 32, 64, 4, 6), Tile(64, 32, 128, 4, 6))),
    (64, (Tile(64, 64, 128, 4, 3), Tile(64, 64, 64, 4, 6), Tile(64, 64, 128, 4, 4))),
    (128, (Tile(64, 128, 64, 4, 4), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 8, 4))),
    (256, (Tile(128, 128, 64, 8, 3), Tile(64, 256, 64, 4, 3), Tile(128, 256, 64, 8, 3))),
    (
        1 << 62,
        (
            Tile(128, 256, 64, 8, 4),
            Tile(128, 256, 64, 8, 4, by_copy_engine=True),
            Tile(128, 128, 64, 8, 4),
            Tile(128, 128, 64, 8, 4, by_copy_engine=True),
        ),
    ),
)
"""Up to so many rows, these; the usual one first."""
FLOAT32_TILES = (Tile(64, 16, 32, 4, 3), Tile(64, 64, 32, 8, 3))
FOLDED_TILE = Tile(128, 128, 64, 8, 4)
"""A tile with room for a second accumulator in registers."""


def tiles_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tile, ...]:
    """The tiles worth measuring at this row count, the usual one first; all give the same bits."""
    if dtype == torch.float32:
        return FLOAT32_TILES if num_rows <= 16 else FLOAT32_TILES[::-1]
    for most_rows, tiles in TILES:
        if num_rows <= most_rows:
            return tiles
    raise AssertionError("the last entry has no limit")


def usual_tile(num_rows: int, num_out: int, num_columns: int, dtype: torch.dtype) -> Tile:
    """A tile for a product of this shape, where nothing was measured."""
    return tiles_for(num_rows, dtype)[0]


def supports(weight_OK: torch.Tensor) -> bool:
    """Whether the products below take this weight: K a multiple of 16, rows without gaps."""
    return (
        weight_OK.ndim == 2
        and weight_OK.is_contiguous()
        and weight_OK.shape[1] % 16 == 0
        and weight_OK.dtype in (torch.bfloat16, torch.float16, torch.float32)
    )


@triton.jit
def _prefetch(pointers):
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
def _accumulate(
    x_KT,
    weight_OK,
    is_row_1T,
    is_out_O1,
    first_row,
    first_out,
    first,
    last,
    num_columns,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    BY_COPY_ENGINE: tl.constexpr,
):
    """The sum over columns first to last, float32 [BLOCK_OUT, BLOCK_ROWS], in ascending order."""
    total = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_K):
        if BY_COPY_ENGINE:
            x = x_KT.load([first_row, start]).T
            weight = weight_OK.load([first_out, start])
        elif EVEN_K:
            x = tl.load(x_KT + start, mask=is_row_1T, other=0.0)
            if EVEN_OUT:
                weight = tl.load(weight_OK + start)
            else:
                weight = tl.load(weight_OK + start, mask=is_out_O1, other=0.0)
        else:
            is_column = start + tl.arange(0, BLOCK_K) < num_columns
            x = tl.load(x_KT + start, mask=is_row_1T & is_column[:, None], other=0.0)
            is_weight = is_out_O1 & is_column[None, :]
            weight = tl.load(weight_OK + start, mask=is_weight, other=0.0)
        total = tl.dot(weight, x, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["num_rows", "group_tiles", "num_groups"])
def product_kernel(
    x_TK,
    weight_OK,
    x_blocks,
    weight_blocks,
    bias_O,
    out_STO,
    num_rows,
    num_out,
    num_columns,
    split_columns,
    x_stride,
    group_tiles,
    num_groups,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    NUM_FOLDED: tl.constexpr,
    BY_COPY_ENGINE: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a tile of rows, a tile of weight rows and a split. The grid is (row tiles of a
    group, tiles of weight rows, groups and splits): rows go first, then weights, then groups.

    GATED: half of the weight tile are rows of the gate, the other half the same rows of "up".
    NUM_FOLDED: a program runs so many splits one after the other and adds their sums in order.
    x_blocks, weight_blocks: tensor descriptors of x and weight, None but BY_COPY_ENGINE.
    """
    columns_of_tile: tl.constexpr = BLOCK_OUT // 2 if GATED else BLOCK_OUT
    group = tl.program_id(2) % num_groups
    split = tl.program_id(2) // num_groups
    first_row = (group * group_tiles + tl.program_id(0)) * BLOCK_ROWS
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
        line: tl.constexpr = 1024 // weight_OK.dtype.element_ty.primitive_bitwidth
        lines = first + tl.arange(0, PREFETCH // line) * line
        last_row = num_out * 2 - 1 if GATED else num_out - 1
        rows = tl.minimum(weight_row_O, last_row)[:, None] * num_columns
        _prefetch(weight_OK + rows + tl.minimum(lines, num_columns - 1)[None, :])
    if PDL:
        cuda.gdc_wait()
    row_T = tl.arange(0, BLOCK_ROWS)
    is_row_1T = (first_row + row_T < num_rows)[None, :]
    is_out_O1 = (out_O < num_out)[:, None]
    if BY_COPY_ENGINE:
        x_KT = x_blocks
        weight_tile_OK = weight_blocks
    else:
        x_row_T = first_row.to(tl.int64) * x_stride + row_T * x_stride
        x_KT = x_TK + x_row_T[None, :] + inner[:, None]
        weight_tile_OK = weight_OK + (weight_row_O * num_columns)[:, None] + inner[None, :]
    total = _accumulate(
        x_KT, weight_tile_OK, is_row_1T, is_out_O1, first_row, first_out, first, last, num_columns,
        BLOCK_OUT, BLOCK_ROWS, BLOCK_K, EVEN_OUT, EVEN_K, BY_COPY_ENGINE,
    )  # fmt: skip
    for folded in tl.static_range(1, NUM_FOLDED):
        first = folded * split_columns
        last = min(first + split_columns, num_columns)
        total += _accumulate(
            x_KT, weight_tile_OK, is_row_1T, is_out_O1, first_row, first_out, first, last,
            num_columns, BLOCK_OUT, BLOCK_ROWS, BLOCK_K, EVEN_OUT, EVEN_K, BY_COPY_ENGINE,
        )  # fmt: skip
    if PDL:  # not earlier: programs that come early crowd the first multiprocessors that have room
        cuda.gdc_launch_dependents()
    if HAS_BIAS:
        bias = tl.load(bias_O + weight_row_O, mask=out_O < num_out, other=0.0)
        total += bias.to(tl.float32)[:, None]
    out_row_T = (split.to(tl.int64) * num_rows + first_row + row_T) * num_out
    if GATED:
        halves_2OT = tl.reshape(total, (2, columns_of_tile, BLOCK_ROWS))
        gate, up = tl.split(tl.permute(halves_2OT, (1, 2, 0)))
        rounded: tl.constexpr = x_TK.dtype.element_ty
        total = gated(gate.to(rounded), up.to(rounded))
        out_O = first_out + tl.arange(0, columns_of_tile)
    out_TO = out_STO + out_row_T[:, None] + out_O[None, :]
    is_inside_TO = (first_row + row_T < num_rows)[:, None] & (out_O < num_out)[None, :]
    tl.store(out_TO, tl.trans(total).to(out_STO.dtype.element_ty), mask=is_inside_TO)


def split_columns(num_columns: int, num_splits: int) -> int:
    """Columns of a split: all but the last begin and end at multiples of SPLIT_MULTIPLE."""
    if num_splits == 1:
        return num_columns
    return -(-num_columns // (num_splits * SPLIT_MULTIPLE)) * SPLIT_MULTIPLE


def product(
    x_TK: torch.Tensor,
    weight_OK: torch.Tensor,
    *,
    num_splits: int = 1,
    folded: bool = False,
    tile: Tile | None = None,
    bias_O: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out_TO: torch.Tensor | None = None,
    pdl: bool = False,
    prefetch: int = PREFETCH,
) -> torch.Tensor:
    """`F.linear(x_TK, weight_OK, bias_O)`, the bias added before the one rounding.

    One split: [T, O] in `out_dtype`, by default x's, or in `out_TO`, a tensor without gaps. More:
    float32 sums of the splits [S, T, O], to be added in order by who reads them; no bias then. folded:
    [1, T, O], the splits' sums already added in that order, which for many rows costs less than to
    write them all. prefetch: columns of each program's weights asked for before the wait of `pdl`, a
    power of two, or 0.
    """
    num_rows, num_columns = x_TK.shape
    num_out = weight_OK.shape[0]
    _check(x_TK, weight_OK)
    if num_splits == 1 and not folded:
        if out_TO is None:
            out_TO = x_TK.new_empty((num_rows, num_out), dtype=out_dtype or x_TK.dtype)
    else:
        assert bias_O is None, "the bias of a split product is added by its reader"
        out_TO = x_TK.new_empty(
            (1 if folded else num_splits, num_rows, num_out), dtype=torch.float32
        )
    if num_rows:
        if tile is None:
            tile = usual_tile(num_rows, num_out, num_columns, x_TK.dtype)
            if folded and tile.block_rows > FOLDED_TILE.block_rows:
                tile = FOLDED_TILE
        _launch(
            x_TK, weight_OK, bias_O, out_TO, num_out, tile, pdl, prefetch,
            num_splits=num_splits, num_folded=num_splits if folded else 1, is_gated=False,
        )  # fmt: skip
    return out_TO


def gated_product(
    x_TK: torch.Tensor,
    gate_up_weight_2FK: torch.Tensor,
    *,
    tile: Tile | None = None,
    bias_2F: torch.Tensor | None = None,
    pdl: bool = False,
    prefetch: int = PREFETCH,
) -> torch.Tensor:
    """[T, F], the same bits as `activation.gated_silu(product(...))` of a weight [gate; up]."""
    num_rows, num_columns = x_TK.shape
    size = gate_up_weight_2FK.shape[0] // 2
    _check(x_TK, gate_up_weight_2FK)
    out_TF = x_TK.new_empty((num_rows, size))
    if num_rows:
        if tile is None:
            tile = usual_tile(num_rows, 2 * size, num_columns, x_TK.dtype)
        _launch(
            x_TK, gate_up_weight_2FK, bias_2F, out_TF, size, tile, pdl, prefetch,
            num_splits=1, num_folded=1, is_gated=True,
        )  # fmt: skip
    return out_TF


def _check(x_TK: torch.Tensor, weight_OK: torch.Tensor) -> None:
    if weight_OK.shape[1] % 16:
        raise ValueError(f"products take multiples of 16 input features, not {weight_OK.shape[1]}")
    assert x_TK.shape[1] == weight_OK.shape[1] == weight_OK.stride(0) and x_TK.stride(1) == 1


def _is_aligned(x_TK: torch.Tensor) -> bool:
    """Whether the copy engine can bring rows of x."""
    return x_TK.data_ptr() % 16 == 0 and x_TK.stride(0) * x_TK.element_size() % 16 == 0


def _launch(
    x_TK: torch.Tensor,
    weight_OK: torch.Tensor,
    bias_O: torch.Tensor | None,
    out: torch.Tensor,
    num_out: int,
    tile: Tile,
    pdl: bool,
    prefetch: int,
    *,
    num_splits: int,
    num_folded: int,
    is_gated: bool,
) -> None:
    num_rows, num_columns = x_TK.shape
    row_tiles = -(-num_rows // tile.block_rows)
    num_groups = -(-row_tiles // GROUP_ROW_TILES)
    group_tiles = -(-row_tiles // num_groups)
    columns_of_tile = tile.block_out // 2 if is_gated else tile.block_out
    num_planes = num_groups * (1 if num_folded > 1 else num_splits)
    x_blocks, weight_blocks = None, None
    by_copy_engine = tile.by_copy_engine and not is_gated and _is_aligned(x_TK)
    if by_copy_engine:
        x_blocks = TensorDescriptor.from_tensor(x_TK, [tile.block_rows, tile.block_k])
        block_shape = [tile.block_out, tile.block_k]
        weight_blocks = TensorDescriptor.from_tensor(weight_OK, block_shape)
    product_kernel[(group_tiles, -(-num_out // columns_of_tile), num_planes)](
        x_TK,
        weight_OK,
        x_blocks,
        weight_blocks,
        bias_O,
        out,
        num_rows,
        num_out,
        num_columns,
        split_columns(num_columns, num_splits),
        x_TK.stride(0),
        group_tiles,
        num_groups,
        BLOCK_OUT=tile.block_out,
        BLOCK_ROWS=tile.block_rows,
        BLOCK_K=tile.block_k,
        EVEN_OUT=num_out % columns_of_tile == 0,
        EVEN_K=num_columns % tile.block_k == 0,
        HAS_BIAS=bias_O is not None,
        GATED=is_gated,
        NUM_FOLDED=num_folded,
        BY_COPY_ENGINE=by_copy_engine,
        PREFETCH=prefetch if pdl else 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        PDL=pdl,
        **launch_options(pdl),
    )
