"""The kernels of `ops.tile_experts` and `ops.apply_experts`: products whose rows have weights of their
experts.

Promises: a row's bits do not depend on the other rows, nor on which tile it is in: sums run over
ascending columns in float32, and the weights are on the M side of the matrix instruction, as in `gemm`.
An expert whose rows fit a tile is read once.
Does not know: how experts are chosen.

Legend: T rows, K experts of a row, N = T x K assignments, P tiles, X assignments of a tile, E
experts, O output features, I input features, F feed-forward size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from eyas.kernels.gate import activated
from eyas.kernels.gemm_packed import accumulate_packed, layout_options, step_of, tensors_of
from eyas.kernels.gemm_tile import accumulate, bias_of
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.packed import Weight
from eyas.kernels.tiles import Tile, packed_tiles_for

Tiles = tuple[torch.Tensor, torch.Tensor]
"""The expert of each tile int32 [P], and its assignments int32 [P, X] (`ops.tile_experts`)."""
MAX_TILED = 1024
"""Up to this many assignments every program looks at all of them; more are sorted."""
FEW = 16
"""Up to this many, the programs of a product do so themselves, which takes less time than a kernel."""


@triton.jit
def place_among(experts_N, me, num, BLOCK: tl.constexpr):
    """The expert of assignment `me`; all assignments; which have the same expert; their places among
    those, counted from `me`; and the number before it."""
    other = tl.arange(0, BLOCK)
    mine = tl.load(experts_N + me)
    is_alike = tl.load(experts_N + other, mask=other < num, other=-1) == mine
    before = tl.sum((is_alike & (other < me)).to(tl.int32), 0)
    place = tl.cumsum(is_alike.to(tl.int32), 0) - 1 - before
    return mine, other, is_alike, place, before


@triton.jit
def tile_experts_kernel(
    experts_N, tile_expert_P, rows_PX, num, X: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """One program an assignment: it fills a tile if it is the first of X of its expert's."""
    enter(PDL)
    me = tl.program_id(0)
    mine, other, is_alike, place, before = place_among(experts_N, me, num, BLOCK)
    is_first = before % X == 0
    tl.store(tile_expert_P + me, tl.where(is_first, mine, -1))
    column = tl.arange(0, X)
    count = tl.sum(is_alike.to(tl.int32), 0) - before
    tl.store(rows_PX + me * X + column, column * 0 - 1, mask=is_first & (column >= count))
    is_mine = is_first & is_alike & (place >= 0) & (place < X)
    tl.store(rows_PX + me * X + place, other, mask=is_mine)


def tile_experts(experts_TK: torch.Tensor, tile_rows: int, *, pdl: bool = False) -> Tiles:
    """A tile for every assignment, of which those are used that are the first of `tile_rows` of their
    expert's; the reference is `ops.tile_experts.by_torch`, which leaves fewer tiles unused."""
    num = experts_TK.numel()
    assert num <= MAX_TILED and experts_TK.is_contiguous()
    tile_expert_P = experts_TK.new_empty(num)
    rows_PX = experts_TK.new_empty((num, tile_rows))
    if num:
        tile_experts_kernel[(num,)](
            experts_TK,
            tile_expert_P,
            rows_PX,
            num,
            X=tile_rows,
            BLOCK=triton.next_power_of_2(num),
            num_warps=4 if num > 128 else 1,
            PDL=pdl,
            **launch_options(pdl),
        )
    return tile_expert_P, rows_PX


@triton.jit(do_not_specialize=["num_rows", "num_assigned"])
def expert_product_kernel(
    x_TI,
    weight_EOI,
    scales_EOG,
    bias_EO,
    tile_expert_P,
    rows_PX,
    weights_N,
    out,
    num_rows,
    num_assigned,
    num_out,
    num_columns,
    x_stride,
    weight_stride,
    scales_stride,
    scales_expert_stride,
    NUM_CHOSEN: tl.constexpr,
    BLOCK_FEW: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    EVEN_OUT: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LAYOUT: tl.constexpr,
    SCALE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a tile of assignments and a tile of weight rows.

    GATED: x has a row for each T, half of the weight tile are rows of the gate, the other half the same
    rows of "up", and assignment n is row n of the result. Else x has a row for each N, results are
    multiplied by weights_N and go to [K, T, O].
    BLOCK_FEW: above 0, tile_expert_P is the expert of each assignment, rows_PX is None, and the program
    of an assignment that is the first of BLOCK_ROWS of its expert's finds the others.
    LAYOUT, scales_EOG and what follows them: as in `gemm.product_kernel`.
    Not GATED, tiles and weights_N are read before the wait: they are older than the gated product
    before, which has waited for them before it lets this kernel start.
    """
    columns_of_tile: tl.constexpr = BLOCK_OUT // 2 if GATED else BLOCK_OUT
    if PDL and GATED:
        cuda.gdc_wait()
    tile_index = tl.program_id(0)
    column_X = tl.arange(0, BLOCK_ROWS)
    if BLOCK_FEW > 0:
        expert, other, is_alike, place, before = place_among(
            tile_expert_P, tile_index, num_assigned, BLOCK_FEW
        )
        is_used = (before % BLOCK_ROWS == 0) & (expert >= 0)
        is_here = is_alike[:, None] & (place[:, None] == column_X[None, :])
        assigned_X = tl.sum(tl.where(is_here, other[:, None] + 1, 0), 0) - 1
    else:
        expert = tl.load(tile_expert_P + tile_index)
        is_used = expert >= 0
        assigned_X = tl.load(rows_PX + tile_index * BLOCK_ROWS + column_X, mask=is_used, other=-1)
    is_row_X = assigned_X >= 0
    row_X = tl.maximum(assigned_X, 0).to(tl.int64)
    weight_X = tl.zeros((BLOCK_ROWS,), tl.float32)
    if not GATED:
        weight_X = tl.load(weights_N + row_X, mask=is_row_X & is_used, other=0.0)
        if PDL:
            cuda.gdc_wait()
    if not is_used:
        return
    expert = expert.to(tl.int64)
    first_out = tl.program_id(1) * columns_of_tile
    tile = tl.arange(0, BLOCK_OUT)
    inner = tl.arange(0, BLOCK_K)
    if GATED:
        out_O = first_out + tile % columns_of_tile
        weight_row_O = out_O.to(tl.int64) + (tile // columns_of_tile).to(tl.int64) * num_out
        weight_rows = 2 * num_out
    else:
        out_O = first_out + tile
        weight_row_O = out_O.to(tl.int64)
        weight_rows = num_out
    x_row_X = row_X // NUM_CHOSEN if GATED else row_X
    is_row_1X = is_row_X[None, :]
    is_out_O1 = (out_O < num_out)[:, None]
    x_row_at_X = x_TI + x_row_X * x_stride
    weight_at_O = weight_EOI + (expert * weight_rows + weight_row_O) * weight_stride
    if LAYOUT != "plain":
        scales_O = scales_EOG + expert * scales_expert_stride + weight_row_O // SCALE_ROWS
        total = accumulate_packed(
            x_row_at_X, weight_at_O, scales_O, is_row_1X, is_out_O1, 0, num_columns, num_columns,
            scales_stride, BLOCK_OUT, BLOCK_ROWS, BLOCK_K, NUM_STAGES, EVEN_OUT, EVEN_K, LAYOUT, SCALE,
            SCALE_COLUMNS, NUMBERS,
        )  # fmt: skip
    else:
        x_IX = x_row_at_X[None, :] + inner[:, None]
        weight_OI = weight_at_O[:, None] + inner[None, :]
        total, _ = accumulate(
            x_IX, x_IX, weight_OI, is_row_1X, is_out_O1, 0, first_out, 0, num_columns, num_columns,
            BLOCK_OUT, BLOCK_ROWS, 0, BLOCK_K, EVEN_OUT, EVEN_K, False,
        )  # fmt: skip
    if PDL:
        cuda.gdc_launch_dependents()
    if HAS_BIAS:
        total += bias_of(bias_EO + expert * weight_rows, weight_row_O, out_O < num_out)
    if GATED:
        rounded: tl.constexpr = x_TI.dtype.element_ty
        halves_2OX = tl.reshape(total, (2, columns_of_tile, BLOCK_ROWS))
        gate, up = tl.split(tl.permute(halves_2OX, (1, 2, 0)))
        total = activated(gate.to(rounded), up.to(rounded), ACTIVATION)
        out_row_X = row_X
    else:
        total *= weight_X[None, :]
        out_row_X = (row_X % NUM_CHOSEN) * num_rows + row_X // NUM_CHOSEN
    out_O = first_out + tl.arange(0, columns_of_tile)
    out_XO = out + (out_row_X * num_out)[:, None] + out_O[None, :]
    is_inside_XO = is_row_X[:, None] & (out_O < num_out)[None, :]
    tl.store(out_XO, tl.trans(total).to(out.dtype.element_ty), mask=is_inside_XO)


def tile_for(
    num_rows: int, num_chosen: int, num_experts: int, dtype: torch.dtype, *, packed: bool = False
) -> Tile:
    """Return the tile for products of so many rows: as many assignments as an expert has on average.

    packed: of weights that are.
    """
    average = num_rows * num_chosen / num_experts
    if dtype == torch.float32:
        return Tile(64, 16, 32, 4, 3)
    if packed:
        rows = 16 if average <= 8 else 32 if average <= 24 else 64 if average <= 64 else 128
        return packed_tiles_for(rows, dtype)[0]
    if average <= 8:
        return Tile(64, 16, 128, 4, 4)
    if average <= 24:
        return Tile(64, 32, 128, 4, 4)
    if average <= 64:
        return Tile(128, 64, 64, 4, 4)
    return Tile(128, 128, 64, 8, 3)


def gated_product(
    x_TI: torch.Tensor,
    gate_up_weight_E2FI: Weight,
    bias_E2F: torch.Tensor | None,
    tiles: Tiles | torch.Tensor,
    num_chosen: int,
    activation: str,
    tile: Tile,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The gated activation of every assignment, [N, F] in x's type: as `activated` has them.

    tiles: from `tile_experts`, or, of up to FEW assignments, the experts themselves [T, K].
    """
    assert activation in ("silu", "clamped_swiglu", "clamped_silu")
    num_out = gate_up_weight_E2FI.shape[1] // 2
    out_NF = x_TI.new_empty((len(x_TI) * num_chosen, num_out))
    _launch(
        x_TI, gate_up_weight_E2FI, bias_E2F, tiles, None, out_NF, num_out, num_chosen, tile, pdl,
        is_gated=True, activation=activation,
    )  # fmt: skip
    return out_NF


def weighted_product(
    x_NI: torch.Tensor,
    weight_EOI: Weight,
    bias_EO: torch.Tensor | None,
    tiles: Tiles | torch.Tensor,
    weights_TK: torch.Tensor,
    tile: Tile,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The weighted product of every assignment, float32 [K, T, O]. tiles: as for `gated_product`."""
    num_rows, num_chosen = weights_TK.shape
    num_out = weight_EOI.shape[1]
    out_KTO = x_NI.new_empty((num_chosen, num_rows, num_out), dtype=torch.float32)
    _launch(
        x_NI, weight_EOI, bias_EO, tiles, weights_TK, out_KTO, num_out, num_chosen, tile, pdl,
        is_gated=False,
    )  # fmt: skip
    return out_KTO


def _launch(
    x: torch.Tensor,
    weight: Weight,
    bias_EO: torch.Tensor | None,
    tiles: Tiles | torch.Tensor,
    weights_TK: torch.Tensor | None,
    out: torch.Tensor,
    num_out: int,
    num_chosen: int,
    tile: Tile,
    pdl: bool,
    *,
    is_gated: bool,
    activation: str = "silu",
) -> None:
    num_columns, (weight_EOI, scales_EOG) = weight.shape[2], tensors_of(weight)
    assert x.shape[1] == num_columns and x.stride(1) == 1 and weight.is_contiguous()
    assert weights_TK is None or weights_TK.is_contiguous()
    if isinstance(tiles, torch.Tensor):
        tile_expert_P, rows_PX = tiles.view(-1), None
        block_few = triton.next_power_of_2(max(16, len(tile_expert_P)))
        assert block_few <= FEW
    else:
        (tile_expert_P, rows_PX), block_few = tiles, 0
        assert rows_PX.shape[1] == tile.block_rows
    columns_of_tile = tile.block_out // 2 if is_gated else tile.block_out
    if not len(tile_expert_P):
        return
    expert_product_kernel[(len(tile_expert_P), -(-num_out // columns_of_tile))](
        x,
        weight_EOI,
        scales_EOG,
        bias_EO,
        tile_expert_P,
        rows_PX,
        weights_TK,
        out,
        out.shape[1] if weights_TK is not None else len(x),
        len(tile_expert_P),
        num_out,
        num_columns,
        x.stride(0),
        weight_EOI.stride(1),
        0 if scales_EOG is None else scales_EOG.stride(2),
        0 if scales_EOG is None else scales_EOG.stride(0),
        NUM_CHOSEN=num_chosen,
        BLOCK_FEW=block_few,
        BLOCK_OUT=tile.block_out,
        BLOCK_ROWS=tile.block_rows,
        BLOCK_K=step_of(weight, tile),
        NUM_STAGES=tile.num_stages,
        EVEN_OUT=num_out % columns_of_tile == 0,
        EVEN_K=num_columns % step_of(weight, tile) == 0,
        HAS_BIAS=bias_EO is not None,
        GATED=is_gated,
        ACTIVATION=activation,
        **layout_options(weight),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        PDL=pdl,
        **launch_options(pdl),
    )
