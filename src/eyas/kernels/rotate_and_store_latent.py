"""The kernel of `ops.rotate_and_store_latent`: rotate queries; normalise, rotate and store latent rows.

Promises: the arithmetic of the torch body, rounded to the model's type where torch rounds; what is no
finite number reaches no slot. A row's bits depend on that row alone.
Does not know: what attends, which slots are free.

Legend: T rows, N query heads, H rotated dimensions, F latent size, D = F + H numbers of a stored row,
S slots, P positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.add_norm import normalized
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.rotate_and_store import BLOCK_HEADS, largest_stored, rotated, to_stored


@triton.jit
def rotate_and_store_latent_kernel(
    row_TD,
    rotated_TNH,
    positions_T,
    table_P2H,
    slots_T,
    kv_S1D,
    weight_F,
    query_TND,
    row_stride,
    rotated_stride,
    rotated_head_stride,
    slot_stride,
    epsilon,
    inverse_scale,
    NUM_HEADS: tl.constexpr,
    RANK: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK_HEADS heads, and one more for the row's latent and key; pairs
    (h, h + H/2) stand in two tiles."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    head_N1 = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    inner_1H = tl.arange(0, BLOCK_HALF)[None, :]
    is_inner = inner_1H < HALF
    table = table_P2H + tl.load(positions_T + row) * (4 * HALF) + inner_1H
    cosine_low = tl.load(table, mask=is_inner, other=0.0).to(tl.float32)
    cosine_high = tl.load(table + HALF, mask=is_inner, other=0.0).to(tl.float32)
    sine_low = tl.load(table + 2 * HALF, mask=is_inner, other=0.0).to(tl.float32)
    sine_high = tl.load(table + 3 * HALF, mask=is_inner, other=0.0).to(tl.float32)
    if tl.program_id(1) + 1 < tl.num_programs(1):
        is_inside = is_inner & (head_N1 < NUM_HEADS)
        source = rotated_TNH + row * rotated_stride + head_N1 * rotated_head_stride + inner_1H
        low = tl.load(source, mask=is_inside, other=0.0)
        high = tl.load(source + HALF, mask=is_inside, other=0.0)
        query = query_TND + (row * NUM_HEADS + head_N1) * (RANK + 2 * HALF) + RANK + inner_1H
        tl.store(query, rotated(low, high, cosine_low, sine_low), mask=is_inside)
        tl.store(query + HALF, rotated(high, low, cosine_high, sine_high), mask=is_inside)
    else:
        latent = row_TD + row * row_stride
        slot = kv_S1D + tl.load(slots_T + row) * slot_stride
        latent_F = tl.arange(0, BLOCK_RANK)
        is_latent = latent_F < RANK
        x_F = tl.load(latent + latent_F, mask=is_latent, other=0.0)
        weight = tl.load(weight_F + latent_F, mask=is_latent, other=0.0).to(tl.float32)
        normed_F = normalized(x_F.to(tl.float32), weight, RANK, epsilon, True).to(x_F.dtype)
        tl.store(
            slot + latent_F, to_stored(normed_F, inverse_scale, kv_S1D, LARGEST), mask=is_latent
        )
        key_low = tl.load(latent + RANK + inner_1H, mask=is_inner, other=0.0)
        key_high = tl.load(latent + RANK + HALF + inner_1H, mask=is_inner, other=0.0)
        rotated_low = rotated(key_low, key_high, cosine_low, sine_low)
        rotated_high = rotated(key_high, key_low, cosine_high, sine_high)
        key = slot + RANK + inner_1H
        kept_low = to_stored(rotated_low, inverse_scale, kv_S1D, LARGEST)
        kept_high = to_stored(rotated_high, inverse_scale, kv_S1D, LARGEST)
        tl.store(key, kept_low, mask=is_inner)
        tl.store(key + HALF, kept_high, mask=is_inner)


def rotate_and_store_latent(
    row_TD: torch.Tensor,
    rotated_TNH: torch.Tensor,
    positions_T: torch.Tensor,
    table_P2H: torch.Tensor,
    slots_T: torch.Tensor,
    kv_S1GD: torch.Tensor,
    weight_F: torch.Tensor,
    epsilon: float,
    query_TND: torch.Tensor,
    *,
    scale: float = 1.0,
    pdl: bool = False,
) -> None:
    """Write the last H numbers of queries, and the latent rows to their slots, kv_S1GD [S, 1, 1, D].

    row_TD: rows may stand apart. rotated_TNH: rows and heads may stand apart. table_P2H: cosine and
    signed sine of each position [P, 2, 1, H], as `layers.rope.RopeTable` makes them. query_TND:
    contiguous; its first F numbers are left alone. scale: of the cache, where its type is narrower
    than the model's.
    Reference: `ops.rotate_and_store_latent.by_torch`. Rows that share a slot (the null slot) leave it
    with one of their numbers.
    """
    num_rows, num_heads, rotated_dim = rotated_TNH.shape
    rank = row_TD.shape[1] - rotated_dim
    assert rotated_dim % 2 == 0 and kv_S1GD.shape[1:] == (1, 1, rank + rotated_dim)
    assert query_TND.is_contiguous() and table_P2H.is_contiguous() and row_TD.stride(1) == 1
    assert rotated_TNH.stride(2) == 1 and query_TND.shape[2] == rank + rotated_dim
    if not num_rows:
        return
    rotate_and_store_latent_kernel[(num_rows, -(-num_heads // BLOCK_HEADS) + 1)](
        row_TD,
        rotated_TNH,
        positions_T,
        table_P2H,
        slots_T,
        kv_S1GD,
        weight_F,
        query_TND,
        row_TD.stride(0),
        rotated_TNH.stride(0),
        rotated_TNH.stride(1),
        kv_S1GD.stride(0),
        epsilon,
        1.0 / scale,
        NUM_HEADS=num_heads,
        RANK=rank,
        HALF=rotated_dim // 2,
        BLOCK_HEADS=BLOCK_HEADS,
        BLOCK_RANK=triton.next_power_of_2(rank),
        BLOCK_HALF=triton.next_power_of_2(rotated_dim // 2),
        LARGEST=largest_stored(row_TD.dtype, kv_S1GD.dtype),
        num_warps=2,
        enable_fp_fusion=False,
        PDL=pdl,
        **launch_options(pdl),
    )
