"""Multiply the output of attention by the sigmoid of a gate.

Promises: a row's bits depend on that row alone.
Does not know: what was attended to.

Legend: T rows, X numbers of a row's heads, Z parts of a sum.
"""

from __future__ import annotations

import torch

from eyas.ops.add_norm import summed
from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import sigmoid


@Operation
def gate_heads(out_TX: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return out * sigmoid(gate) [T, X]; gate and sigmoid are rounded to the type of `out_TX`.

    gate: [T, X], or float32 parts [Z, T, X] of its sum.
    """
    gate_TX = summed(gate).to(out_TX.dtype)
    return out_TX * sigmoid(gate_TX.float()).to(gate_TX.dtype)


@gate_heads.kernel
def _by_kernel(out_TX: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    from eyas.kernels.gate_heads import gate_heads as launch

    return launch(out_TX, gate, pdl=out_TX.is_cuda)
