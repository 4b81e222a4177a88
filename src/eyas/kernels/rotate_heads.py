"""The kernels of `ops.rotate_heads`: normalise heads, turn neighbouring numbers by their row's angles.

Promises: the arithmetic of the torch body, rounded to the model's type where torch rounds. A row's bits
depend on that row alone.
Does not know: what the heads are.

Legend: T rows, N heads, H head dim, R rotated dimensions, the last of a head; P positions, I = H / 2
pairs of a head, X numbers of a row of several heads.
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
def rotated_pairs(
    x_NH, cosine_1I, sine_1I, BLOCK_HEADS: tl.constexpr, BLOCK_PAIRS: tl.constexpr
):  # fmt: skip
    """[N, H] heads in float32, neighbouring numbers rotated."""
    pairs_NI2 = tl.reshape(x_NH, (BLOCK_HEADS, BLOCK_PAIRS, 2))
    first_NI, second_NI = tl.split(pairs_NI2)
    rotated_first = first_NI * cosine_1I - second_NI * sine_1I
    rotated_second = second_NI * cosine_1I + first_NI * sine_1I
    return tl.reshape(tl.join(rotated_first, rotated_second), (BLOCK_HEADS, 2 * BLOCK_PAIRS))


@triton.jit
def _rotate(
    x_NH, weight_H, out_NH, table_P2H, position, first, num_heads, x_head_stride, out_head_stride,
    epsilon, HEAD_DIM: tl.constexpr, ROTATED: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, IS_BACKWARDS: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):  # fmt: skip
    """Turn BLOCK_HEADS heads of a row from the first on."""
    head_N1 = (first + tl.arange(0, BLOCK_HEADS))[:, None]
    inner_1H = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
    is_inside = (head_N1 < num_heads) & (inner_1H < HEAD_DIM)
    dtype: tl.constexpr = x_NH.dtype.element_ty
    own_NH = tl.load(x_NH + head_N1 * x_head_stride + inner_1H, mask=is_inside, other=0.0)
    own_NH = own_NH.to(tl.float32)
    if HAS_NORM:
        mean_N = tl.sum(own_NH * own_NH, 1) / HEAD_DIM
        own_NH = own_NH * tl.rsqrt(mean_N + epsilon)[:, None]
        if HAS_WEIGHT:
            weight_1H = tl.load(weight_H + inner_1H, mask=inner_1H < HEAD_DIM, other=0.0)
            own_NH = own_NH * weight_1H.to(tl.float32)
        own_NH = own_NH.to(dtype).to(tl.float32)
    cosine_1I, sine_1I = angles_of_pairs(table_P2H, position, HEAD_DIM, ROTATED, BLOCK_PAIRS)
    if IS_BACKWARDS:
        sine_1I = -sine_1I
    rotated_NH = rotated_pairs(own_NH, cosine_1I, sine_1I, BLOCK_HEADS, BLOCK_PAIRS)
    tl.store(out_NH + head_N1 * out_head_stride + inner_1H, rotated_NH.to(dtype), mask=is_inside)


@triton.jit
def rotate_heads_kernel(
    x_TNH, weight_H, positions_T, table_P2H, out_TNH, num_heads, x_stride, x_head_stride,
    out_stride, out_head_stride, epsilon,
    HEAD_DIM: tl.constexpr, ROTATED: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, IS_BACKWARDS: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK_HEADS heads."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    _rotate(
        x_TNH + row * x_stride, weight_H, out_TNH + row * out_stride, table_P2H,
        tl.load(positions_T + row), tl.program_id(1) * BLOCK_HEADS, num_heads, x_head_stride,
        out_head_stride, epsilon, HEAD_DIM, ROTATED, HAS_NORM, HAS_WEIGHT, IS_BACKWARDS,
        BLOCK_HEADS, BLOCK_PAIRS,
    )  # fmt: skip


@triton.jit
def rotate_shared_kernel(
    q_TX, kv_TX, weight_H, positions_T, table_P2H, rotated_TX, q_stride, kv_stride, epsilon,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_INDEX_HEADS: tl.constexpr,
    INDEX_DIM: tl.constexpr, ROTATED: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, BLOCK_INDEX_HEADS: tl.constexpr, BLOCK_INDEX_PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a row and BLOCK_HEADS query heads; the next one has its key; the others have
    BLOCK_INDEX_HEADS heads of the indexer."""
    enter(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions_T + row)
    NUM_PARTS: tl.constexpr = (NUM_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    SIZE: tl.constexpr = NUM_HEADS * HEAD_DIM
    q, out = q_TX + row * q_stride, rotated_TX + row * (SIZE + NUM_INDEX_HEADS * INDEX_DIM)
    if part < NUM_PARTS:
        _rotate(
            q, weight_H, out, table_P2H, position, part * BLOCK_HEADS, NUM_HEADS, HEAD_DIM,
            HEAD_DIM, epsilon, HEAD_DIM, ROTATED, True, False, False, BLOCK_HEADS, BLOCK_PAIRS,
        )  # fmt: skip
    elif part == NUM_PARTS:
        kv = kv_TX + row * kv_stride
        _rotate(
            kv, weight_H, kv, table_P2H, position, 0, 1, HEAD_DIM, HEAD_DIM, epsilon, HEAD_DIM,
            ROTATED, True, True, False, 1, BLOCK_PAIRS,
        )  # fmt: skip
    elif NUM_INDEX_HEADS > 0:
        _rotate(
            q + SIZE, weight_H, out + SIZE, table_P2H, position,
            (part - NUM_PARTS - 1) * BLOCK_INDEX_HEADS, NUM_INDEX_HEADS, INDEX_DIM, INDEX_DIM,
            epsilon, INDEX_DIM, ROTATED, False, False, False, BLOCK_INDEX_HEADS, BLOCK_INDEX_PAIRS,
        )  # fmt: skip


def rotate_heads(
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
    """Write the heads, normalised if there is an epsilon, then rotated, to `out_TNH`.

    Rows and heads of both may stand apart; the output may be the input. table_P2H: cosine and signed
    sine of each position [P, 2, 1, R], as `layers.rope.RopeTable` makes them.
    Reference: `ops.rotate_heads.by_torch`.
    """
    num_rows, num_heads, head_dim = x_TNH.shape
    rotated = table_P2H.shape[-1]
    assert table_P2H.is_contiguous() and rotated % 2 == 0 and head_dim % 2 == 0
    assert x_TNH.stride(2) == 1 and out_TNH.stride(2) == 1 and rotated <= head_dim
    if not num_rows:
        return
    block = max(16, triton.next_power_of_2(head_dim))
    heads = min(max(1, BLOCK_NUMBERS // block), triton.next_power_of_2(num_heads))
    rotate_heads_kernel[(num_rows, -(-num_heads // heads))](
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


def rotate_shared(
    q_TX: torch.Tensor,
    kv_TH: torch.Tensor,
    weight_H: torch.Tensor,
    positions_T: torch.Tensor,
    table_P2H: torch.Tensor,
    epsilon: float,
    num_heads: int,
    num_index_heads: int,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """Normalise and rotate the key in place; return the query heads, normalised and rotated, and behind
    them the indexer's heads, rotated, [T, X].

    q_TX: query heads and the indexer's, next to each other; rows of both tensors may stand apart.
    Reference: `ops.rotate_heads.rotate_shared`.
    """
    num_rows, head_dim = kv_TH.shape
    index_dim = 0
    if num_index_heads:
        index_dim = (q_TX.shape[1] - num_heads * head_dim) // num_index_heads
    assert q_TX.shape[1] == num_heads * head_dim + num_index_heads * index_dim
    assert q_TX.stride(1) == 1 and kv_TH.stride(1) == 1 and table_P2H.is_contiguous()
    rotated_TX = torch.empty(q_TX.shape, dtype=q_TX.dtype, device=q_TX.device)
    if not num_rows:
        return rotated_TX
    block, index_block = (max(16, triton.next_power_of_2(dim)) for dim in (head_dim, index_dim))
    heads = min(max(1, BLOCK_NUMBERS // block), triton.next_power_of_2(num_heads))
    index_heads = min(max(1, BLOCK_NUMBERS // index_block), max(1, num_index_heads))
    index_heads = 1 << (index_heads.bit_length() - 1)
    num_programs = -(-num_heads // heads) + 1 + -(-num_index_heads // index_heads)
    rotate_shared_kernel[(num_rows, num_programs)](
        q_TX, kv_TH, weight_H, positions_T, table_P2H, rotated_TX, q_TX.stride(0), kv_TH.stride(0),
        epsilon,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim, NUM_INDEX_HEADS=num_index_heads,
        INDEX_DIM=index_dim, ROTATED=table_P2H.shape[-1], BLOCK_HEADS=heads,
        BLOCK_PAIRS=block // 2, BLOCK_INDEX_HEADS=index_heads, BLOCK_INDEX_PAIRS=index_block // 2,
        num_warps=4, enable_fp_fusion=False, PDL=pdl, **launch_options(pdl),
    )  # fmt: skip
    return rotated_TX
