"""Feed-forward blocks of which each row uses a few: a mixture of experts, with or without a shared one.

Promises: a row's bits do not depend on the other rows: a product of an expert has one reduction order
for any number of rows, and the contributions to a row are added in one order: the shared expert's, then
those of the others as the row chose them. The router's logits are float32 and never rounded.
Does not know: the rest of the layer.

Legend: T rows, D hidden size, E experts, K experts of a row, F feed-forward size of an expert, S number
of scores or of shared experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F

from eyas.attention.base import PlannedRows
from eyas.kernels.packed import Weight
from eyas.layers.compute import Compute
from eyas.layers.divided_experts import DividedExperts, chosen
from eyas.layers.exchanged_experts import ExchangedExperts
from eyas.layers.gemm_variants import is_supported
from eyas.layers.layouts import UNPACKED, Layouts, common, within
from eyas.layers.linear import LogitsHead
from eyas.layers.mlp import GatedMlp, set_apart
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import summed
from eyas.ops.apply_experts import apply_experts, by_expert
from eyas.ops.gate import Activation
from eyas.ops.route import Routing, route
from eyas.ops.row_functions import sigmoid
from eyas.parallel.cut import Cut, Parameter, Rows, held
from eyas.parallel.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The facts of a mixture of experts.

    num_experts: experts to choose from. intermediate_size: of each of them. router_bias: added to the
    router's logits. has_correction: there is a bias that is added to scores for the choice alone. bias:
    of the experts' products. shared_size: feed-forward size of the expert that every row uses; 0 is
    none. has_shared_gate: its result is multiplied by the sigmoid of a product of its own.
    is_alternating: as in `GatedMlp`, of the experts that are chosen. num_tokens: of the table that
    names each token's experts, which scores then only weigh (DeepSeek-V4's first layers); 0 is none.
    """

    num_experts: int
    intermediate_size: int
    routing: Routing
    router_bias: bool = False
    has_correction: bool = False
    bias: bool = False
    shared_size: int = 0
    has_shared_gate: bool = False
    is_alternating: bool = False
    num_tokens: int = 0

    def __post_init__(self) -> None:
        routing = self.routing
        assert self.num_experts % routing.num_groups == 0
        choosable = self.num_experts // routing.num_groups * routing.num_chosen_groups
        assert 0 < routing.num_chosen <= choosable

    @property
    def num_scores(self) -> int:
        """The number of logits of the router: of all experts, and of the shared expert's gate."""
        return self.num_experts + self.has_shared_gate


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
            from eyas.layers import apply

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


class SeparateExperts:
    """Every expert is a block of its own, which runs its rows padded as the row order asks; so is the
    shared one, if there is one."""

    def __init__(
        self,
        hidden_size: int,
        spec: ExpertSpec,
        compute: Compute,
        *,
        activation: Activation,
    ) -> None:
        def expert(size: int, *, is_alternating: bool) -> GatedMlp:
            return GatedMlp(
                hidden_size,
                size,
                compute,
                bias=spec.bias,
                activation=activation,
                is_alternating=is_alternating,
            )

        self._order = compute.order
        self._experts = {
            f"experts.{index}": expert(spec.intermediate_size, is_alternating=spec.is_alternating)
            for index in range(spec.num_experts)
        }
        if spec.shared_size:
            self._experts["shared"] = expert(spec.shared_size, is_alternating=False)
        self._by_number = list(self._experts.values())

    def parameters(self) -> dict[str, Parameter]:
        return {
            f"{expert}.{name}": view
            for expert, block in self._experts.items()
            for name, view in block.parameters().items()
        }

    def seal(self) -> None:
        for block in self._by_number:
            block.seal()

    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        return by_expert(x_TD, experts_TK, weights_TK, self._run)

    def _run(self, expert: int, x_TD: torch.Tensor) -> torch.Tensor:
        num_rows = len(x_TD)
        num_padding = self._order.pad(num_rows) - num_rows
        if num_padding:
            x_TD = F.pad(x_TD, (0, 0, 0, num_padding))
        return summed(self._by_number[expert](x_TD))[:num_rows]


class StackedExperts:
    """The weights of all experts are one tensor, and a kernel runs all rows at once.

    num_shared: experts that the features of the shared one are divided among; 0 if it is not here.
    layouts: of the experts' weights that stay packed, the same for all of them. shard: this rank's part
    of the experts, or of the features between their products; without a group, the results are this
    rank's part.
    """

    def __init__(
        self,
        hidden_size: int,
        spec: ExpertSpec,
        compute: Compute,
        *,
        activation: Activation,
        num_shared: int = 0,
        layouts: Layouts = UNPACKED,
        shard: Shard = WHOLE,
    ) -> None:
        self._shard = shard
        self._num_experts, self._num_shared = spec.num_experts, num_shared
        self._inner = Rows(spec.intermediate_size, ((0, spec.intermediate_size),))
        self._held = Rows(spec.num_experts, ((0, spec.num_experts),))
        if shard.by_expert:
            self._held = shard.part(spec.num_experts)
        else:
            self._inner = shard.part(spec.intermediate_size)
        num, size = self._held.count + num_shared, self._inner.count
        self._activation: Activation = activation
        self._is_alternating = spec.is_alternating
        first = "0.gate_up" if spec.is_alternating else "0.gate"

        def empty(part: str, *shape: int) -> Weight:
            layout = common(layouts, (part,))
            new = torch.empty if layout is None else layout.empty
            return new(*shape, dtype=compute.dtype, device=compute.device)

        self._gate_up_E2FD = empty(first, num, 2 * size, hidden_size)
        self._down_EDF = empty("0.down", num, hidden_size, size)
        self._gate_up_bias_E2F: torch.Tensor | None = None
        self._down_bias_ED: torch.Tensor | None = None
        if spec.bias:
            self._gate_up_bias_E2F = compute.empty(num, 2 * size)
            self._down_bias_ED = compute.empty(num, hidden_size)

    def parameters(self) -> dict[str, Parameter]:
        found: dict[str, Parameter] = {}
        ((first, stop),) = self._held.ranges
        for kind, gate_up, down in (
            ("weight", self._gate_up_E2FD, self._down_EDF),
            ("bias", self._gate_up_bias_E2F, self._down_bias_ED),
        ):
            if gate_up is None or down is None:
                continue
            for index in range(self._num_experts):
                if first <= index < stop:
                    own = self._held_parameters(gate_up[index - first], down[index - first])
                else:
                    own = self._nothing(gate_up[0], down[0])
                found |= {f"experts.{index}.{name}.{kind}": each for name, each in own.items()}
            if self._num_shared:
                own = self._shared_parameters(gate_up[stop:], down[stop:])
                found |= {f"shared.{name}.{kind}": each for name, each in own.items()}
        return found

    def _shared_parameters(self, gate_up: Weight, down: Weight) -> dict[str, Parameter]:
        """Return the shared expert's parameters, in the memory of those that it is divided among."""
        if self._num_shared == 1:
            return self._held_parameters(gate_up[0], down[0])
        assert isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor)
        gate, up = gate_up.view(2, -1, gate_up.shape[2])
        return {"gate": gate, "up": up, "down": down.view(down.shape[1], -1)}

    def _held_parameters(self, gate_up: Weight, down: Weight) -> dict[str, Parameter]:
        size, inner = self._inner.count, self._inner
        found: dict[str, Parameter] = {}
        if self._is_alternating:
            found["gate_up"] = held(gate_up, inner.times(2))
        else:
            found["gate"], found["up"] = held(gate_up[:size], inner), held(gate_up[size:], inner)
        found["down"] = down
        if down.dim() == 2 and inner.count < inner.whole:
            found["down"] = Cut.of_columns(down, inner.whole, inner.ranges[0])
        return found

    def _nothing(self, gate_up: Weight, down: Weight) -> dict[str, Parameter]:
        """Return the parameters of an expert that another rank holds; these are of one that is held."""
        inner, found = self._inner.whole, dict[str, Parameter]()
        for name in ("gate_up",) if self._is_alternating else ("gate", "up"):
            rows = inner * (1 + self._is_alternating)
            found[name] = Cut.nothing(rows, *gate_up.shape[1:], like=gate_up)
        found["down"] = Cut.nothing(*down.shape, like=down)
        return found

    def seal(self) -> None:
        """Prepare the filled weights: the kernel reads all of gate before all of up."""
        if self._down_bias_ED is not None and not self._shard.by_expert and self._shard.rank:
            self._down_bias_ED.zero_()  # the first rank adds it
        if self._is_alternating:
            for gate_up in (self._gate_up_E2FD, self._gate_up_bias_E2F):
                if gate_up is not None:
                    for index in range(len(gate_up)):
                        set_apart(gate_up[index])
        if self._num_shared > 1:
            self._divide_shared()

    def _divide_shared(self) -> None:
        """Give each of the shared experts its features, of all that were filled in."""
        num, stop = self._num_shared, self._num_experts
        gate_up_S2FD, down_SDF = self._gate_up_E2FD[stop:], self._down_EDF[stop:]
        assert isinstance(gate_up_S2FD, torch.Tensor) and isinstance(down_SDF, torch.Tensor)
        _, hidden, size = down_SDF.shape
        filled_2SFD = gate_up_S2FD.view(2, num, size, hidden)
        gate_up_S2FD.copy_(filled_2SFD.transpose(0, 1).flatten(1, 2))
        down_SDF.copy_(down_SDF.view(hidden, num, size).transpose(0, 1).clone())

    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        shard = self._shard
        if not shard.by_expert:
            return shard.completed(self._apply(x_TD, experts_TK, weights_TK))
        ((first, stop),) = self._held.ranges
        is_held_TK = (experts_TK >= first) & (experts_TK < stop)
        here_TK = torch.where(is_held_TK, experts_TK - first, -1)
        parts_KTD = self._apply(x_TD, here_TK, weights_TK)
        if shard.group is None:
            return parts_KTD
        rank_KT = experts_TK.t().long() * shard.size // self._num_experts
        return chosen(shard.group.all_gather(parts_KTD), rank_KT)

    def _apply(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        return apply_experts(
            x_TD,
            experts_TK,
            weights_TK,
            self._gate_up_E2FD,
            self._down_EDF,
            self._gate_up_bias_E2F,
            self._down_bias_ED,
            self._activation,
        )


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
                hidden_size,
                spec.num_experts,
                spec.intermediate_size,
                compute,
                bias=spec.bias,
                is_alternating=spec.is_alternating,
                activation=activation,
                shard=of_experts,
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

        rows: of the forward pass; needed where a table names each token's experts, and where ranks have
        rows of their own.

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
            fixed_TK = self._table_VK[rows.tokens_T]
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
