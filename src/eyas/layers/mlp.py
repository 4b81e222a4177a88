"""The gated feed-forward block: down(activation(gate(x)) * up(x)).

Promises: a row's bits do not depend on the other rows, for row counts that the row order allows.
Does not know: the rest of the layer.

Legend: T rows, D hidden size.
"""

from __future__ import annotations

import torch

from eyas.layers.linear import Linear
from eyas.layers.row_order import RowOrder
from eyas.ops.gate import Activation


class GatedMlp:
    """The feed-forward block: two products and an activation; "gate" and "up" are one product."""

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
        """Return the parts of the block's output (`Linear.parts`) for an input [T, D]."""
        return self._down.parts(self._gate_up.gated(x_TD, self._activation))
