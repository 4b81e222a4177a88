"""The gated feed-forward block: down(activation(gate(x)) * up(x)).

Promises: a row's bits do not depend on the other rows, for row counts that the row order allows.
Does not know: the rest of the layer.

Legend: T rows, D hidden size.
"""

from __future__ import annotations

import torch

from eyas.attention.base import PlannedRows
from eyas.kernels.packed import Weight, by_row
from eyas.layers.compute import Compute
from eyas.layers.layouts import UNPACKED, Layouts, common
from eyas.layers.linear import Linear
from eyas.layers.row_parallel import RowParallelLinear, summing_linear
from eyas.ops.add_norm import summed
from eyas.ops.gate import Activation, gate_by_vectors
from eyas.parallel.cut import Parameter, Rows
from eyas.parallel.shard import WHOLE, Shard


def set_apart(rows: Weight) -> None:
    """Reorder rows of gate and up that alternate: all of gate, then all of up."""
    for each in by_row(rows):
        each.copy_(each.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1))


class GatedMlp:
    """The feed-forward block: two products and an activation; "gate" and "up" are one product.

    is_alternating: the checkpoint stores both in one tensor, "gate_up", whose rows alternate.
    layouts: of its weights that stay packed. shard: this rank's part of the features between the
    products.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        compute: Compute,
        *,
        bias: bool,
        activation: Activation = "silu",
        is_alternating: bool = False,
        layouts: Layouts = UNPACKED,
        shard: Shard = WHOLE,
    ) -> None:
        inner = shard.part(intermediate_size)
        self._by_vectors = not shard.is_whole
        self._activation: Activation = activation
        self._is_alternating = is_alternating
        gate_up: dict[str, int | Rows] = {"gate": inner, "up": inner}
        if is_alternating:
            gate_up = {"gate_up": inner.times(2)}
        self._gate_up = Linear(
            hidden_size, gate_up, compute, bias=bias, layout=common(layouts, gate_up)
        )
        self._down = summing_linear(
            inner,
            "down",
            hidden_size,
            compute,
            bias=bias,
            shard=shard,
            layout=common(layouts, ("down",)),
        )

    def parameters(self) -> dict[str, Parameter]:
        return self._gate_up.parameters() | self._down.parameters()

    def seal(self) -> None:
        if self._is_alternating:
            for rows in self._gate_up.views().values():
                set_apart(rows)
        self._gate_up.seal()
        self._down.seal()

    def __call__(self, x_TD: torch.Tensor, rows: PlannedRows | None = None) -> torch.Tensor:
        """Return the parts of the block's output (`Linear.parts`) for an input [T, D].

        rows: of the forward pass, which only a mixture of experts reads.
        """
        return self._down.parts(self.inner(x_TD))

    def whole(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the block's output as one sum [T, D]."""
        return summed(self(x_TD))

    def partial(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the output, float32 [T, D], without the bias."""
        assert isinstance(self._down, RowParallelLinear), "one rank has no parts"
        return self._down.partial(self.inner(x_TD))

    @property
    def down_bias(self) -> torch.Tensor | None:
        """The bias of a divided output; None without one."""
        assert isinstance(self._down, RowParallelLinear), "one rank has no parts"
        return self._down.bias_O

    def inner(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the input of the second product [T, F], of this rank's features."""
        if self._by_vectors and x_TD.device.type == "cpu":
            return gate_by_vectors(self._gate_up(x_TD), self._activation)
        return self._gate_up.gated(x_TD, self._activation)
