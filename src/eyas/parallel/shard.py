"""Which part of a network one rank computes, and how ranks complete a sum.

Promises: parts of equal size, in the order of the ranks. Key/value heads that are fewer than ranks are
repeated, so that each rank has the one that its query heads read.
Does not know: layers, checkpoints.

Legend: T rows, O output features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.parallel.cut import Rows
from eyas.parallel.group import Group
from eyas.parallel.tree import PIECES, tree_sum


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part.

    rank, size: the rank's number, and how many there are. by_tree: sums over input features are formed
    in the tree of `parallel.tree`, so that their bits do not depend on the number of ranks. by_expert:
    a rank holds whole experts, else a part of each. group: None for one rank, and where only sizes are
    asked for.
    """

    rank: int = 0
    size: int = 1
    by_tree: bool = False
    by_expert: bool = False
    group: Group | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the layers are those of one rank, with sums in the order of their products."""
        return self.size == 1 and not self.by_tree

    @property
    def num_pieces(self) -> int:
        """How many pieces of a sum a rank adds."""
        return PIECES // self.size

    def part(self, count: int) -> Rows:
        """Return this rank's part of so many heads, features or tokens."""
        return Rows(
            count, ((count * self.rank // self.size, count * (self.rank + 1) // self.size),)
        )

    def kv_heads(self, count: int) -> Rows:
        """Return this rank's key/value heads: its part of them, or the one that it shares."""
        if count >= self.size:
            return self.part(count)
        head = count * self.rank // self.size
        return Rows(count, ((head, head + 1),))

    def completed(self, partial_TO: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' partial sums, on every rank."""
        if self.group is None:
            return partial_TO
        return tree_sum(self.group.all_gather(partial_TO))


WHOLE = Shard()
"""One rank."""
