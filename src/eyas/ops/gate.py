"""Apply the gated activation of the feed-forward block: that of one half of the columns times the
other.

Promises: a row has the same bits in any call. torch's CPU kernels use vector code for most elements
and scalar code for the last few of each run, and the two differ in the last bit of an exponential.
So the activation is called on the strided gate columns (a run is then one row) and on so few
elements that torch does not split a row between threads.
Does not know: the rest of the layer.

Legend: T rows, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F

from eyas.native.rows import compiled_rows
from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import sigmoid

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu", "clamped_silu"]
"""clamped_swiglu is gpt-oss's: the gate is at most LIMIT and is multiplied by the sigmoid of itself
times ALPHA; the other half is kept within LIMIT of 0, and 1 is added to it. clamped_silu is
DeepSeek-V4's: both are clamped likewise, to SILU_LIMIT, and nothing else differs from silu."""
SERIAL_ELEMENTS: dict[Activation, int] = {
    "silu": 32768,
    "gelu_tanh": 2048,
    "clamped_swiglu": 32768,
    "clamped_silu": 32768,
}
"""torch runs these CPU kernels on one thread up to so many elements (their grain sizes)."""
WHOLE_VECTORS = 64
"""Numbers that torch's vector code takes at once, in float32 and in 16 bits on every processor."""
ALPHA = 1.702
LIMIT = 7.0
SILU_LIMIT = 10.0


@Operation
def gate(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return [T, F] the activation of the first half of the columns times the second half.

    The activation is rounded to the tensor's type before the product.
    """
    num_rows, num_columns = gate_up_T2F.shape
    size = num_columns // 2
    limit = SERIAL_ELEMENTS[activation]
    if gate_up_T2F.device.type == "cpu" and num_rows * size > limit:
        rows = max(1, limit // size)
        pieces = [_gated_serial(piece, activation) for piece in gate_up_T2F.split(rows)]
        return torch.cat(pieces)
    return _gated_serial(gate_up_T2F, activation)


def gate_by_vectors(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return what `gate` does, each element by torch's vector code on a CPU: the bits of a column then
    do not depend on how many columns there are."""
    size = gate_up_T2F.shape[1] // 2
    missing = -size % WHOLE_VECTORS
    if not missing:
        return gate(gate_up_T2F, activation)
    halves_2T = F.pad(gate_up_T2F.unflatten(1, (2, size)), (0, missing))
    return gate(halves_2T.flatten(1), activation)[:, :size]


@gate.kernel
def _by_kernel(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation not in ("silu", "clamped_silu"):
        return NotImplemented
    return _launcher()(gate_up_T2F, activation, pdl=gate_up_T2F.is_cuda)


@gate.native
def _by_native(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    rows = compiled_rows(gate_up_T2F) if activation == "silu" else None
    if rows is None:
        return NotImplemented
    return rows.gate(gate_up_T2F if gate_up_T2F.stride(1) == 1 else gate_up_T2F.contiguous())


def _gated_serial(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    gate_TF, up_TF = gate_up_T2F.chunk(2, -1)
    if activation == "clamped_swiglu":
        return _clamped_swiglu(gate_TF, up_TF)
    if activation == "clamped_silu":
        gate_TF.clamp_(max=SILU_LIMIT)
        up_TF.clamp_(-SILU_LIMIT, SILU_LIMIT)
    if activation in ("silu", "clamped_silu"):
        return F.silu(gate_TF).mul_(up_TF)
    return F.gelu(gate_TF, approximate="tanh").mul_(up_TF)


def _clamped_swiglu(gate_TF: torch.Tensor, up_TF: torch.Tensor) -> torch.Tensor:
    dtype = gate_TF.dtype
    gate_TF, up_TF = gate_TF.float().clamp(max=LIMIT), up_TF.float().clamp(-LIMIT, LIMIT)
    swish_TF = (gate_TF * sigmoid(gate_TF * ALPHA)).to(dtype)
    return (swish_TF * (up_TF + 1)).to(dtype)


@cache
def _launcher() -> Callable[..., torch.Tensor]:
    """The kernel's launcher: an import in each of a forward's many calls would cost microseconds."""
    from eyas.kernels.gate import gated_silu as launch

    return launch
