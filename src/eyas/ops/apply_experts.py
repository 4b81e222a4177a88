"""Run each row through its chosen experts: gated feed-forward blocks with weights of their own.

Promises: a row's result depends on that row, its experts and their weights alone. The contributions
of a row's experts are returned one by one, in the order in which they are given.
Does not know: how experts are chosen.

Legend: T rows, D hidden size, E experts, K experts of a row, F feed-forward size, n rows of
an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from eyas.kernels.packed import PackedWeight, Weight
from eyas.ops.dequantise import product
from eyas.ops.dispatch import Operation
from eyas.ops.gate import Activation, gate
from eyas.ops.tile_experts import tile_experts


@Operation
def apply_experts(
    x_TD: torch.Tensor,
    experts_TK: torch.Tensor,
    weights_TK: torch.Tensor,
    gate_up_E2FD: Weight,
    down_EDF: Weight,
    gate_up_bias_E2F: torch.Tensor | None,
    down_bias_ED: torch.Tensor | None,
    activation: Activation,
) -> torch.Tensor:
    """Return weight x down(activation(gate(x)) * up(x)) of every chosen expert, float32 [K, T, D].

    experts_TK: int32; -1 is none, whose result may be anything. weights_TK: float32. Biases: of all
    products, or None.
    """

    def run(expert: int, x_nD: torch.Tensor) -> torch.Tensor:
        gate_up_bias = None if gate_up_bias_E2F is None else gate_up_bias_E2F[expert]
        down_bias = None if down_bias_ED is None else down_bias_ED[expert]
        both_n2F = product(x_nD, gate_up_E2FD[expert], gate_up_bias)
        return product(gate(both_n2F, activation), down_EDF[expert], down_bias)

    return by_expert(x_TD, experts_TK, weights_TK, run)


@apply_experts.kernel
def _by_kernel(
    x_TD: torch.Tensor,
    experts_TK: torch.Tensor,
    weights_TK: torch.Tensor,
    gate_up_E2FD: Weight,
    down_EDF: Weight,
    gate_up_bias_E2F: torch.Tensor | None,
    down_bias_ED: torch.Tensor | None,
    activation: Activation,
) -> torch.Tensor:
    from eyas.kernels import experts

    num_rows, num_chosen = experts_TK.shape
    packed = isinstance(down_EDF, PackedWeight)
    tile = experts.tile_for(num_rows, num_chosen, len(down_EDF), x_TD.dtype, packed=packed)
    tiles = experts_TK
    if experts_TK.numel() > experts.FEW:
        tiles = tile_experts(experts_TK, len(down_EDF), tile.block_rows)
    gated_NF = experts.gated_product(
        x_TD, gate_up_E2FD, gate_up_bias_E2F, tiles, num_chosen, activation, tile, pdl=x_TD.is_cuda
    )
    return experts.weighted_product(
        gated_NF, down_EDF, down_bias_ED, tiles, weights_TK, tile, pdl=x_TD.is_cuda
    )


def by_expert(
    x_TD: torch.Tensor,
    experts_TK: torch.Tensor,
    weights_TK: torch.Tensor,
    run: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the weighted results of every chosen expert, float32 [K, T, D], one expert after another.

    experts_TK: as in `apply_experts`. run: an expert's result [n, D] for its rows [n, D].
    """
    num_chosen = experts_TK.shape[1]
    out_KTD = x_TD.new_empty((num_chosen, *x_TD.shape), dtype=torch.float32)
    experts_N, order_N = experts_TK.flatten().sort(stable=True)
    found, counts = experts_N.unique_consecutive(return_counts=True)
    start = 0
    for expert, count in zip(found.tolist(), counts.tolist(), strict=True):
        chosen_n = order_N[start : start + count]
        start += count
        if expert < 0:
            continue
        row_n, rank_n = chosen_n // num_chosen, chosen_n % num_chosen
        result_nD = run(expert, x_TD[row_n]).float()
        out_KTD[rank_n, row_n] = result_nD * weights_TK[row_n, rank_n].unsqueeze(1)
    return out_KTD
