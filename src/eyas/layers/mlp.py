"""The gated feed-forward block: down(activation(gate(x)) * up(x)).

Promises: a row's bits do not depend on the other rows, for row counts that the row order allows.
Does not know: the rest of the layer.

Legend: T rows, D hidden size.
"""

from __future__ import annotations

import torch

from eyas.kernels.packed import Weight, by_row
from eyas.layers.layouts import UNPACKED, Layouts, common
from eyas.layers.linear import Linear
from eyas.layers.row_order import RowOrder
from eyas.ops.gate import Activation


def set_apart(rows: Weight) -> None:
    """Reorder rows of gate and up that alternate: all of gate, then all of up."""
    for each in by_row(rows):
        each.copy_(each.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1))


class GatedMlp:
    """The feed-forward block: two products and an activation; "gate" and "up" are one product.

    is_alternating: the checkpoint stores both in one tensor, "gate_up", whose rows alternate.
    layouts: of its weights that stay packed.
    """

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
        is_alternating: bool = False,
        layouts: Layouts = UNPACKED,
    ) -> None:
        self._activation: Activation = activation
        self._is_alternating = is_alternating
        gate_up = {"gate": intermediate_size, "up": intermediate_size}
        if is_alternating:
            gate_up = {"gate_up": 2 * intermediate_size}
        self._gate_up = Linear(
            hidden_size,
            gate_up,
            bias=bias,
            dtype=dtype,
            device=device,
            order=order,
            layout=common(layouts, gate_up),
        )
        self._down = Linear(
            intermediate_size,
            {"down": hidden_size},
            bias=bias,
            dtype=dtype,
            device=device,
            order=order,
            layout=common(layouts, ("down",)),
        )

    def parameters(self) -> dict[str, Weight]:
        return self._gate_up.parameters() | self._down.parameters()

    def seal(self) -> None:
        if self._is_alternating:
            for rows in self._gate_up.parameters().values():
                set_apart(rows)
        self._gate_up.seal()
        self._down.seal()

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the parts of the block's output (`Linear.parts`) for an input [T, D]."""
        return self._down.parts(self._gate_up.gated(x_TD, self._activation))
