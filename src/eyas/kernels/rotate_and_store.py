"""The kernel of `ops.rotate_and_store`: normalise and rotate heads, store keys and values.

Promises: the arithmetic of `ops.rotate_and_store`, rounded to the model's type where torch
rounds, and to the cache's where it is another; what is no finite number reaches no slot. A row's bits
depend on that row alone.
Does not know: what attends, which slots are free.

Legend: T rows, X = (N + 2G) * H columns of a row, N query heads, G key/value heads, H head dim,
S slots, P positions, Z parts of a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from eyas.kernels.launch import launch_options
from eyas.kernels.parts import part_sum

BLOCK_HEADS = 8


@triton.jit
def rotated(a, b, cosine, sine):
    """a * cosine + b * sine, both products rounded to the model's type as torch does."""
    dtype: tl.constexpr = a.dtype
    kept = (a.to(tl.float32) * cosine).to(dtype).to(tl.float32)
    swapped = (b.to(tl.float32) * sine).to(dtype).to(tl.float32)
    return (kept + swapped).to(dtype)


@triton.jit
def to_stored(x, inverse_scale, slots, LARGEST: tl.constexpr):
    """x as the cache at `slots` stores it, with 0 for infinities and what is no number. LARGEST: of the
    cache's type; 0 where it is that of x, and nothing is scaled."""
    x32 = x.to(tl.float32)
    x32 = tl.where(tl.abs(x32) < float("inf"), x32, 0.0)
    if LARGEST > 0:
        x32 = tl.minimum(tl.maximum(x32 * inverse_scale, -LARGEST), LARGEST)
    return x32.to(slots.dtype.element_ty)


def largest_stored(dtype: torch.dtype, stored: torch.dtype) -> float:
    """Return the largest number of the cache's type; 0 where the model has the same."""
    return 0.0 if stored == dtype else torch.finfo(stored).max


@triton.jit
def rotate_and_store_kernel(
    heads_ZTX,
    positions_T,
    table_P2H,
    slots_T,
    kv_S2GH,
    q_weight_H,
    k_weight_H,
    q_TNH,
    part_stride,
    row_stride,
    slot_stride,
    side_stride,
    kv_head_stride,
    epsilon,
    key_inverse,
    value_inverse,
    NUM_PARTS: tl.constexpr,
    NUM_QUERY_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK_HEADS heads; pairs (h, h + H/2) stand in two tiles.

    Weights and angles are read before the wait: they are older than the product of the heads, which has
    waited before it lets this kernel start. Slots may be the result of the kernel before.
    """
    if PDL:
        cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    head_N1 = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    inner_1H = tl.arange(0, BLOCK_HALF)[None, :]
    is_inner = inner_1H < HALF
    is_inside = is_inner & (head_N1 < NUM_QUERY_HEADS + 2 * NUM_KV_HEADS)
    is_query = head_N1 < NUM_QUERY_HEADS
    is_value = head_N1 >= NUM_QUERY_HEADS + NUM_KV_HEADS
    table = table_P2H + tl.load(positions_T + row) * (4 * HALF)
    table = tl.broadcast_to(table + inner_1H, (BLOCK_HEADS, BLOCK_HALF))
    cosine_low = tl.load(table, mask=is_inside, other=0.0).to(tl.float32)
    cosine_high = tl.load(table + HALF, mask=is_inside, other=0.0).to(tl.float32)
    sine_low = tl.load(table + 2 * HALF, mask=is_inside, other=0.0).to(tl.float32)
    sine_high = tl.load(table + 3 * HALF, mask=is_inside, other=0.0).to(tl.float32)
    weight_low, weight_high = 1.0, 1.0
    if HAS_NORM:
        q_low = tl.load(q_weight_H + inner_1H, mask=is_inner, other=0.0).to(tl.float32)
        q_high = tl.load(q_weight_H + HALF + inner_1H, mask=is_inner, other=0.0).to(tl.float32)
        k_low = tl.load(k_weight_H + inner_1H, mask=is_inner, other=0.0).to(tl.float32)
        k_high = tl.load(k_weight_H + HALF + inner_1H, mask=is_inner, other=0.0).to(tl.float32)
        weight_low = tl.where(is_query, q_low, k_low)
        weight_high = tl.where(is_query, q_high, k_high)
    if PDL:
        cuda.gdc_wait()
    slot = tl.load(slots_T + row)
    dtype: tl.constexpr = q_TNH.dtype.element_ty
    source = heads_ZTX + row * row_stride + head_N1 * (2 * HALF) + inner_1H
    low = part_sum(source, part_stride, is_inside, NUM_PARTS).to(dtype)
    high = part_sum(source + HALF, part_stride, is_inside, NUM_PARTS).to(dtype)
    a, b = low, high
    if HAS_NORM:
        a, b = low.to(tl.float32), high.to(tl.float32)
        scale = tl.rsqrt((tl.sum(a * a + b * b, 1) / (2 * HALF)) + epsilon)[:, None]
        a = (a * scale).to(dtype).to(tl.float32) * weight_low
        b = (b * scale).to(dtype).to(tl.float32) * weight_high
        a, b = a.to(dtype), b.to(dtype)
    rotated_low = rotated(a, b, cosine_low, sine_low)
    rotated_high = rotated(b, a, cosine_high, sine_high)
    q = q_TNH + (row * NUM_QUERY_HEADS + head_N1) * (2 * HALF) + inner_1H
    tl.store(q, rotated_low, mask=is_inside & is_query)
    tl.store(q + HALF, rotated_high, mask=is_inside & is_query)
    kv_head = head_N1 - NUM_QUERY_HEADS - tl.where(is_value, NUM_KV_HEADS, 0)
    kv = kv_S2GH + slot * slot_stride + inner_1H
    kv += tl.where(is_value, side_stride, 0) + kv_head * kv_head_stride
    is_stored = is_inside & (head_N1 >= NUM_QUERY_HEADS)
    inverse = tl.where(is_value, value_inverse, key_inverse)
    kept_low = to_stored(tl.where(is_value, low, rotated_low), inverse, kv_S2GH, LARGEST)
    kept_high = to_stored(tl.where(is_value, high, rotated_high), inverse, kv_S2GH, LARGEST)
    tl.store(kv, kept_low, mask=is_stored)
    tl.store(kv + HALF, kept_high, mask=is_stored)


def rotate_and_store(
    heads: torch.Tensor,
    positions_T: torch.Tensor,
    table_P2H: torch.Tensor,
    slots_T: torch.Tensor,
    kv_S2GH: torch.Tensor,
    num_query_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    q_weight_H: torch.Tensor | None = None,
    k_weight_H: torch.Tensor | None = None,
    epsilon: float = 0.0,
    pdl: bool = False,
) -> torch.Tensor:
    """Rotated queries [T, N, H]; keys and values go to their rows' slots of `kv_S2GH`.

    heads: query, key and value heads of each row next to each other, [T, X], or float32 parts [Z, T, X]
    of their sum; rows may stand apart. table_P2H: cosine and signed sine of each position [P, 2, 1, H],
    as `layers.rope.RopeTable` makes them, of the model's type. key_scale, value_scale: of the cache,
    where its type is narrower than the model's. q_weight_H, k_weight_H: both or neither; with them,
    heads are normalised first.
    Reference: `ops.rotate_and_store.by_torch`. Rows that share a slot (the null slot) leave it with
    one of their numbers.
    """
    num_rows, width = heads.shape[-2:]
    num_parts, part_stride = (len(heads), heads.stride(0)) if heads.dim() == 3 else (1, 0)
    assert width == (num_query_heads + 2 * num_kv_heads) * head_dim and heads.stride(-1) == 1
    assert head_dim % 2 == 0 and kv_S2GH.stride(3) == 1
    assert table_P2H.is_contiguous() and table_P2H.shape[-1] == head_dim
    assert (q_weight_H is None) == (k_weight_H is None)
    dtype = table_P2H.dtype
    q_TNH = heads.new_empty((num_rows, num_query_heads, head_dim), dtype=dtype)
    if num_rows:
        num_programs = -(-(num_query_heads + 2 * num_kv_heads) // BLOCK_HEADS)
        rotate_and_store_kernel[(num_rows, num_programs)](
            heads,
            positions_T,
            table_P2H,
            slots_T,
            kv_S2GH,
            q_weight_H,
            k_weight_H,
            q_TNH,
            part_stride,
            heads.stride(-2),
            kv_S2GH.stride(0),
            kv_S2GH.stride(1),
            kv_S2GH.stride(2),
            epsilon,
            1.0 / key_scale,
            1.0 / value_scale,
            NUM_PARTS=num_parts,
            NUM_QUERY_HEADS=num_query_heads,
            NUM_KV_HEADS=num_kv_heads,
            HALF=head_dim // 2,
            HAS_NORM=q_weight_H is not None,
            LARGEST=largest_stored(dtype, kv_S2GH.dtype),
            BLOCK_HEADS=BLOCK_HEADS,
            BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
            num_warps=2,
            enable_fp_fusion=False,
            PDL=pdl,
            **launch_options(pdl),
        )
    return q_TNH
