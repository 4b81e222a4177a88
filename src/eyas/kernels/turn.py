"""The kernel of `ops.turn_heads`: normalise heads, and turn neighbouring numbers by their row's angles.

Promises: the arithmetic of the torch body, rounded to the model's type where torch rounds. A row's bits
depend on that row alone.
Does not know: what the heads are.

Legend: T rows, N heads, H head dim, R rotated dimensions, the last of a head; P positions, I = H / 2
pairs of a head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

BLOCK_NUMBERS = 4096
"""Numbers that a program turns."""


@triton.jit
def angles_of_pairs(
    table_P2H,
    position,
    HEAD_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    """[1, I] cosine and sine of the pairs of a head, float32: 1 and 0 of pairs that are not rotated.
    Angles of halves are read for neighbours, so the sine's sign is that of the second half."""
    pair_1I = tl.arange(0, BLOCK_PAIRS)[None, :] - (HEAD_DIM - ROTATED) // 2
    is_rotated = (pair_1I >= 0) & (pair_1I < ROTATED // 2)
    cosine = table_P2H + position * (2 * ROTATED) + pair_1I
    cosine_1I = tl.load(cosine, mask=is_rotated, other=1.0).to(tl.float32)
    sine_1I = tl.load(cosine + ROTATED + ROTATED // 2, mask=is_rotated, other=0.0).to(tl.float32)
    return cosine_1I, sine_1I


@triton.jit
def turned_pairs(
    x_NH, cosine_1I, sine_1I, BLOCK_HEADS: tl.constexpr, BLOCK_PAIRS: tl.constexpr
):  # fmt: skip
    """[N, H] heads in float32, neighbouring numbers turned."""
    pairs_NI2 = tl.reshape(x_NH, (BLOCK_HEADS, BLOCK_PAIRS, 2))
    first_NI, second_NI = tl.split(pairs_NI2)
    turned_first = first_NI * cosine_1I - second_NI * sine_1I
    turned_second = second_NI * cosine_1I + first_NI * sine_1I
    return tl.reshape(tl.join(turned_first, turned_second), (BLOCK_HEADS, 2 * BLOCK_PAIRS))


@triton.jit
def turn_heads_kernel(
    x_TNH,
    weight_H,
    positions_T,
    table_P2H,
    out_TNH,
    num_heads,
    x_stride,
    x_head_stride,
    out_stride,
    out_head_stride,
    epsilon,
    HEAD_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    IS_BACKWARDS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK_HEADS heads."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    head_N1 = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    inner_1H = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
    is_inside = (head_N1 < num_heads) & (inner_1H < HEAD_DIM)
    source_NH = x_TNH + row * x_stride + head_N1 * x_head_stride + inner_1H
    x_NH = tl.load(source_NH, mask=is_inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = x_TNH.dtype.element_ty
    if HAS_NORM:
        mean_N = tl.sum(x_NH * x_NH, 1) / HEAD_DIM
        x_NH = x_NH * tl.rsqrt(mean_N + epsilon)[:, None]
        if HAS_WEIGHT:
            weight_1H = tl.load(weight_H + inner_1H, mask=inner_1H < HEAD_DIM, other=0.0)
            x_NH = x_NH * weight_1H.to(tl.float32)
        x_NH = x_NH.to(dtype).to(tl.float32)
    cosine_1I, sine_1I = angles_of_pairs(
        table_P2H, tl.load(positions_T + row), HEAD_DIM, ROTATED, BLOCK_PAIRS
    )
    if IS_BACKWARDS:
        sine_1I = -sine_1I
    turned_NH = turned_pairs(x_NH, cosine_1I, sine_1I, BLOCK_HEADS, BLOCK_PAIRS)
    place_NH = out_TNH + row * out_stride + head_N1 * out_head_stride + inner_1H
    tl.store(place_NH, turned_NH.to(dtype), mask=is_inside)


def turn_heads(
    x_TNH: torch.Tensor,
    positions_T: torch.Tensor,
    table_P2H: torch.Tensor,
    epsilon: float | None,
    weight_H: torch.Tensor | None,
    out_TNH: torch.Tensor,
    *,
    backwards: bool = False,
    pdl: bool = False,
) -> None:
    """Write the heads, normalised if there is an epsilon, then turned, to `out_TNH`.

    Rows and heads of both may stand apart; the output may be the input. table_P2H: cosine and signed
    sine of each position [P, 2, 1, R], as `layers.rope.RopeTable` makes them.
    Reference: `ops.turn_heads.by_torch`.
    """
    num_rows, num_heads, head_dim = x_TNH.shape
    rotated = table_P2H.shape[-1]
    assert table_P2H.is_contiguous() and rotated % 2 == 0 and head_dim % 2 == 0
    assert x_TNH.stride(2) == 1 and out_TNH.stride(2) == 1 and rotated <= head_dim
    if not num_rows:
        return
    block = max(16, triton.next_power_of_2(head_dim))
    heads = min(max(1, BLOCK_NUMBERS // block), triton.next_power_of_2(num_heads))
    turn_heads_kernel[(num_rows, -(-num_heads // heads))](
        x_TNH,
        weight_H,
        positions_T,
        table_P2H,
        out_TNH,
        num_heads,
        x_TNH.stride(0),
        x_TNH.stride(1),
        out_TNH.stride(0),
        out_TNH.stride(1),
        epsilon or 0.0,
        HEAD_DIM=head_dim,
        ROTATED=rotated,
        HAS_NORM=epsilon is not None,
        HAS_WEIGHT=weight_H is not None,
        IS_BACKWARDS=backwards,
        BLOCK_HEADS=heads,
        BLOCK_PAIRS=block // 2,
        num_warps=4,
        enable_fp_fusion=False,
        PDL=pdl,
        **launch_options(pdl),
    )
