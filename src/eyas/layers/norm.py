"""Root-mean-square normalisation with a weight of its own.

Promises: a row's sums run over that row alone, in an order that does not depend on the other rows.
Does not know: what the rows are.

Legend: T rows, D normalised, any dimensions before.
"""

from __future__ import annotations

import torch

from eyas.layers.compute import Compute
from eyas.ops.add_norm import add_norm, new_weight, normalized, summed


class RMSNorm:
    """x / sqrt(mean(x^2) + epsilon) * (offset + weight) over the last dimension, in float32.

    weight: as the operations read it (`ops.add_norm.new_weight`). offset: added to it by `seal`.
    """

    def __init__(
        self,
        size: int,
        epsilon: float,
        compute: Compute,
        *,
        offset: float = 0.0,
    ) -> None:
        self._epsilon = epsilon
        self._offset = offset
        self.weight = new_weight(size, compute.dtype, compute.device)

    def parameter(self) -> torch.Tensor:
        """Return the weight to fill [D]."""
        return self.weight if self.weight.dim() == 1 else self.weight[0]

    def seal(self) -> None:
        """Prepare the filled weight for running."""
        if self._offset:
            self.parameter().add_(self._offset)

    def of_parts(self, parts: torch.Tensor) -> torch.Tensor:
        """Return the norm [T, D] of the sum of a product's parts (`Linear.parts`)."""
        return self(summed(parts).to(self.weight.dtype))

    def add(
        self, stream_TD: torch.Tensor, parts: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual stream with `parts` added, and its norm, [T, D] each.

        parts: as `Linear.parts` returns them; None where there is nothing to add.
        """
        return add_norm(stream_TD, parts, self.weight, self._epsilon)

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        return normalized(x_TD, self.weight, self._epsilon)
