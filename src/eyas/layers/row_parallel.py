"""Products whose input features are divided among ranks: each rank adds its part of a sum.

Promises: every rank gets the same sum. With `Shard.by_tree` its bits do not depend on the number of
ranks: sums over `PIECES` pieces of the input features are added in a binary tree, of which a rank
computes its subtree.
Does not know: what the product is for, how ranks exchange sums.

Legend: T rows, I input features, O output features.
"""

from __future__ import annotations

import torch

from eyas.kernels.packed import Layout, Weight
from eyas.layers.compute import Compute
from eyas.layers.linear import Linear
from eyas.native.products import PackedWeight, packed_weight
from eyas.ops.add_norm import summed
from eyas.ops.tree_sum import tree_sum
from eyas.parallel.cut import Cut, Parameter, Rows
from eyas.parallel.shard import Shard


class RowParallelLinear:
    """A product `x @ weight.T + bias` of which this rank has the columns of its input features.

    in_features: this rank's, among all. part: the name of the weight. The bias is added to the sum.
    layout: of a weight that stays packed.
    """

    def __init__(
        self,
        in_features: Rows,
        part: str,
        out_features: int,
        compute: Compute,
        *,
        bias: bool,
        shard: Shard,
        layout: Layout | None,
    ) -> None:
        self._shard = shard
        self._in_features = in_features
        self._part = part
        self._order = compute.order
        self._linear = Linear(in_features.count, {part: out_features}, compute, layout=layout)
        self.bias_O = compute.empty(out_features) if bias else None
        self._packed: PackedWeight | None = None

    def views(self) -> dict[str, Weight]:
        """Return what this rank holds."""
        found = self._linear.views()
        return found if self.bias_O is None else found | {f"{self._part}.bias": self.bias_O}

    def parameters(self) -> dict[str, Parameter]:
        """Return what a loader fills: "part.weight" and, with a bias, "part.bias"."""
        found: dict[str, Parameter] = dict(self.views())
        if self._shard.size > 1:
            weight = self._linear.views()[f"{self._part}.weight"]
            (columns,) = self._in_features.ranges
            found[f"{self._part}.weight"] = Cut.of_columns(weight, self._in_features.whole, columns)
        return found

    def seal(self) -> None:
        if self._order.products is None:
            weight = self._linear.views()[f"{self._part}.weight"]
            assert isinstance(weight, torch.Tensor)
            self._packed = packed_weight(weight)
            assert self._packed is not None, "ranks on a CPU run compiled products"
            self._linear.release()
        else:
            self._linear.seal()

    def partial(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum, float32 [T, O]."""
        num_pieces = self._shard.num_pieces
        if self._packed is not None:
            return self._packed.by_tree(x_TI, num_pieces)
        if self._shard.by_tree:
            return tree_sum(self._linear.pieces(x_TI, num_pieces))
        return summed(self._linear.parts(x_TI)).float()

    def with_bias(self, sum_TO: torch.Tensor) -> torch.Tensor:
        """Return a sum [..., O] with the bias added."""
        return sum_TO if self.bias_O is None else sum_TO + self.bias_O

    def parts(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return the whole sum as the caller adds it: [T, O] in x's dtype, or float32 [1, T, O]."""
        sum_TO = self.with_bias(self._shard.summed(self.partial(x_TI)))
        return sum_TO if sum_TO.dtype == x_TI.dtype else sum_TO.unsqueeze(0)


def summing_linear(
    in_features: Rows,
    part: str,
    out_features: int,
    compute: Compute,
    *,
    bias: bool = False,
    shard: Shard,
    layout: Layout | None = None,
) -> Linear | RowParallelLinear:
    """Return the product over features that ranks divide; of one rank a plain one.

    layout: of a weight that stays packed.
    """
    if shard.is_whole:
        return Linear(in_features.whole, {part: out_features}, compute, bias=bias, layout=layout)
    return RowParallelLinear(
        in_features, part, out_features, compute, bias=bias, shard=shard, layout=layout
    )
