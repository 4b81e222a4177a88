"""Muon: an optimizer with orthogonalised momentum updates, for the weight matrices of hidden
layers.

Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). Matrices of
equal shape are updated as one batch. Embeddings and vectors need another optimizer.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_MOMENTUM = 0.95


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return a batch of matrices [B, M, N] with their singular values moved close to 1."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.bfloat16()
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        groups = [{"params": same} for same in by_shape.values()]
        defaults = {"lr": learning_rate, "weight_decay": weight_decay}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyrefly: ignore[bad-override]
        """Update every matrix once."""
        for group in self.param_groups:
            weights = group["params"]
            gradients = torch.stack([weight.grad for weight in weights])
            state = self.state[weights[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradients)
            momentum = state["momentum"]
            momentum.lerp_(gradients, 1 - _MOMENTUM)
            updates = orthogonalised(gradients.lerp(momentum, _MOMENTUM))
            rows, columns = weights[0].shape
            rate = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, list(updates.float().unbind(0)), alpha=-rate)
