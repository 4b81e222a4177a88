"""The kernel of `ops.gate_heads`: numbers times the sigmoid of a gate.

Promises: the arithmetic of the torch body, each number by itself: the sigmoid is rounded to the gate's
type before the product.
Does not know: what the numbers are.

Legend: T rows, X numbers of a row, Z parts of a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options
from eyas.kernels.parts import part_sum

BLOCK = 1024


@triton.jit(do_not_specialize=("gate_stride",))
def gate_heads_kernel(
    x_TX,
    gate_ZTX,
    out_TX,
    size,
    part_stride,
    gate_stride,
    NUM_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK columns."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < size
    x = tl.load(x_TX + row * size + column, mask=is_inside, other=0.0)
    source = gate_ZTX + row * gate_stride + column
    gate = part_sum(source, part_stride, is_inside, NUM_PARTS).to(x.dtype)
    opened = (1.0 / (1.0 + tl.exp(-gate.to(tl.float32)))).to(gate.dtype)
    out = (x.to(tl.float32) * opened.to(tl.float32)).to(out_TX.dtype.element_ty)
    tl.store(out_TX + row * size + column, out, mask=is_inside)


def gate_heads(x_TX: torch.Tensor, gate: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """x * sigmoid(gate) [T, X]; the reference is `ops.gate_heads.by_torch`.

    gate: [T, X], or float32 parts [Z, T, X] of its sum; rows may stand apart.
    """
    num_rows, size = x_TX.shape
    num_parts, part_stride = (len(gate), gate.stride(0)) if gate.dim() == 3 else (1, 0)
    assert x_TX.is_contiguous() and gate.stride(-1) == 1 and gate.shape[-2:] == x_TX.shape
    out_TX = torch.empty_like(x_TX)
    if num_rows:
        gate_heads_kernel[(num_rows, -(-size // BLOCK))](
            x_TX,
            gate,
            out_TX,
            size,
            part_stride,
            gate.stride(-2),
            NUM_PARTS=num_parts,
            BLOCK=BLOCK,
            PDL=pdl,
            **launch_options(pdl),
        )
    return out_TX
