"""The gated feed-forward block: down(activation(gate(x)) * up(x)).

Promises: the activation of a row has the same bits in any call. torch's CPU kernels use vector
code for most elements and scalar code for the last few of each run, and the two differ in the last
bit of an exponential; so the activation is called on the strided gate columns (a run is then one
row) and on few enough elements that torch does not cut a row in two between threads.
Does not know: the rest of the layer.

Legend: T rows, D hidden size, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from eyas.layers.linear import Linear
from eyas.layers.row_order import RowOrder

SERIAL_ELEMENTS = 32768
"""torch runs elementwise CPU kernels of up to this many elements on one thread (its grain size)."""


Activation = Literal["silu", "gelu_tanh"]


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": _gelu_tanh,
}


def gated_silu(gate_up_T2F: torch.Tensor) -> torch.Tensor:
    """silu of the first half of the columns times the second half."""
    return gated(gate_up_T2F, "silu")


def gated(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    """The activation of the first half of the columns times the second half."""
    num_rows, num_columns = gate_up_T2F.shape
    size = num_columns // 2
    if gate_up_T2F.device.type == "cpu" and num_rows * size > SERIAL_ELEMENTS:
        rows = max(1, SERIAL_ELEMENTS // size)
        pieces = [_gated_serial(piece, activation) for piece in gate_up_T2F.split(rows)]
        return torch.cat(pieces)
    return _gated_serial(gate_up_T2F, activation)


def _gated_serial(gate_up_T2F: torch.Tensor, activation: Activation) -> torch.Tensor:
    gate_TF, up_TF = gate_up_T2F.chunk(2, -1)
    return _ACTIVATIONS[activation](gate_TF).mul_(up_TF)


class GatedMlp:
    """Two products and an activation; "gate" and "up" are one product."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        order: RowOrder,
        activation: Activation = "silu",
    ) -> None:
        self._activation: Activation = activation
        gate_up = {"gate": intermediate_size, "up": intermediate_size}
        self._gate_up = Linear(
            hidden_size, gate_up, bias=bias, dtype=dtype, device=device, order=order
        )
        self._down = Linear(
            intermediate_size,
            {"down": hidden_size},
            bias=bias,
            dtype=dtype,
            device=device,
            order=order,
        )

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._gate_up.parameters() | self._down.parameters()

    def seal(self) -> None:
        self._gate_up.seal()
        self._down.seal()

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """[T, D] -> the parts of the block's output (`Linear.parts`)."""
        gated_TF = self._gate_up.gated(x_TD) if self._activation == "silu" else None
        if gated_TF is None:
            gated_TF = gated(self._gate_up(x_TD), self._activation)
        return self._down.parts(gated_TF)
