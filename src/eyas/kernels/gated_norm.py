"""The kernel of `ops.gated_norm`: normalise each head, and multiply it by a gate.

Promises: the arithmetic of the torch body; a row's bits depend on that row alone.
Does not know: what the heads are.

Legend: T rows, N heads, D numbers of a head, X = N * D.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

BLOCK_HEADS = 4


@triton.jit(do_not_specialize=("gate_stride",))
def gated_norm_kernel(
    x_TND,
    gate_TX,
    weight_D,
    out_TX,
    gate_stride,
    epsilon,
    NUM_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK_HEADS heads."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    head_N1 = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    inner_D = tl.arange(0, BLOCK)
    is_inner_D = inner_D < SIZE
    is_inside_ND = (head_N1 < NUM_HEADS) & is_inner_D[None, :]
    at_ND = head_N1 * SIZE + inner_D[None, :]
    x_ND = tl.load(x_TND + row * (NUM_HEADS * SIZE) + at_ND, mask=is_inside_ND, other=0.0)
    gate_ND = tl.load(gate_TX + row * gate_stride + at_ND, mask=is_inside_ND, other=0.0)
    weight_D = tl.load(weight_D + inner_D, mask=is_inner_D, other=0.0)
    mean_N = tl.sum(x_ND * x_ND, 1) / SIZE
    normed_ND = x_ND * tl.rsqrt(mean_N + epsilon)[:, None] * weight_D[None, :]
    gate_ND = gate_ND.to(tl.float32)
    out_ND = normed_ND * (gate_ND / (1.0 + tl.exp(-gate_ND)))
    out = out_TX + row * (NUM_HEADS * SIZE) + at_ND
    tl.store(out, out_ND.to(out_TX.dtype.element_ty), mask=is_inside_ND)


def gated_norm(
    x_TND: torch.Tensor,
    gate_TX: torch.Tensor,
    weight_D: torch.Tensor,
    epsilon: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """[T, N * D] in the gate's type. Reference: `ops.gated_norm.by_torch`. Rows of the gate may stand
    apart."""
    num_rows, num_heads, size = x_TND.shape
    assert x_TND.is_contiguous() and gate_TX.stride(1) == 1
    out_TX = gate_TX.new_empty((num_rows, num_heads * size))
    if num_rows:
        gated_norm_kernel[(num_rows, -(-num_heads // BLOCK_HEADS))](
            x_TND,
            gate_TX,
            weight_D,
            out_TX,
            gate_TX.stride(0),
            epsilon,
            NUM_HEADS=num_heads,
            SIZE=size,
            BLOCK_HEADS=BLOCK_HEADS,
            BLOCK=triton.next_power_of_2(size),
            num_warps=2,
            PDL=pdl,
            **launch_options(pdl),
        )
    return out_TX
