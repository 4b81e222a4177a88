"""Manifold-constrained hyper-connections (DeepSeek-V4): a residual stream of several lanes.

A block reads a weighted sum of the streams; its output is added to each with a weight of its own, and
the streams are mixed by a matrix whose rows and columns sum to 1 (Sinkhorn and Knopp's iterations).
All of these weights are computed from the streams, for each row.

Promises: a row's bits depend on that row alone, for row counts that the row order allows. Weights are
float32; streams are rounded once, after mixing.
Does not know: the blocks.

Legend: T rows, M streams, D hidden size, X = M * D, W weights of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.kernels import usable
from eyas.layers.compute import Compute
from eyas.layers.linear import LogitsHead
from eyas.layers.norm import RMSNorm
from eyas.ops.streams import StreamWeights, mix_streams, sum_streams


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


class Streams:
    """A learned weighted sum of the streams, its norm, and further weights that are computed with its
    own.

    num_weights: numbers computed for a row, of which the first M weigh the sum. num_scales: factors of
    consecutive kinds of them. norm_epsilon: of the norm of the streams, and of the sum.
    """

    def __init__(
        self,
        sizes: HyperSizes,
        hidden_size: int,
        norm_epsilon: float,
        compute: Compute,
        *,
        num_weights: int,
        num_scales: int,
    ) -> None:
        width = sizes.num_streams * hidden_size
        self._sizes = sizes
        self._norm_epsilon = norm_epsilon
        self._product: LogitsHead | None = None
        # A kernel reads the weight itself, also where the row order plans no products (float32).
        if compute.order.products is not None or usable(compute.device):
            self._weight_WX = torch.empty(
                num_weights, width, dtype=torch.float32, device=compute.device
            )
        else:
            self._product = LogitsHead(num_weights, width, compute)
            (self._weight_WX,) = self._product.views()
        self._base_W = torch.empty(num_weights, dtype=torch.float32, device=compute.device)
        self._scale_W = torch.empty(num_scales, dtype=torch.float32, device=compute.device)

    def parameters(self) -> dict[str, torch.Tensor]:
        return {"fn": self._weight_WX, "base": self._base_W, "scale": self._scale_W}

    def seal(self) -> None:
        if self._product is not None:
            self._product.seal()
            self._weight_WX = torch.empty(0)
        num = self._sizes.num_streams
        counts = [num, num, num * num][: len(self._scale_W)]
        counts_W = torch.tensor(counts, device=self._scale_W.device)
        self._weights = StreamWeights(
            self._product,
            self._weight_WX,
            self._base_W,
            self._scale_W.repeat_interleave(counts_W),
            self._sizes.epsilon,
        )

    def sum(self, streams_TMD: torch.Tensor, norm: RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of the sum [T, D] in the streams' type, and the raw weights beyond the sum's
        own, float32, which `mix` needs. norm: of the sum."""
        return sum_streams(streams_TMD, self._weights, norm.weight, self._norm_epsilon)

    def mix(
        self, streams_TMD: torch.Tensor, raw_TW: torch.Tensor, parts: torch.Tensor
    ) -> torch.Tensor:
        """Return the streams after a block. raw_TW: from `sum`. parts: of the block's output."""
        sizes = self._sizes
        return mix_streams(streams_TMD, raw_TW, parts, sizes.num_iterations, sizes.epsilon)
