"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one small row a token, for all heads.

Promises: a slot holds the normalised latent and the rotated part of the key, once. The weights that
would make keys and values of a latent are absorbed: queries are taken into the latent space,
attention returns sums of latents, and these are brought to value heads. Prompts, chains and trees
take this one path, so a row's reduction order is the same in all of them.
Does not know: caches, masks, trees (its `Attend` does), checkpoints.

Legend: T rows, I input features, N query heads, H rotated dimensions, F latent size, D = F + H numbers
of a stored row, X numbers of a row of several heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from eyas.attention.base import Attend
from eyas.layers.compute import Compute
from eyas.layers.head_linear import HeadLinear
from eyas.layers.linear import Linear
from eyas.layers.norm import RMSNorm
from eyas.layers.row_parallel import summing_linear
from eyas.ops.rotate_and_store import Angles
from eyas.ops.rotate_and_store_latent import rotate_and_store_latent
from eyas.parallel.cut import Parameter, Rows, held
from eyas.parallel.shard import WHOLE, Shard

LATENT_EPSILON = 1e-6
"""Of the norms of latents, whatever the model's own norms have, as in transformers."""


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The sizes of latent attention.

    query_rank: size of the latent that queries are made of; None where they are made of the input.
    rank: size of the latent of keys and values. plain_dim, rotated_dim: dimensions of a query or key
    head that are not rotated, and that are. value_dim: of a value head.
    """

    query_rank: int | None
    rank: int
    plain_dim: int
    rotated_dim: int
    value_dim: int

    @property
    def row_dim(self) -> int:
        """Numbers that are stored for a token."""
        return self.rank + self.rotated_dim

    @property
    def query_dim(self) -> int:
        """Dimensions of a query head."""
        return self.plain_dim + self.rotated_dim

    def entry_parts(self, num_heads: int) -> dict[str, int]:
        """Return the outputs of the product over the input: of queries or their latent, and the row."""
        query = {"q": num_heads * self.query_dim}
        if self.query_rank is not None:
            query = {"q_a": self.query_rank}
        return query | {"kv_a": self.row_dim}

    def products(
        self, num_heads: int, hidden_size: int, input_size: int
    ) -> tuple[tuple[int, int], ...]:
        """Return (output size, input size) of the matrix products as they run, one for each head where
        heads have their own."""
        products = [(sum(self.entry_parts(num_heads).values()), input_size)]
        if self.query_rank is not None:
            products.append((num_heads * self.query_dim, self.query_rank))
        of_heads = [(self.rank, self.plain_dim), (self.value_dim, self.rank)] * num_heads
        return (*products, *of_heads, (hidden_size, num_heads * self.value_dim))


class LatentAttention:
    """Latent attention with rotary positions.

    input_size: features of the input; None is hidden_size, which is always the size of the output.
    head_layout: of the rotated dimensions, as `RopeSpec.head_layout`. shard: this rank's part of the
    heads; every rank makes the latents.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        sizes: LatentSizes,
        compute: Compute,
        *,
        input_size: int | None = None,
        head_layout: tuple[int, ...] | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        def linear(num_in: int, parts: Mapping[str, int | Rows]) -> Linear:
            return Linear(num_in, parts, compute)

        def norm(size: int) -> RMSNorm:
            return RMSNorm(size, LATENT_EPSILON, compute)

        heads = shard.part(num_heads)
        num_heads = heads.count
        self._sizes = sizes
        self._num_heads = num_heads
        self._compute = compute
        self._head_layout = head_layout
        parts = sizes.entry_parts(num_heads)
        self._entry_widths = list(parts.values())
        entry: dict[str, int | Rows] = {**parts}
        if "q" in entry:
            entry["q"] = heads.times(sizes.query_dim)
        self._entry = linear(input_size or hidden_size, entry)
        self._query: tuple[RMSNorm, Linear] | None = None
        if sizes.query_rank is not None:
            queries = linear(sizes.query_rank, {"q_b": heads.times(sizes.query_dim)})
            self._query = (norm(sizes.query_rank), queries)
        self._row_norm = norm(sizes.rank)
        self._kv_rows = heads.times(sizes.plain_dim + sizes.value_dim)
        self._kv_b_XF = compute.empty(self._kv_rows.count, sizes.rank)
        self._o = summing_linear(
            heads.times(sizes.value_dim), "o", hidden_size, compute, shard=shard
        )

    def parameters(self) -> dict[str, Parameter]:
        found = self._entry.parameters() | self._o.parameters()
        if self._query is not None:
            query_norm, queries = self._query
            found["q_a_norm.weight"] = query_norm.parameter()
            found |= queries.parameters()
        found["kv_a_norm.weight"] = self._row_norm.parameter()
        found["kv_b.weight"] = held(self._kv_b_XF, self._kv_rows)
        return found

    def _lay_out_heads(self, layout: tuple[int, ...]) -> None:
        """Reorder the rotated dimensions of queries and of the row."""
        sizes, parameters = self._sizes, self._entry.tensors()
        if self._query is None:
            queries = parameters["q.weight"]
        else:
            queries = self._query[1].tensors()["q_b.weight"]
        heads = queries.view(self._num_heads, sizes.query_dim, -1)[:, sizes.plain_dim :]
        heads.copy_(heads[:, layout])
        row = parameters["kv_a.weight"][sizes.rank :]
        row.copy_(row[layout, :])

    def seal(self) -> None:
        """Prepare the filled weights for running; those of `kv_b` are divided into their two uses."""
        sizes = self._sizes
        if self._head_layout is not None:
            self._lay_out_heads(self._head_layout)
        heads_NXF = self._kv_b_XF.view(self._num_heads, sizes.plain_dim + sizes.value_dim, -1)
        keys, values = heads_NXF.split([sizes.plain_dim, sizes.value_dim], dim=1)
        self._absorb = HeadLinear(keys.transpose(1, 2), self._compute)
        self._bring_back = HeadLinear(values, self._compute)
        self._kv_b_XF = torch.empty(0)
        self._entry.seal()
        if self._query is not None:
            self._query[1].seal()
        self._o.seal()

    def __call__(
        self, layer: int, x_TI: torch.Tensor, angles: Angles, attend: Attend
    ) -> torch.Tensor:
        """Return the parts of the block's output (`Linear.parts`) for an input [T, I]."""
        sizes, num_rows = self._sizes, len(x_TI)
        q_TX, row_TD = self._entry(x_TI).split(self._entry_widths, dim=1)
        if self._query is not None:
            query_norm, queries = self._query
            q_TX = queries(query_norm.add(q_TX, None)[1])
        q_TNX = q_TX.unflatten(1, (self._num_heads, sizes.query_dim))
        plain_TNX, rotated_TNH = q_TNX.split([sizes.plain_dim, sizes.rotated_dim], dim=2)
        query_TND = x_TI.new_empty((num_rows, self._num_heads, sizes.row_dim))
        self._absorb(plain_TNX, query_TND[:, :, : sizes.rank])
        rotate_and_store_latent(
            row_TD,
            rotated_TNH,
            angles,
            attend.destination(layer),
            self._row_norm.weight,
            LATENT_EPSILON,
            query_TND,
        )
        latent_TNF = attend(layer, query_TND)
        out_TNX = x_TI.new_empty((num_rows, self._num_heads, sizes.value_dim))
        self._bring_back(latent_TNF, out_TNX)
        return self._o.parts(out_TNX.flatten(1))
