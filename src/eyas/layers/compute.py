"""How the layers of a network are computed: what all of them are built with.

Does not know: layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from eyas.layers.row_order import RowOrder


@dataclass(frozen=True, slots=True)
class Compute:
    """dtype: of weights and activations. order: the row counts of matrix products; by default every
    count is run as it is, without a promise about bits."""

    dtype: torch.dtype
    device: torch.device
    order: RowOrder = field(default_factory=RowOrder)

    def empty(self, *shape: int) -> torch.Tensor:
        """Return a weight to fill."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)
