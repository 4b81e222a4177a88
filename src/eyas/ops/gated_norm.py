"""Normalise each head by its root mean square, and multiply it by a gate.

Promises: a row's bits depend on that row alone; sums have one order.
Does not know: what the heads are.

Legend: T rows, N heads, D numbers of a head.
"""

from __future__ import annotations

import torch

from eyas.ops.dispatch import Operation
from eyas.ops.row_functions import rsqrt, silu, sum_in_halves


@Operation
def gated_norm(
    x_TND: torch.Tensor, gate_TX: torch.Tensor, weight_D: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Return silu(gate) * weight * x / sqrt(mean(x^2) + epsilon), [T, N * D] in the gate's type.

    x_TND, weight_D: float32. gate_TX: N * D numbers of each row.
    """
    mean_TN = sum_in_halves(x_TND * x_TND, 2) / x_TND.shape[2]
    normed_TND = x_TND * rsqrt(mean_TN + epsilon).unsqueeze(2) * weight_D
    return (normed_TND.flatten(1) * silu(gate_TX.float())).to(gate_TX.dtype)


@gated_norm.kernel
def _by_kernel(
    x_TND: torch.Tensor, gate_TX: torch.Tensor, weight_D: torch.Tensor, epsilon: float
) -> torch.Tensor:
    from eyas.kernels.gated_norm import gated_norm as launch

    return launch(x_TND, gate_TX, weight_D, epsilon, pdl=x_TND.is_cuda)
