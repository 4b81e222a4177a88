"""RMS norms of queries and of keys, each over all heads of a model together, on a rank's heads.

Promises: the same bits for any number of ranks: every rank normalises the whole row, as one rank does,
and keeps its heads.
Does not know: which family has such norms.

Legend: T rows, X numbers of some heads.
"""

from __future__ import annotations

import torch

from eyas.layers.compute import Compute
from eyas.layers.norm import RMSNorm
from eyas.parallel.cut import Rows
from eyas.parallel.shard import Shard


class ProjectionNorms:
    """queries, keys: the numbers of this rank's query heads and key heads, among those of all heads."""

    def __init__(
        self,
        queries: Rows,
        keys: Rows,
        epsilon: float,
        compute: Compute,
        *,
        shard: Shard,
    ) -> None:
        self._shard = shard
        self._queries, self._keys = queries, keys
        self._q_norm = RMSNorm(queries.whole, epsilon, compute)
        self._k_norm = RMSNorm(keys.whole, epsilon, compute)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return the weights to fill, which are those of all heads."""
        return {
            "q_norm.weight": self._q_norm.parameter(),
            "k_norm.weight": self._k_norm.parameter(),
        }

    def __call__(self, heads_TX: torch.Tensor) -> torch.Tensor:
        """Return this rank's queries, keys and values [T, X] with queries and keys normalised."""
        widths = (self._queries.count, self._keys.count)
        part_TX, v_TX = heads_TX.tensor_split((sum(widths),), dim=1)
        q_parts, k_parts = self._shard.gathered(part_TX).split(widths, dim=2)
        # with fewer key heads than ranks, neighbours hold the same one
        num_copies = self._shard.size * self._keys.count // self._keys.whole
        q_TX = self._q_norm(_joined(q_parts))
        k_TX = self._k_norm(_joined(k_parts[::num_copies]))
        return torch.cat([_held(q_TX, self._queries), _held(k_TX, self._keys), v_TX], dim=1)


def _joined(parts: torch.Tensor) -> torch.Tensor:
    """Return the columns of several parts [Z, T, X] in one row [T, Z * X]."""
    return parts.transpose(0, 1).flatten(1)


def _held(whole_TX: torch.Tensor, columns: Rows) -> torch.Tensor:
    (held,) = columns.ranges
    return whole_TX[:, slice(*held)]
