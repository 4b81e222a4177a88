"""Tile shapes of the products' programs that are worth measuring, by number of rows.

Promises: every tile of a type gives a row the same bits, in every kernel of `gemm`: the weights are
on the M side of one matrix instruction, and neither its width nor how operands are loaded changes a
sum. (Tiles by warpgroups have the rows on that side, and are used on devices where this changes no
sum either.)
Does not know: which is the fastest on a device (`layers.gemm.products` measures it).

Legend: O output features, I input features, T rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

SPLIT_MULTIPLE = 256
"""Splits of a sum begin at multiples of this many columns, which are borders of every tile's blocks."""


@dataclass(frozen=True, slots=True)
class Tile:
    """block_out: weight rows of a program, 64 or more, so that tiles use the same instruction.
    block_rows: rows of x. block_k: columns of a step of the loop, a divisor of SPLIT_MULTIPLE; with
    packed weights at least 128.
    by_copy_engine: blocks of x and weight come through tensor descriptors, where x is aligned; of
    packed weights those of FP8 alone (`gemm_packed_stages`).
    more_rows: with it, rows that follow the block, whose own height is a power of two.
    by_warpgroups: each warpgroup has GROUP_ROWS of the rows (`gemm_warpgroups`).
    is_persistent: with it, programs compute one tile after another (`gemm_persistent`)."""

    block_out: int
    block_rows: int
    block_k: int
    num_warps: int
    num_stages: int
    by_copy_engine: bool = False
    more_rows: int = 0
    by_warpgroups: bool = False
    is_persistent: bool = False


def _fast(tile: Tile, more_rows: int = 0) -> Tile:
    return replace(tile, by_copy_engine=True, more_rows=more_rows)


def _grouped(block_out: int, block_rows: int, num_stages: int) -> Tile:
    num_warps = 4 * block_rows // GROUP_ROWS
    tile = Tile(block_out, block_rows, 64, num_warps, num_stages)
    return replace(tile, by_copy_engine=True, by_warpgroups=True)


def _persistent(block_out: int, num_stages: int) -> Tile:
    return replace(_grouped(block_out, 128, num_stages), is_persistent=True)


MANY_ROWS = 1 << 62
LEAST_OUT = 64
"""Weight rows of the matrix instruction that every product uses."""
GROUP_ROWS = 64
"""Rows of a warpgroup in tiles by warpgroups."""
_ROWS_16 = Tile(64, 16, 128, 4, 4)
_ROWS_32 = Tile(64, 32, 128, 4, 4)
_ROWS_64 = Tile(64, 64, 128, 4, 4)
_HIGH = Tile(128, 64, 64, 4, 4)
_BROAD = Tile(64, 128, 64, 4, 4)
_SQUARE = Tile(128, 128, 64, 8, 3)
_DEEP = Tile(128, 128, 64, 8, 4)
_LARGE = Tile(128, 256, 64, 8, 4)

TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (
        16,
        (
            _ROWS_16,
            Tile(64, 16, 128, 4, 6),
            _fast(_ROWS_16),
            Tile(128, 16, 128, 8, 3),
            _fast(Tile(128, 16, 128, 4, 4)),
        ),
    ),
    (
        32,
        (
            _ROWS_32,
            Tile(64, 32, 64, 4, 6),
            Tile(64, 32, 128, 4, 6),
            _fast(_ROWS_32),
            _fast(Tile(128, 32, 128, 4, 4)),
        ),
    ),
    (
        64,
        (
            Tile(64, 64, 128, 4, 3),
            _ROWS_64,
            _fast(_ROWS_64),
            _HIGH,
            _fast(_HIGH),
            _fast(Tile(128, 64, 128, 4, 3)),
        ),
    ),
    (96, (_BROAD, _HIGH, _fast(_HIGH), _fast(_HIGH, 32), _SQUARE, _fast(_SQUARE))),
    (128, (_fast(_BROAD), _BROAD, _HIGH, _fast(_HIGH), _SQUARE, _fast(_SQUARE))),
    (192, (_fast(_DEEP, 64), _fast(Tile(64, 128, 64, 4, 3), 64), _SQUARE, _LARGE)),
    (256, (_LARGE, _fast(_LARGE), _SQUARE, _fast(_SQUARE), _fast(_BROAD))),
    (MANY_ROWS, (_fast(_LARGE), _LARGE, _fast(_DEEP), _DEEP)),
)
"""(most rows, tiles): the tiles for up to that many rows, the default one first."""
GROUPED_TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (128, ()),
    (192, (_grouped(256, 192, 4), _grouped(128, 192, 5))),
    (256, (_grouped(256, 128, 4), _grouped(128, 256, 4))),
    (MANY_ROWS, ()),
)
"""The tiles by warpgroups, which Hopper devices have, in the same form."""
PERSISTENT_TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (256, ()),
    (MANY_ROWS, (_persistent(256, 4),)),
)
"""The tiles of persistent programs, which Hopper devices have, for products in one split."""
PERSISTENT_FOLDED_TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (256, ()),
    (512, (_persistent(128, 5),)),
    (MANY_ROWS, (_persistent(256, 3),)),
)
"""The same for products that add their splits, half of whose total takes the place of a stage."""
PACKED_TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (
        16,
        (
            Tile(64, 16, 256, 4, 3),
            Tile(64, 16, 256, 4, 4),
            Tile(64, 16, 128, 4, 4),
            Tile(64, 16, 128, 4, 5),
            Tile(64, 16, 128, 4, 6),
            Tile(64, 16, 256, 4, 2),
            Tile(128, 16, 128, 4, 4),
        ),
    ),
    (
        32,
        (
            Tile(64, 32, 256, 4, 3),
            Tile(64, 32, 128, 4, 4),
            Tile(64, 32, 128, 4, 5),
            Tile(128, 32, 128, 8, 4),
        ),
    ),
    (
        64,
        (
            Tile(64, 64, 128, 4, 4),
            Tile(64, 64, 128, 4, 3),
            Tile(128, 64, 128, 8, 4),
            Tile(128, 64, 256, 8, 2),
        ),
    ),
    (MANY_ROWS, (Tile(128, 128, 128, 8, 3), Tile(128, 128, 128, 8, 2))),
)
"""The tiles for packed weights, in the same form; block_k is a multiple of their step."""
STAGED_TILES: tuple[tuple[int, tuple[Tile, ...]], ...] = (
    (16, (_fast(Tile(64, 16, 128, 4, 4)),)),
    (32, (_fast(Tile(64, 32, 128, 4, 3)),)),
    (MANY_ROWS, ()),
)
"""Tiles for FP8 weights that Hopper's copy engine brings (`gemm_packed_stages`), in the same form."""
PACKED_FOLDED_TILES = (Tile(128, 128, 128, 8, 3),)
"""The tiles for packed weights in products that add their splits themselves."""
FLOAT32_TILES = (Tile(64, 16, 32, 4, 3), Tile(64, 64, 32, 8, 3))
FOLDED_TILES = (_fast(_DEEP), _DEEP, _fast(_HIGH), _fast(_BROAD))
"""Tiles whose registers hold a second accumulator; the default one first."""


def tiles_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tile, ...]:
    """Return the tiles worth measuring at this row count, the default one first; all give the same
    bits."""
    if dtype == torch.float32:
        return FLOAT32_TILES if num_rows <= 16 else FLOAT32_TILES[::-1]
    return next(tiles for most_rows, tiles in TILES if num_rows <= most_rows)


def grouped_tiles_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tile, ...]:
    """Return the tiles by warpgroups worth measuring, the one with the most weights first."""
    if dtype == torch.float32:
        return ()
    return next(tiles for most_rows, tiles in GROUPED_TILES if num_rows <= most_rows)


def persistent_tiles_for(
    num_rows: int, dtype: torch.dtype = torch.bfloat16, *, folded: bool = False
) -> tuple[Tile, ...]:
    """Return the tiles of persistent programs worth measuring. folded: for products that add their
    splits themselves."""
    if dtype == torch.float32:
        return ()
    tiles = PERSISTENT_FOLDED_TILES if folded else PERSISTENT_TILES
    return next(found for most_rows, found in tiles if num_rows <= most_rows)


def folded_tiles_for(
    num_rows: int, dtype: torch.dtype = torch.bfloat16, *, packed: bool = False
) -> tuple[Tile, ...]:
    """Return the tiles for products that add their splits themselves. packed: of a packed weight."""
    if dtype == torch.float32:
        return FLOAT32_TILES if num_rows <= 16 else FLOAT32_TILES[::-1]
    return PACKED_FOLDED_TILES if packed else FOLDED_TILES


def packed_tiles_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tile, ...]:
    """Return the tiles for packed weights that threads bring."""
    if dtype == torch.float32:
        return FLOAT32_TILES if num_rows <= 16 else FLOAT32_TILES[::-1]
    return next(tiles for most_rows, tiles in PACKED_TILES if num_rows <= most_rows)


def staged_tiles_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tile, ...]:
    """Return the tiles for FP8 weights that the copy engine brings."""
    if dtype == torch.float32:
        return ()
    return next(tiles for most_rows, tiles in STAGED_TILES if num_rows <= most_rows)


def gated_tiles_for(num_rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tile, ...]:
    """Return the tiles for products of a gate and its "up", which the copy engine loads as two
    blocks."""
    tiles = tiles_for(num_rows, dtype)
    return tuple(t for t in tiles if not t.by_copy_engine or t.block_out >= 2 * LEAST_OUT)
