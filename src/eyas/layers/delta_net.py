"""A gated delta net: instead of keys and values per token, a state per sequence that tokens update.

Promises: all projections of a row are one product, whose result is read where it is; everything between
the two products is float32.
Does not know: where states are, trees (its `Attend` does), checkpoints.

Legend: T rows, I input features, X numbers of a row, C convolved columns, J taps of the convolution,
N value heads, D value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from eyas.attention.base import Attend
from eyas.cache.store import StateStore
from eyas.layers.compute import Compute
from eyas.layers.linear import Linear
from eyas.layers.row_parallel import summing_linear
from eyas.ops.delta_rule import DeltaRule
from eyas.ops.gated_norm import gated_norm
from eyas.ops.rotate_and_store import Angles
from eyas.parallel.cut import Parameter, Rows, held
from eyas.parallel.shard import Shard


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """The sizes of a gated delta net.

    num_taps: positions that the convolution reads, its own included. groups_by_key: the checkpoint
    stores the projections in two tensors, in which the rows of one key head follow each other; else
    in four.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    num_taps: int
    groups_by_key: bool

    @property
    def convolved(self) -> int:
        """Numbers of queries, keys and values of a token."""
        return 2 * self.num_key_heads * self.key_dim + self.output_width

    @property
    def output_width(self) -> int:
        """Numbers of all value heads."""
        return self.num_value_heads * self.value_dim

    @property
    def projections(self) -> dict[str, int]:
        """Outputs of the product over the input, by the checkpoint's parts: queries, keys and values
        (qkv), strengths of corrections (b), time steps (a) and the gate of the output (z)."""
        if self.groups_by_key:
            return {
                "qkvz": self.convolved + self.output_width,
                "ba": 2 * self.num_value_heads,
            }
        heads = self.num_value_heads
        return {"qkv": self.convolved, "b": heads, "a": heads, "z": self.output_width}

    def convolved_rows(self, keys: Rows, values: Rows) -> Rows:
        """Return the rows of queries, keys and values of these heads."""
        of_keys = keys.times(self.key_dim)
        return of_keys.then(of_keys, values.times(self.value_dim))

    def projection_rows(self, keys: Rows, values: Rows) -> dict[str, int | Rows]:
        """Return the rows of `projections` of these heads. values: the value heads of these key
        heads."""
        if self.groups_by_key:
            whole = self.projections
            return {part: keys.times(size // self.num_key_heads) for part, size in whole.items()}
        outputs = values.times(self.value_dim)
        return {"qkv": self.convolved_rows(keys, values), "b": values, "a": values, "z": outputs}

    def products(self, hidden_size: int) -> tuple[tuple[int, int], ...]:
        """Return (output size, input size) of the matrix products as they run."""
        return (
            (sum(self.projections.values()), hidden_size),
            (hidden_size, self.output_width),
        )

    @property
    def store(self) -> StateStore:
        """What the layer stores for a sequence."""
        return StateStore(
            self.num_value_heads,
            self.key_dim,
            self.value_dim,
            input_width=self.convolved + 2 * self.num_value_heads,
            reach=self.num_taps - 1,
        )


class DeltaNet:
    """The block of a layer that has a state in the place of attention.

    shard: this rank's part of the heads.
    """

    def __init__(
        self,
        hidden_size: int,
        sizes: DeltaSizes,
        epsilon: float,
        compute: Compute,
        *,
        shard: Shard,
    ) -> None:
        keys, values = shard.part(sizes.num_key_heads), shard.part(sizes.num_value_heads)
        projections = sizes.projection_rows(keys, values)
        self._convolved_rows = sizes.convolved_rows(keys, values)
        self._value_heads = values
        value_columns = values.times(sizes.value_dim)
        sizes = replace(sizes, num_key_heads=keys.count, num_value_heads=values.count)
        self._sizes = sizes
        self._epsilon = epsilon
        self._projections = Linear(hidden_size, projections, compute)
        self._o = summing_linear(value_columns, "o", hidden_size, compute, shard=shard)
        own_shapes = {
            "convolution.weight": (sizes.convolved, 1, sizes.num_taps),
            "log_decay": (sizes.num_value_heads,),
            "time_bias": (sizes.num_value_heads,),
            "norm.weight": (sizes.value_dim,),
        }
        self._own = {
            name: torch.empty(shape, dtype=torch.float32, device=compute.device)
            for name, shape in own_shapes.items()
        }
        self._rule = DeltaRule(
            sizes.num_key_heads,
            sizes.num_value_heads,
            sizes.key_dim,
            sizes.value_dim,
            self._own["convolution.weight"].squeeze(1),
            self._own["log_decay"],
            self._own["time_bias"],
        )

    def parameters(self) -> dict[str, Parameter]:
        own: dict[str, Parameter] = {
            "convolution.weight": held(self._own["convolution.weight"], self._convolved_rows),
            "log_decay": held(self._own["log_decay"], self._value_heads),
            "time_bias": held(self._own["time_bias"], self._value_heads),
            "norm.weight": self._own["norm.weight"],
        }
        return self._projections.parameters() | self._o.parameters() | own

    def seal(self) -> None:
        if self._sizes.groups_by_key:
            self._separate_kinds()
        self._projections.seal()
        self._o.seal()

    def _separate_kinds(self) -> None:
        """Reorder the rows of projections that are grouped by key head: first those of all queries,
        then of all keys, and so on, as they are without groups."""
        sizes, heads = self._sizes, self._sizes.num_key_heads
        per_key = sizes.num_value_heads // heads
        values = per_key * sizes.value_dim
        rows = torch.arange(self._projections.shape[0])
        qkvz, ba = rows.split([sizes.convolved + sizes.output_width, 2 * sizes.num_value_heads])
        kinds = [sizes.key_dim, sizes.key_dim, values, values]
        *qkv, z = qkvz.view(heads, -1).split(kinds, 1)
        in_order = (*qkv, *ba.view(heads, -1).split(per_key, 1), z)
        self._projections.reorder(torch.cat([kind.flatten() for kind in in_order]).tolist())

    def __call__(
        self, layer: int, x_TI: torch.Tensor, angles: Angles, attend: Attend
    ) -> torch.Tensor:
        """Return the parts of the block's output (`Linear.parts`) for an input [T, I]."""
        inputs_TX, gate_TX = self._projections(x_TI).tensor_split([-self._sizes.output_width], 1)
        out_TND = attend.recur(layer, inputs_TX, self._rule)
        return self._o.parts(gated_norm(out_TND, gate_TX, self._own["norm.weight"], self._epsilon))
