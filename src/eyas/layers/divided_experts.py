"""Experts that ranks divide on a CPU: each rank holds a part of every expert, or some experts whole.

Promises: every rank gets the same contributions. Those of a row are the same bits however the experts
are divided, and for any number of ranks: the sum of an expert's second product is formed in the tree of
`parallel.tree`.
Does not know: how experts are chosen.

Legend: T rows, D hidden size, E experts, K experts that a row chooses, N ranks, n rows of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F

from eyas.layers.compute import Compute
from eyas.layers.mlp import GatedMlp
from eyas.ops.apply_experts import by_expert
from eyas.ops.gate import Activation
from eyas.parallel.cut import Cut, Parameter
from eyas.parallel.shard import Shard


class DividedExperts:
    """A rank's part of the experts of a layer.

    shard: of the experts with `by_expert`, else of the features between their products; without a
    group, the results are this rank's part. bias, is_alternating: as `ExpertSpec`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        intermediate_size: int,
        compute: Compute,
        *,
        bias: bool,
        is_alternating: bool,
        activation: Activation,
        shard: Shard,
    ) -> None:
        self._shard = shard
        self._sizes = (num_experts, intermediate_size, hidden_size)
        self._has_bias, self._is_alternating = bias, is_alternating
        held, within = range(num_experts), shard
        if shard.by_expert:
            (bounds,) = shard.part(num_experts).ranges
            held, within = range(*bounds), replace(shard, rank=0, size=1, group=None)
        self._order = compute.order
        self._experts = {
            index: GatedMlp(
                hidden_size,
                intermediate_size,
                compute,
                bias=bias,
                activation=activation,
                is_alternating=is_alternating,
                shard=within,
            )
            for index in held
        }
        self._down_bias_ED: torch.Tensor | None = None

    def parameters(self) -> dict[str, Parameter]:
        return dict(self._all_parameters())

    def _all_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters of all experts, in order; of those that others hold, nothing."""
        num_experts, inner, hidden = self._sizes
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if self._is_alternating:
            shapes = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        for index in range(num_experts):
            if (expert := self._experts.get(index)) is not None:
                for name, parameter in expert.parameters().items():
                    yield f"experts.{index}.{name}", parameter
                continue
            for name, shape in shapes.items():
                yield f"experts.{index}.{name}.weight", Cut.nothing(*shape)
                if self._has_bias:
                    yield f"experts.{index}.{name}.bias", Cut.nothing(shape[0])

    def seal(self) -> None:
        for expert in self._experts.values():
            expert.seal()
        if self._has_bias and not self._shard.by_expert:
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
            return self._shard.completed(partial_KTD)
        return chosen(group.all_gather(partial_KTD), experts_KT * size // self._sizes[0])


def chosen(of_ranks_NKTD: torch.Tensor, rank_KT: torch.Tensor) -> torch.Tensor:
    """Return [K, T, D]: each row's contributions as the given ranks have computed them."""
    index_1KTD = rank_KT[None, :, :, None].expand(1, *of_ranks_NKTD.shape[1:])
    return of_ranks_NKTD.gather(0, index_1KTD)[0]
