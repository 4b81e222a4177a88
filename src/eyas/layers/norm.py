"""Root-mean-square normalisation in float32, each row by itself.

Promises: a row's sums run over that row alone, in an order that does not depend on the other rows.
Does not know: what the rows are (hidden states, or the heads of a query).

On a CPU torch composes its own RMS norm from seven operations, each of which costs microseconds at
one token; layer norm is one kernel. A row followed by its negative has mean 0 and an unchanged mean
square, so layer norm of the two is RMS norm of the one.

Legend: T rows, D normalised, any dimensions before.
"""

from __future__ import annotations

import torch

from eyas.kernels import usable


class RMSNorm:
    """x / sqrt(mean(x^2) + epsilon) * (offset + weight) over the last dimension.

    has_weight: whether the last dimension has a weight to fill and to multiply by. offset: added to the
    weight by `seal`.
    """

    def __init__(
        self,
        size: int,
        epsilon: float,
        *,
        dtype: torch.dtype,
        device: torch.device,
        has_weight: bool = True,
        offset: float = 0.0,
    ) -> None:
        self._epsilon = epsilon
        self._offset = offset
        self._is_mirrored = device.type == "cpu"
        self._shape = (2, size) if self._is_mirrored else (size,)
        self._signs_21 = torch.tensor([[1.0], [-1.0]], dtype=dtype, device=device)
        self._weight: torch.Tensor | None = None
        if has_weight:
            self._weight = torch.ones(self._shape, dtype=dtype, device=device)
        self._add_norm = None
        if usable(device):
            from eyas.kernels.norm import add_norm

            self._add_norm = add_norm

    def parameter(self) -> torch.Tensor:
        """The weight to fill [D]."""
        assert self._weight is not None, "this norm has no weight"
        return self._weight[0] if self._is_mirrored else self._weight

    def seal(self) -> None:
        """Prepare the filled weight for running."""
        if self._offset:
            self.parameter().add_(self._offset)

    def of_parts(self, parts: torch.Tensor) -> torch.Tensor:
        """Return the norm [T, D] of the sum of a product's parts (`Linear.parts`)."""
        dtype = self._signs_21.dtype
        return self(parts if parts.dim() == 2 else parts.sum(dim=0).to(dtype))

    def add(
        self, stream_TD: torch.Tensor, parts: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add what a layer made to the residual stream: the new stream and its norm, [T, D] each.

        parts: as `Linear.parts` returns them; None where there is nothing to add.
        """
        if self._add_norm is not None:
            return self._add_norm(stream_TD, parts, self._weight, self._epsilon, pdl=True)
        stream_TD = added(stream_TD, parts)
        return stream_TD, self(stream_TD)

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        if self._is_mirrored:
            mirrored_T2D = x_TD.unsqueeze(-2) * self._signs_21
            normed_T2D = torch.layer_norm(
                mirrored_T2D, self._shape, self._weight, None, self._epsilon
            )
            return normed_T2D.select(-2, 0)
        return torch.rms_norm(x_TD, self._shape, self._weight, self._epsilon)


def added(stream_TD: torch.Tensor, parts: torch.Tensor | None) -> torch.Tensor:
    """The residual stream with the parts of a product added, in order."""
    if parts is None:
        return stream_TD
    if parts.dim() == stream_TD.dim():
        return stream_TD + parts
    return (stream_TD + parts.sum(dim=0)).to(stream_TD.dtype)
