"""Which part of a network one rank computes.

Promises: parts of equal size, in the order of the ranks. If there are fewer key/value heads than
ranks, they are repeated, so that each rank has the head that its query heads read. Does not know:
layers, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from eyas.parallel.cut import Rows
from eyas.parallel.group import Group

PIECES = 8
"""Pieces of the input features of a product that ranks divide. A rank has 8, 4, 2 or 1 of them."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part.

    rank, size: the rank's number, and how many there are. by_tree: sums over input features are
    formed in a binary tree of PIECES pieces, so that their bits do not depend on the number of ranks.
    by_expert: a rank holds whole experts, else a part of each. by_sequence: a rank computes the rows
    of its own sequences, with all heads; the chosen experts alone are divided, by expert. group: None
    for one rank, and if only sizes are needed.
    """

    rank: int = 0
    size: int = 1
    by_tree: bool = False
    by_expert: bool = False
    by_sequence: bool = False
    group: Group | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the layers are those of one rank, with sums in the order of their products."""
        return self.size == 1 and not self.by_tree

    @property
    def option(self) -> str:
        """The setting that asks for this division, for messages."""
        if self.size == 1:
            return "exact_across_tp"
        return "dp" if self.by_sequence else "tp"

    @property
    def dense(self) -> Shard:
        """The part of attention, feed-forward blocks and shared experts that this rank computes: all
        of them if it has rows of its own."""
        if not self.by_sequence:
            return self
        return replace(self, rank=0, size=1, by_expert=False, by_sequence=False, group=None)

    @property
    def num_pieces(self) -> int:
        """How many pieces of a sum a rank adds."""
        return PIECES // self.size

    def part(self, count: int) -> Rows:
        """Return this rank's part of a number of heads, features or tokens."""
        return Rows(
            count, ((count * self.rank // self.size, count * (self.rank + 1) // self.size),)
        )

    def kv_heads(self, count: int) -> Rows:
        """Return this rank's key/value heads: its part of them, or the one that it shares."""
        if count >= self.size:
            return self.part(count)
        head = count * self.rank // self.size
        return Rows(count, ((head, head + 1),))

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks [N, ...], on every rank."""
        return part.unsqueeze(0) if self.group is None else self.group.all_gather(part)

    def summed(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all ranks in the order of `ops.tree_sum`, on every rank."""
        return part if self.group is None else self.group.summed(part)


WHOLE = Shard()
"""One rank."""
