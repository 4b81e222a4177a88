"""Products of each head's rows with that head's weights, all heads in one launch.

Promises: a row of the result has the same bits in any call and at any place: the weights are on the M
side of the matrix instruction and the rows on its N side, so the row count selects only a tile's width;
sums run over ascending columns in float32.
Does not know: what the heads are.

Legend: T rows, N heads, I input features (the contraction), O output features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.gemm_tile import accumulate
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.tiles import FLOAT32_TILES, MANY_ROWS, Tile

TILES: tuple[tuple[int, Tile], ...] = (
    (16, Tile(64, 16, 128, 4, 3)),
    (32, Tile(64, 32, 128, 4, 3)),
    (64, Tile(64, 64, 128, 4, 3)),
    (MANY_ROWS, Tile(128, 128, 64, 8, 3)),
)
"""(most rows, tile). A head's weights are few, so there is little to choose."""


def head_tile(num_rows: int, dtype: torch.dtype) -> Tile:
    """Return the tile for so many rows; all give the same bits."""
    if dtype == torch.float32:
        return FLOAT32_TILES[num_rows > 16]
    return next(tile for most, tile in TILES if num_rows <= most)


@triton.jit(do_not_specialize=["num_rows"])
def head_product_kernel(
    x_TNI,
    weight_NOI,
    out_TNO,
    num_rows,
    num_out,
    num_columns,
    x_stride,
    x_head_stride,
    out_stride,
    out_head_stride,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a tile of rows, a tile of weight rows and a head; rows go first."""
    enter(PDL)
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    head = tl.program_id(2).to(tl.int64)
    out_O = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row_T = first_row + tl.arange(0, BLOCK_ROWS)
    inner = tl.arange(0, BLOCK_K)
    is_row_T, is_out_O = row_T < num_rows, out_O < num_out
    x_IT = x_TNI + head * x_head_stride + row_T[None, :] * x_stride + inner[:, None]
    weight_OI = weight_NOI + (head * num_out + out_O)[:, None] * num_columns + inner[None, :]
    total, _ = accumulate(
        x_IT, x_IT, weight_OI, is_row_T[None, :], is_out_O[:, None], 0, 0, 0, num_columns,
        num_columns, BLOCK_OUT, BLOCK_ROWS, 0, BLOCK_K, EVEN_OUT, EVEN_K, False,
    )  # fmt: skip
    place_TO = out_TNO + row_T[:, None] * out_stride + head * out_head_stride + out_O[None, :]
    rounded = tl.trans(total).to(out_TNO.dtype.element_ty)
    tl.store(place_TO, rounded, mask=is_row_T[:, None] & is_out_O[None, :])


def head_product(
    x_TNI: torch.Tensor,
    weight_NOI: torch.Tensor,
    out_TNO: torch.Tensor,
    *,
    tile: Tile | None = None,
    pdl: bool = False,
) -> None:
    """Write `weight_NOI[n] @ x_TNI[t, n]` to `out_TNO[t, n]`.

    Rows and heads of x and of the output may stand apart; weights are contiguous. tile: None takes the
    one for the number of rows. Reference: `torch.einsum("tni,noi->tno")`.
    """
    num_rows, num_heads, num_columns = x_TNI.shape
    num_out = weight_NOI.shape[1]
    assert weight_NOI.is_contiguous() and weight_NOI.shape == (num_heads, num_out, num_columns)
    assert x_TNI.stride(2) == 1 and out_TNO.stride(2) == 1
    assert out_TNO.shape == (num_rows, num_heads, num_out)
    if not num_rows:
        return
    tile = tile or head_tile(num_rows, x_TNI.dtype)
    grid = (-(-num_rows // tile.block_rows), -(-num_out // tile.block_out), num_heads)
    head_product_kernel[grid](
        x_TNI,
        weight_NOI,
        out_TNO,
        num_rows,
        num_out,
        num_columns,
        x_TNI.stride(0),
        x_TNI.stride(1),
        out_TNO.stride(0),
        out_TNO.stride(1),
        BLOCK_OUT=tile.block_out,
        BLOCK_ROWS=tile.block_rows,
        BLOCK_K=tile.block_k,
        EVEN_OUT=num_out % tile.block_out == 0,
        EVEN_K=num_columns % tile.block_k == 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        PDL=pdl,
        **launch_options(pdl),
    )
