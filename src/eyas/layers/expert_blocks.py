"""Experts on a CPU, each a block of its own; ranks divide every block, or hold some of them whole.

Promises: every rank gets the same contributions. Those of a row are the same bits however the experts
are divided, and for any number of ranks: the sum of an expert's second product is formed in the tree of
`ops.tree_sum`.
Does not know: how experts are chosen.

Legend: T rows, D hidden size, E experts, K experts that a row chooses, N ranks, n rows of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from eyas.layers.compute import Compute
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.mlp import GatedMlp
from eyas.ops.add_norm import summed
from eyas.ops.apply_experts import by_expert
from eyas.ops.gate import Activation
from eyas.parallel.cut import Cut, Parameter
from eyas.parallel.shard import Shard


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


class DividedExperts:
    """A rank's part of the experts of a layer.

    shard: of the experts with `by_expert`, else of the features between their products; without a
    group, the results are this rank's part.
    """

    def __init__(
        self,
        hidden_size: int,
        spec: ExpertSpec,
        compute: Compute,
        *,
        activation: Activation,
        shard: Shard,
    ) -> None:
        self._shard, self._spec, self._hidden_size = shard, spec, hidden_size
        held, within = range(spec.num_experts), shard
        if shard.by_expert:
            (bounds,) = shard.part(spec.num_experts).ranges
            held, within = range(*bounds), replace(shard, rank=0, size=1, group=None)
        self._order = compute.order
        self._experts = {
            index: GatedMlp(
                hidden_size,
                spec.intermediate_size,
                compute,
                bias=spec.bias,
                activation=activation,
                is_alternating=spec.is_alternating,
                shard=within,
            )
            for index in held
        }
        self._down_bias_ED: torch.Tensor | None = None

    def parameters(self) -> dict[str, Parameter]:
        return dict(self._all_parameters())

    def _all_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters of all experts, in order; of those that others hold, nothing."""
        spec, inner, hidden = self._spec, self._spec.intermediate_size, self._hidden_size
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if spec.is_alternating:
            shapes = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        for index in range(spec.num_experts):
            if (expert := self._experts.get(index)) is not None:
                for name, parameter in expert.parameters().items():
                    yield f"experts.{index}.{name}", parameter
                continue
            for name, shape in shapes.items():
                yield f"experts.{index}.{name}.weight", Cut.nothing(*shape)
                if spec.bias:
                    yield f"experts.{index}.{name}.bias", Cut.nothing(shape[0])

    def seal(self) -> None:
        for expert in self._experts.values():
            expert.seal()
        if self._spec.bias and not self._shard.by_expert:
            biases = [expert.down_bias for expert in self._experts.values()]
            self._down_bias_ED = torch.stack([bias for bias in biases if bias is not None])

    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted results of the chosen experts, float32 [K, T, D]."""
        partial_KTD = by_expert(x_TD, experts_TK, torch.ones_like(weights_TK), self._run)
        sums_KTD = self._completed(partial_KTD, experts_TK.t().long())
        if self._down_bias_ED is not None:
            sums_KTD = sums_KTD + self._down_bias_ED[experts_TK.t().long()]
        return sums_KTD * weights_TK.t().unsqueeze(2)

    def _run(self, expert: int, x_nD: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of an expert's result [n, D]."""
        held = self._experts.get(expert)
        if held is None:
            return torch.zeros_like(x_nD)
        num_rows = len(x_nD)
        x_nD = F.pad(x_nD, (0, 0, 0, self._order.pad(num_rows) - num_rows))
        result_nD = held.whole(x_nD) if self._shard.by_expert else held.partial(x_nD)
        return result_nD[:num_rows]

    def _completed(self, partial_KTD: torch.Tensor, experts_KT: torch.Tensor) -> torch.Tensor:
        """Return the results, of the parts that ranks have computed."""
        group, size = self._shard.group, self._shard.size
        if group is None or not self._shard.by_expert:
            return self._shard.summed(partial_KTD)
        return chosen(group.all_gather(partial_KTD), experts_KT * size // self._spec.num_experts)


def chosen(of_ranks_NKTD: torch.Tensor, rank_KT: torch.Tensor) -> torch.Tensor:
    """Return [K, T, D]: each row's contributions as the given ranks have computed them."""
    index_1KTD = rank_KT[None, :, :, None].expand(1, *of_ranks_NKTD.shape[1:])
    return of_ranks_NKTD.gather(0, index_1KTD)[0]
