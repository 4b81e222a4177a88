"""DeepSeek-V4's attention: a window of keys that are values too, and compressed entries before it.

Promises: a row's bits depend on that row and its own path alone, for row counts that the row order
allows. Queries come from a small latent; all query heads share one key head, whose numbers are the
values as well, so that the output is turned back by its row's angle; heads leave in groups, each
through a small latent of its own.
Does not know: caches, masks, trees (its `Attend` does), checkpoints.

Legend: T rows, I input features, N query heads, H head dim, J index heads, X numbers of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from eyas.attention.base import Attend
from eyas.cache.store import CompressedStore, LayerStore
from eyas.layers.compute import Compute
from eyas.layers.head_linear import HeadLinear
from eyas.layers.linear import Linear
from eyas.layers.norm import RMSNorm
from eyas.ops.compress import Compression, Pooling
from eyas.ops.rotate_and_store import Angles, finite
from eyas.ops.rotate_heads import rotate_heads, rotate_shared
from eyas.parallel.cut import Parameter


@dataclass(frozen=True, slots=True)
class CompressedSizes:
    """The sizes of one layer's attention.

    query_rank: of the latent of queries. window: latest positions whose keys are seen. num_groups,
    group_rank: groups of heads on the way out, and the size of each one's latent. rate: positions of a
    compressed entry; 0 where the layer has none. overlaps: an entry is made of the group before, too.
    num_index_heads, index_dim, num_chosen: of the indexer, and how many entries it chooses for a query;
    0 without one.
    """

    num_heads: int
    head_dim: int
    query_rank: int
    window: int
    num_groups: int
    group_rank: int
    rate: int = 0
    overlaps: bool = False
    num_index_heads: int = 0
    index_dim: int = 0
    num_chosen: int = 0

    @property
    def without_entries(self) -> CompressedSizes:
        """The sizes of a layer with a window alone."""
        return replace(self, rate=0, overlaps=False, num_index_heads=0, index_dim=0, num_chosen=0)

    @property
    def store(self) -> LayerStore:
        """What the layer stores for a token."""
        heads, dim = self.num_heads, self.head_dim
        if not self.rate:
            return LayerStore(heads, 1, dim, self.window, value_dim=dim)
        return CompressedStore(
            heads,
            1,
            dim,
            local_window=self.window,
            rate=self.rate,
            overlaps=self.overlaps,
            index_dim=self.index_dim,
            num_chosen=self.num_chosen,
        )

    @property
    def entry_parts(self) -> dict[str, int]:
        """Return the outputs of the product over the input."""
        parts = {"q_a": self.query_rank, "kv": self.head_dim}
        series = 1 + self.overlaps
        if self.rate:
            width = series * self.head_dim
            parts |= {"compressor.kv": width, "compressor.gate": width}
        if self.index_dim:
            width = series * self.index_dim
            parts |= {"indexer.kv": width, "indexer.gate": width}
            parts["indexer.weights"] = self.num_index_heads
        return parts

    @property
    def query_parts(self) -> dict[str, int]:
        """Return the outputs of the product over the latent of queries."""
        parts = {"q_b": self.num_heads * self.head_dim}
        if self.index_dim:
            parts["indexer.q"] = self.num_index_heads * self.index_dim
        return parts

    @property
    def group_width(self) -> int:
        return self.num_heads * self.head_dim // self.num_groups

    def products(self, hidden_size: int) -> tuple[tuple[int, int], ...]:
        """Return (output size, input size) of the matrix products as they run."""
        return (
            (sum(self.entry_parts.values()), hidden_size),
            (sum(self.query_parts.values()), self.query_rank),
            *[(self.group_rank, self.group_width)] * self.num_groups,
            (hidden_size, self.num_groups * self.group_rank),
        )


class CompressedAttention:
    """The attention of one layer. epsilon: of all of its norms."""

    def __init__(
        self,
        hidden_size: int,
        sizes: CompressedSizes,
        epsilon: float,
        compute: Compute,
    ) -> None:
        def linear(num_in: int, parts: dict[str, int]) -> Linear:
            return Linear(num_in, parts, compute)

        def norm(size: int) -> RMSNorm:
            return RMSNorm(size, epsilon, compute)

        self._sizes, self._epsilon, self._compute = sizes, epsilon, compute
        latent_size = sizes.num_groups * sizes.group_rank
        self._entry = linear(hidden_size, sizes.entry_parts)
        self._queries = linear(sizes.query_rank, sizes.query_parts)
        self._o_a_XI = compute.empty(latent_size, sizes.group_width)
        self._o_b = linear(latent_size, {"o_b": hidden_size})
        self._q_norm, self._kv_norm = norm(sizes.query_rank), norm(sizes.head_dim)
        self._sinks_N = torch.empty(sizes.num_heads, dtype=torch.float32, device=compute.device)
        self._pooling: dict[str, tuple[torch.Tensor, RMSNorm]] = {}
        for name, width in (("compressor", sizes.head_dim), ("indexer", sizes.index_dim)):
            if sizes.rate and width:
                shape = (sizes.rate, (1 + sizes.overlaps) * width)
                bias = torch.empty(shape, dtype=torch.float32, device=compute.device)
                self._pooling[name] = bias, norm(width)

    def parameters(self) -> dict[str, Parameter]:
        found: dict[str, Parameter] = (
            self._entry.parameters() | self._queries.parameters() | self._o_b.parameters()
        )
        found["o_a.weight"] = self._o_a_XI
        found["q_a_norm.weight"] = self._q_norm.parameter()
        found["kv_norm.weight"] = self._kv_norm.parameter()
        found["sinks"] = self._sinks_N
        for name, (bias, norm) in self._pooling.items():
            found[f"{name}.position_bias"] = bias
            found[f"{name}.norm.weight"] = norm.parameter()
        return found

    def seal(self) -> None:
        """Prepare the filled weights for running."""
        groups_GXI = self._o_a_XI.unflatten(0, (self._sizes.num_groups, -1))
        self._o_a = HeadLinear(groups_GXI, self._compute)
        self._o_a_XI = torch.empty(0)
        for product in (self._entry, self._queries, self._o_b):
            product.seal()

    def __call__(
        self, layer: int, x_TI: torch.Tensor, angles: Angles, attend: Attend
    ) -> torch.Tensor:
        """Return the parts of the block's output (`Linear.parts`) for an input [T, I]."""
        sizes = self._sizes
        projected_TX = self._entry(x_TI)
        parts = projected_TX.split(list(sizes.entry_parts.values()), dim=1)
        by_name = dict(zip(sizes.entry_parts, parts, strict=True))
        latent = self._queries(self._q_norm.add(by_name["q_a"], None)[1])
        kv_TH = by_name["kv"]
        q_TNH, index_TJI = rotate_shared(
            latent,
            kv_TH,
            self._kv_norm.weight,
            angles,
            self._epsilon,
            sizes.num_heads,
            sizes.num_index_heads,
        )
        if not sizes.rate:
            destination = attend.destination(layer)
            destination.keys_SGH.index_copy_(0, destination.slots_T, finite(kv_TH.unsqueeze(1)))
            out_TNH = attend(layer, q_TNH, self._sinks_N)
        else:
            compression = Compression(
                self._pooled("compressor"),
                angles,
                self._pooled("indexer") if sizes.index_dim else None,
                index_TJI if sizes.index_dim else None,
                by_name.get("indexer.weights"),
            )
            size = sum(sizes.entry_parts.values()) - sizes.query_rank - sizes.num_index_heads
            inputs_TX = projected_TX.narrow(1, sizes.query_rank, size)
            out_TNH = attend.compress(layer, inputs_TX, q_TNH, self._sinks_N, compression)
        out_TNH = rotate_heads(out_TNH, angles, backwards=True)
        grouped_TGX = out_TNH.flatten(1).unflatten(1, (sizes.num_groups, -1))
        latent_TGX = x_TI.new_empty((len(x_TI), sizes.num_groups, sizes.group_rank))
        self._o_a(grouped_TGX, latent_TGX)
        return self._o_b.parts(latent_TGX.flatten(1))

    def _pooled(self, name: str) -> Pooling:
        bias, norm = self._pooling[name]
        return Pooling(bias, norm.weight, self._epsilon)
