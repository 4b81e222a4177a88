"""The kernel of `ops.gated_silu`: silu of one half of the columns times the other.

Promises: the arithmetic of `ops.gated_silu`, each element by itself: the silu is rounded to the
tensor's own type before the product. `gated` is also the epilogue of `gemm.gated_product`, so that
both give the same bits.
Does not know: which product made the columns.

Legend: T rows, F feed-forward size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options

BLOCK = 1024
ALPHA = tl.constexpr(1.702)
LIMIT = tl.constexpr(7.0)
"""The numbers of `ops.gate` for `clamped_swiglu`."""
SILU_LIMIT = tl.constexpr(10.0)
"""The number of `ops.gate` for `clamped_silu`."""


@triton.jit
def gated(gate, up):
    """silu(gate) * up of values in the model's type; the result is float32, still to be rounded."""
    gate32 = gate.to(tl.float32)
    silu = (gate32 / (1.0 + tl.exp(-gate32))).to(gate.dtype)
    return silu.to(tl.float32) * up.to(tl.float32)


@triton.jit
def clamped_swiglu(gate, up):
    """As `gated`, of the activation of that name in `ops.gate`."""
    gate32 = tl.minimum(gate.to(tl.float32), LIMIT)
    up32 = tl.clamp(up.to(tl.float32), -LIMIT, LIMIT)
    swish = (gate32 / (1.0 + tl.exp(-(gate32 * ALPHA)))).to(gate.dtype)
    return swish.to(tl.float32) * (up32 + 1.0)


@triton.jit
def clamped_silu(gate, up):
    """As `gated`, of the activation of that name in `ops.gate`."""
    gate32 = tl.minimum(gate.to(tl.float32), SILU_LIMIT)
    up32 = tl.clamp(up.to(tl.float32), -SILU_LIMIT, SILU_LIMIT)
    return gated(gate32.to(gate.dtype), up32.to(up.dtype))


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr):
    """As `gated`, of the activation that is named, as in `ops.gate`."""
    if ACTIVATION == "clamped_swiglu":
        out = clamped_swiglu(gate, up)
    elif ACTIVATION == "clamped_silu":
        out = clamped_silu(gate, up)
    else:
        out = gated(gate, up)
    return out


@triton.jit
def gated_silu_kernel(
    gate_up_T2F,
    out_TF,
    row_stride,
    size,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK columns."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < size
    gate = tl.load(gate_up_T2F + row * row_stride + columns, mask=is_inside, other=0.0)
    up = tl.load(gate_up_T2F + row * row_stride + size + columns, mask=is_inside, other=0.0)
    out = activated(gate, up, ACTIVATION).to(out_TF.dtype.element_ty)
    tl.store(out_TF + row * size + columns, out, mask=is_inside)


def gated_silu(
    gate_up_T2F: torch.Tensor, activation: str = "silu", *, pdl: bool = False
) -> torch.Tensor:
    """[T, 2F], columns next to each other, to [T, F]; the reference is `ops.gate.by_torch`.

    activation: "silu", "clamped_swiglu" or "clamped_silu".
    """
    num_rows, num_columns = gate_up_T2F.shape
    size = num_columns // 2
    out_TF = gate_up_T2F.new_empty((num_rows, size))
    if num_rows:
        gated_silu_kernel[(num_rows, -(-size // BLOCK))](
            gate_up_T2F,
            out_TF,
            gate_up_T2F.stride(0),
            size,
            ACTIVATION=activation,
            BLOCK=BLOCK,
            PDL=pdl,
            **launch_options(pdl),
        )
    return out_TF
