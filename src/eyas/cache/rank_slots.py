"""The slots of one rank: free ones, and those of its prefix tree, which are evicted when none is free.

Promises: what belongs to a slot or a prefix is freed with it: window slots and snapshots.
Does not know: sequences.
"""

from __future__ import annotations

import numpy as np

from eyas.cache.blocks import BlockLog
from eyas.cache.radix import RadixTree
from eyas.cache.slots import SlotPool
from eyas.cache.snapshots import SnapshotPool
from eyas.cache.windows import WindowSlots


class RankSlots:
    """`num_slots` slots, numbered from `first`. The other arguments are those of `CacheManager`."""

    def __init__(
        self,
        num_slots: int,
        first: int,
        *,
        blocks: BlockLog | None,
        windows: WindowSlots | None,
        snapshots: SnapshotPool | None,
    ) -> None:
        self.tree = RadixTree(blocks)
        self.pool = SlotPool(num_slots, first)
        self._windows = windows
        self._snapshots = snapshots

    @property
    def num_available(self) -> int:
        """Free slots, and those of unlocked prefixes."""
        return self.pool.num_free + self.tree.num_evictable

    def take(self, count: int) -> np.ndarray:
        """Take slots, evicting unlocked prefixes if needed. The caller has checked `num_available`."""
        missing = count - self.pool.num_free
        if missing > 0:
            self.evict(missing)
        return self.pool.take(count)

    def give(self, slots: np.ndarray) -> None:
        """Free slots, and their window slots."""
        if self._windows is not None:
            self._windows.drop(slots)
        self.pool.give(slots)

    def evict(self, count: int) -> int:
        """Free `count` slots of unlocked prefixes, or fewer if the rest is locked, and the snapshots of
        these prefixes. Returns the number of slots."""
        evicted = self.tree.evict(count)
        self.give(evicted)
        for snapshot in self.tree.dropped_snapshots:
            assert self._snapshots is not None
            self._snapshots.give(snapshot)
        self.tree.dropped_snapshots.clear()
        return len(evicted)
