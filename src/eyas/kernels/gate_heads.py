"""The kernel of `ops.gate_heads`: numbers times the sigmoid of a gate.

Promises: the arithmetic of the torch body, each number by itself: the sigmoid is rounded to the gate's
type before the product.
Does not know: what the numbers are.

Legend: T rows, X numbers of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

BLOCK = 1024


@triton.jit(do_not_specialize=("gate_stride",))
def gate_heads_kernel(
    x_TX, gate_TX, out_TX, size, gate_stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """One program a row and BLOCK columns."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < size
    x = tl.load(x_TX + row * size + column, mask=is_inside, other=0.0)
    gate = tl.load(gate_TX + row * gate_stride + column, mask=is_inside, other=0.0)
    opened = (1.0 / (1.0 + tl.exp(-gate.to(tl.float32)))).to(gate.dtype)
    out = (x.to(tl.float32) * opened.to(tl.float32)).to(out_TX.dtype.element_ty)
    tl.store(out_TX + row * size + column, out, mask=is_inside)


def gate_heads(x_TX: torch.Tensor, gate_TX: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """x * sigmoid(gate) [T, X]; the reference is `ops.gate_heads.by_torch`. Rows of the gate may stand
    apart."""
    num_rows, size = x_TX.shape
    assert x_TX.is_contiguous() and gate_TX.stride(1) == 1 and gate_TX.shape == x_TX.shape
    out_TX = torch.empty_like(x_TX)
    if num_rows:
        gate_heads_kernel[(num_rows, -(-size // BLOCK))](
            x_TX,
            gate_TX,
            out_TX,
            size,
            gate_TX.stride(0),
            BLOCK=BLOCK,
            PDL=pdl,
            **launch_options(pdl),
        )
    return out_TX
