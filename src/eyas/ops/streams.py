"""A residual stream of several lanes (hyper-connections): a weighted sum of them for a block, and the
way back from the block to each.

Promises: a row's bits depend on that row alone. Weights are float32; streams are rounded once, after
mixing.
Does not know: the blocks, how the product of the weights is computed on a CPU.

Legend: T rows, M streams, D hidden size, X = M * D, W weights of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from eyas.ops.add_norm import normalized, summed
from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import exp, sigmoid, sum_in_halves


@dataclass(frozen=True, slots=True)
class StreamWeights:
    """How the weights of a row's streams are computed: product * scale + base, float32.

    product: of normalised streams [T, X], on a CPU. weight_WX: of that product; what a device reads.
    epsilon: added to the weights of the sum.
    """

    product: Callable[[torch.Tensor], torch.Tensor] | None
    weight_WX: torch.Tensor
    base_W: torch.Tensor
    scale_W: torch.Tensor
    epsilon: float


@Operation
def sum_streams(
    streams_TMD: torch.Tensor,
    weights: StreamWeights,
    norm_weight: torch.Tensor,
    norm_epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm [T, D] of the weighted sum of the streams, and the raw weights of each row beyond
    the sum's own, float32.

    norm_weight: of the norm of the sum, from `add_norm.new_weight`. norm_epsilon: of both norms.
    """
    assert weights.product is not None
    num = streams_TMD.shape[1]
    flat_TX = normalized(streams_TMD.flatten(1).float(), None, norm_epsilon)
    raw_TW = weights.product(flat_TX) * weights.scale_W + weights.base_W
    share_TM = sigmoid(raw_TW[:, :num]) + weights.epsilon
    summed_TD = sum_in_halves(share_TM.unsqueeze(2) * streams_TMD.float(), 1)
    summed_TD = normalized(summed_TD.to(streams_TMD.dtype), norm_weight, norm_epsilon)
    return summed_TD, raw_TW[:, num:]


@sum_streams.kernel
def _sum_by_kernel(
    streams_TMD: torch.Tensor,
    weights: StreamWeights,
    norm_weight: torch.Tensor,
    norm_epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    from eyas.kernels.streams import sum_streams as launch

    return launch(
        streams_TMD,
        weights.weight_WX,
        weights.base_W,
        weights.scale_W,
        norm_weight if norm_weight.dim() == 1 else norm_weight[0],
        norm_epsilon,
        weights.epsilon,
        pdl=streams_TMD.is_cuda,
    )


@Operation
def mix_streams(
    streams_TMD: torch.Tensor,
    raw_TW: torch.Tensor,
    parts: torch.Tensor,
    num_iterations: int,
    epsilon: float,
) -> torch.Tensor:
    """Return the streams [T, M, D] after a block: mixed, and its output added with weights.

    raw_TW: from `sum_streams`: M weights of the output, then the mixing matrix. parts: of the block's
    output (`Linear.parts`). num_iterations, epsilon: of the normalisation of the matrix.
    """
    num = streams_TMD.shape[1]
    out_TD = summed(parts).to(streams_TMD.dtype)
    out_weights_TM = 2 * sigmoid(raw_TW[:, :num])
    mixing_TMM = mixing_matrices(raw_TW[:, num:].unflatten(1, (num, num)), num_iterations, epsilon)
    mixed_TMD = sum_in_halves(mixing_TMM.unsqueeze(3) * streams_TMD.float().unsqueeze(2), 1)
    mixed_TMD = mixed_TMD + out_weights_TM.unsqueeze(2) * out_TD.float().unsqueeze(1)
    return mixed_TMD.to(streams_TMD.dtype)


@mix_streams.kernel
def _mix_by_kernel(
    streams_TMD: torch.Tensor,
    raw_TW: torch.Tensor,
    parts: torch.Tensor,
    num_iterations: int,
    epsilon: float,
) -> torch.Tensor:
    from eyas.kernels.streams import mix_streams as launch

    return launch(streams_TMD, raw_TW, parts, num_iterations, epsilon, pdl=streams_TMD.is_cuda)


def mixing_matrices(raw_TMM: torch.Tensor, num_iterations: int, epsilon: float) -> torch.Tensor:
    """Return matrices whose rows and columns sum to 1 (Sinkhorn and Knopp); element [from, to]."""
    powers = exp((raw_TMM - raw_TMM.amax(2, keepdim=True)).flatten(1)).view_as(raw_TMM)
    mixing = powers / sum_in_halves(powers, 2).unsqueeze(2) + epsilon
    mixing = mixing / (sum_in_halves(mixing, 1).unsqueeze(1) + epsilon)
    for _ in range(num_iterations - 1):
        mixing = mixing / (sum_in_halves(mixing, 2).unsqueeze(2) + epsilon)
        mixing = mixing / (sum_in_halves(mixing, 1).unsqueeze(1) + epsilon)
    return mixing
