"""Experts on a device: the weights of all are one tensor, and a kernel runs all rows at once.

Promises: as `experts`; ranks that divide the experts get the same contributions.
Does not know: how experts are chosen.

Legend: T rows, D hidden size, E experts, K experts of a row, F feed-forward size of an expert, S shared
experts.
"""

from __future__ import annotations

import torch

from eyas.kernels.packed import Weight
from eyas.layers.compute import Compute
from eyas.layers.expert_blocks import chosen
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.layouts import Layouts, common
from eyas.layers.mlp import set_apart
from eyas.ops.apply_experts import apply_experts
from eyas.ops.gate import Activation
from eyas.parallel.cut import Cut, Parameter, Rows, held
from eyas.parallel.shard import Shard


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
        num_shared: int,
        layouts: Layouts,
        shard: Shard,
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
            return shard.summed(self._apply(x_TD, experts_TK, weights_TK))
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
