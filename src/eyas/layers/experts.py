"""Feed-forward blocks of which each row uses a few: a mixture of experts, with or without a shared one.

Promises: a row's bits do not depend on the other rows: a product of an expert has one reduction order
for any number of rows, and the contributions to a row are added in one order: the shared expert's, then
those of the others as the row chose them. The router's logits are float32 and never rounded.
Does not know: the rest of the layer.

Legend: T rows, D hidden size, E experts, K experts of a row, S scores, V vocabulary, Z parts of a sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from eyas.attention.base import PlannedRows
from eyas.layers.compute import Compute
from eyas.layers.exchanged_experts import ExchangedExperts
from eyas.layers.expert_blocks import DividedExperts, SeparateExperts
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.gemm.variants import is_supported
from eyas.layers.layouts import UNPACKED, Layouts, common, within
from eyas.layers.linear import LogitsHead
from eyas.layers.mlp import GatedMlp
from eyas.layers.row_order import RowOrder
from eyas.layers.stacked_experts import StackedExperts
from eyas.ops.add_norm import summed
from eyas.ops.gate import Activation
from eyas.ops.route import route
from eyas.ops.row_functions import sigmoid
from eyas.parallel.cut import Parameter
from eyas.parallel.shard import WHOLE, Shard


class Router:
    """The product that scores experts, in float32."""

    def __init__(
        self,
        num_scores: int,
        hidden_size: int,
        compute: Compute,
    ) -> None:
        self._head: LogitsHead | None = None
        if compute.order.products is not None and is_supported(hidden_size):
            from eyas.layers.gemm import apply

            self._apply = apply
            self._weight_SD = compute.empty(num_scores, hidden_size)
        else:
            self._head = LogitsHead(num_scores, hidden_size, compute)
            (self._weight_SD,) = self._head.views()

    def parameter(self) -> torch.Tensor:
        """Return the weight [S, D] to fill, S being the number of scores."""
        return self._weight_SD

    def seal(self) -> None:
        if self._head is not None:
            self._head.seal()
            self._weight_SD = torch.empty(0)

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return scores [T, S], or parts [Z, T, S] of their sum."""
        if self._head is not None:
            return self._head(x_TD)
        return self._apply.scores(x_TD, self._weight_SD)


class Experts(Protocol):
    """The experts of a layer, and those that all rows share, whose numbers follow the others'."""

    def parameters(self) -> dict[str, Parameter]: ...
    def seal(self) -> None: ...
    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted results of each row's experts, float32 [K, T, D]."""
        ...


class MixtureOfExperts:
    """The feed-forward block of a layer with experts: router, experts, and the shared expert.

    layouts: of its weights that stay packed. shard: this rank's part of the experts, and of the
    features of the shared one; with `by_sequence` the input has this rank's rows alone. Every rank has
    the router.
    """

    def __init__(
        self,
        hidden_size: int,
        spec: ExpertSpec,
        compute: Compute,
        *,
        activation: Activation = "silu",
        layouts: Layouts = UNPACKED,
        shard: Shard = WHOLE,
    ) -> None:
        self._spec = spec
        num_shared = _num_joined(spec, compute.order, layouts, shard)
        self._routing = replace(
            spec.routing,
            num_shared=num_shared,
            gates_shared=num_shared > 0 and spec.has_shared_gate,
        )
        self._router = Router(spec.num_scores, hidden_size, compute)
        float32 = {"dtype": torch.float32, "device": compute.device}
        self._bias_E = torch.empty(spec.num_experts, **float32) if spec.router_bias else None
        self._correction_E = (
            torch.empty(spec.num_experts, **float32) if spec.has_correction else None
        )
        self._table_VK: torch.Tensor | None = None
        if spec.num_tokens:
            self._table_VK = torch.empty(
                spec.num_tokens, spec.routing.num_chosen, dtype=torch.int32, device=compute.device
            )
        self._experts: Experts
        of_experts = replace(shard, group=None) if shard.by_sequence else shard
        if compute.order.products is None and not shard.is_whole:
            self._experts = DividedExperts(
                hidden_size, spec, compute, activation=activation, shard=of_experts
            )
        elif compute.order.products is None:
            self._experts = SeparateExperts(hidden_size, spec, compute, activation=activation)
        else:
            self._experts = StackedExperts(
                hidden_size,
                spec,
                compute,
                activation=activation,
                num_shared=num_shared,
                layouts=within(layouts, "experts"),
                shard=of_experts,
            )
        self._exchanged: ExchangedExperts | None = None
        if shard.by_sequence:
            self._exchanged = ExchangedExperts(self._experts, spec.num_experts, shard)
        self._shared: GatedMlp | None = None
        if spec.shared_size and not num_shared:
            self._shared = GatedMlp(
                hidden_size,
                spec.shared_size,
                compute,
                bias=spec.bias,
                activation=activation,
                layouts=within(layouts, "shared"),
                shard=shard.dense,
            )

    def parameters(self) -> dict[str, Parameter]:
        scores_SD = self._router.parameter()
        found: dict[str, Parameter] = {"router.weight": scores_SD[: self._spec.num_experts]}
        if self._spec.has_shared_gate:
            found["shared_gate.weight"] = scores_SD[self._spec.num_experts :]
        if self._bias_E is not None:
            found["router.bias"] = self._bias_E
        if self._correction_E is not None:
            found["router.correction"] = self._correction_E
        if self._table_VK is not None:
            found["router.table"] = self._table_VK
        found |= self._experts.parameters()
        if self._shared is not None:
            found |= {f"shared.{name}": view for name, view in self._shared.parameters().items()}
        return found

    def seal(self) -> None:
        """Prepare the filled weights. ValueError: a table names an expert that is not there."""
        table_VK = self._table_VK
        if (
            table_VK is not None
            and not 0 <= table_VK.min() <= table_VK.max() < self._spec.num_experts
        ):
            raise ValueError(
                f"a table of each token's experts (tid2eid) names others than the "
                f"{self._spec.num_experts} of n_routed_experts; download the checkpoint again"
            )
        self._router.seal()
        self._experts.seal()
        if self._shared is not None:
            self._shared.seal()

    def __call__(self, x_TD: torch.Tensor, rows: PlannedRows | None = None) -> torch.Tensor:
        """Return the parts of the block's output, float32 [Z, T, D], for an input [T, D].

        rows: of the forward pass, of which x_TD has all or the first; needed where a table names each
        token's experts, and where ranks have rows of their own.

        The shared expert's come first: the sum of a block of its own is then the same whether its
        product returned several parts or, for many rows, has added them itself. The chosen experts'
        follow.
        """
        num_experts = self._spec.num_experts
        num_logits = num_experts + self._routing.gates_shared
        scores = self._router(x_TD)
        fixed_TK = None
        if self._table_VK is not None:
            assert rows is not None, "a table of experts is read by tokens"
            fixed_TK = self._table_VK[rows.tokens_T[: len(x_TD)]]
        experts_TK, weights_TK = route(
            scores[..., :num_logits], self._bias_E, self._correction_E, self._routing, fixed_TK
        )
        if self._exchanged is not None:
            assert rows is not None, "ranks exchange rows of a forward pass"
            parts = self._exchanged(x_TD, experts_TK, weights_TK, rows.rank_rows)
        else:
            parts = self._experts(x_TD, experts_TK, weights_TK)
        if self._shared is None:
            return parts
        shared = self._shared(x_TD).float()
        if self._spec.has_shared_gate:
            shared = summed(shared) * sigmoid(summed(scores)[:, num_experts:])
        if shared.dim() == 2:
            shared = shared.unsqueeze(0)
        return torch.cat([shared, parts])


def _num_joined(spec: ExpertSpec, order: RowOrder, layouts: Layouts, shard: Shard) -> int:
    """Return how many experts the shared one is among the others; 0 where it is a block of its own.

    On a device it has no kernels of its own then: rows choose it as they choose others. Its features
    are divided if it is wider than they are, and its weights have to be stored as theirs are. Ranks
    that hold whole experts, or add in a tree, divide it otherwise.
    """
    if not spec.shared_size or shard.by_expert or shard.by_tree:
        return 0
    if order.products is None:
        return int(shard.is_whole)
    num_shared, rest = divmod(spec.shared_size, spec.intermediate_size)
    if rest or spec.is_alternating:
        return 0
    chosen, shared = within(layouts, "experts"), within(layouts, "shared")
    kinds = [common(chosen, ("0.gate", "0.up")), common(chosen, ("0.down",))]
    if kinds != [common(shared, ("gate", "up")), common(shared, ("down",))]:
        return 0
    can_divide = shard.is_whole and kinds == [None, None] and not spec.bias
    return num_shared if num_shared == 1 or can_divide else 0
