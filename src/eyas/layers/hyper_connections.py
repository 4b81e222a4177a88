"""Manifold-constrained hyper-connections (DeepSeek-V4): a residual stream of several lanes.

A block reads a weighted sum of the streams; its output is added to each with a weight of its own, and
the streams are mixed by a matrix whose rows and columns sum to 1 (Sinkhorn and Knopp's iterations).
All of these weights are computed from the streams, for each row.

Promises: a row's bits depend on that row alone, for row counts that the row order allows. Weights are
float32; streams are rounded once, after mixing.
Does not know: the blocks.

Legend: T rows, M streams, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.layers.linear import LogitsHead
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import normalized
from eyas.ops.row_functions import exp, sigmoid, sum_in_halves


@dataclass(frozen=True, slots=True)
class HyperSizes:
    """num_streams: residual streams. num_iterations: of the normalisation of mixing matrices. epsilon:
    added to weights and to the sums that divide them."""

    num_streams: int
    num_iterations: int
    epsilon: float

    @property
    def num_weights(self) -> int:
        """Numbers that a connection computes for a row: in, out, and mixing."""
        return (2 + self.num_streams) * self.num_streams

    def shapes(self, hidden_size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (output size, input size) of the products of a connection, and of the last one."""
        width = self.num_streams * hidden_size
        return (self.num_weights, width), (self.num_streams, width)

    def parameter_shapes(
        self, prefix: str, hidden_size: int, *, is_last: bool
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters of a connection, or of the last sum, by name."""
        shape = self.shapes(hidden_size)[is_last]
        num_scales = 1 if is_last else 3
        return {
            f"{prefix}fn": shape,
            f"{prefix}base": shape[:1],
            f"{prefix}scale": (num_scales,),
        }


class Collapse:
    """A learned weighted sum of the streams, and further weights that are computed with its own.

    num_weights: numbers computed for a row, of which the first M weigh the sum. num_scales: factors of
    consecutive kinds of them. norm_epsilon: of the norm of the streams.
    """

    def __init__(
        self,
        sizes: HyperSizes,
        hidden_size: int,
        norm_epsilon: float,
        *,
        num_weights: int,
        num_scales: int,
        dtype: torch.dtype,
        device: torch.device,
        order: RowOrder,
    ) -> None:
        width = sizes.num_streams * hidden_size
        self.sizes = sizes
        self._norm_epsilon = norm_epsilon
        self._product = LogitsHead(num_weights, width, dtype=dtype, device=device, order=order)
        self._base = torch.empty(num_weights, dtype=torch.float32, device=device)
        self._scale = torch.empty(num_scales, dtype=torch.float32, device=device)

    def parameters(self) -> dict[str, torch.Tensor]:
        (product,) = self._product.views()
        return {"fn": product, "base": self._base, "scale": self._scale}

    def seal(self) -> None:
        self._product.seal()
        num = self.sizes.num_streams
        counts = torch.tensor([num, num, num * num][: len(self._scale)], device=self._scale.device)
        self._scale = self._scale.repeat_interleave(counts)

    def __call__(self, streams_TMD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum [T, D] in the streams' type, and the raw weights beyond its own, float32."""
        num = self.sizes.num_streams
        flat_TX = normalized(streams_TMD.flatten(1).float(), None, self._norm_epsilon)
        raw_TX = self._product(flat_TX) * self._scale + self._base
        weights_TM = sigmoid(raw_TX[:, :num]) + self.sizes.epsilon
        summed_TD = sum_in_halves(weights_TM.unsqueeze(2) * streams_TMD.float(), 1)
        return summed_TD.to(streams_TMD.dtype), raw_TX[:, num:]


class HyperConnection:
    """The way into one block and back to the streams."""

    def __init__(
        self,
        sizes: HyperSizes,
        hidden_size: int,
        norm_epsilon: float,
        *,
        dtype: torch.dtype,
        device: torch.device,
        order: RowOrder,
    ) -> None:
        self._sizes = sizes
        self._collapse = Collapse(
            sizes,
            hidden_size,
            norm_epsilon,
            num_weights=sizes.num_weights,
            num_scales=3,
            dtype=dtype,
            device=device,
            order=order,
        )
        self.parameters = self._collapse.parameters
        self.seal = self._collapse.seal

    def enter(self, streams_TMD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the block's input [T, D], and what `leave` needs."""
        return self._collapse(streams_TMD)

    def leave(
        self, streams_TMD: torch.Tensor, raw_TX: torch.Tensor, out_TD: torch.Tensor
    ) -> torch.Tensor:
        """Return the streams after the block. raw_TX: from `enter`. out_TD: the block's output."""
        num = self._sizes.num_streams
        out_weights_TM = 2 * sigmoid(raw_TX[:, :num])
        mixing_TMM = self._mixing(raw_TX[:, num:].unflatten(1, (num, num)))
        mixed_TMD = sum_in_halves(mixing_TMM.unsqueeze(3) * streams_TMD.float().unsqueeze(2), 1)
        mixed_TMD = mixed_TMD + out_weights_TM.unsqueeze(2) * out_TD.float().unsqueeze(1)
        return mixed_TMD.to(streams_TMD.dtype)

    def _mixing(self, raw_TMM: torch.Tensor) -> torch.Tensor:
        """Return matrices whose rows and columns sum to 1; element [from, to]."""
        epsilon = self._sizes.epsilon
        powers = exp((raw_TMM - raw_TMM.amax(2, keepdim=True)).flatten(1)).view_as(raw_TMM)
        mixing = powers / sum_in_halves(powers, 2).unsqueeze(2) + epsilon
        mixing = mixing / (sum_in_halves(mixing, 1).unsqueeze(1) + epsilon)
        for _ in range(self._sizes.num_iterations - 1):
            mixing = mixing / (sum_in_halves(mixing, 2).unsqueeze(2) + epsilon)
            mixing = mixing / (sum_in_halves(mixing, 1).unsqueeze(1) + epsilon)
        return mixing
