"""The pool of free slots. A slot holds the keys and values of one token.

Promises: a slot that was taken is not handed out again before it is given back. Slot 0 (`NULL_SLOT`) is
never handed out: rows whose keys and values are not needed are written there. When all slots are free,
they are sorted, so that the slots of a sequence tend to be contiguous.
Does not know: sequences, prefixes, tensors.
"""

from __future__ import annotations

import numpy as np

NULL_SLOT = 0
NO_SLOTS = np.empty(0, dtype=np.int64)


class SlotPool:
    """`num_slots` usable slots, numbered from `first`."""

    def __init__(self, num_slots: int, first: int = 1) -> None:
        self.num_slots = num_slots
        self._first = first
        self._free = self._all_slots()
        self._num_free = num_slots

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return self._num_free

    def take(self, count: int) -> np.ndarray:
        """Take `count` slots, lowest numbers first. The caller has checked `num_free`."""
        assert 0 <= count <= self._num_free, (count, self._num_free)
        start = self._num_free - count
        self._num_free = start
        return self._free[start : start + count][::-1].copy()

    def give(self, slots: np.ndarray) -> None:
        """Give back slots that were taken."""
        count = len(slots)
        assert self._num_free + count <= self.num_slots, "a slot came back twice"
        self._free[self._num_free : self._num_free + count] = slots[::-1]
        self._num_free += count
        if self._num_free == self.num_slots:
            self._free = self._all_slots()

    def free_slots(self) -> np.ndarray:
        """Return the free slots, for integrity checks."""
        return self._free[: self._num_free]

    def _all_slots(self) -> np.ndarray:
        """Return all usable slots in descending order, since slots are taken from the end."""
        return np.arange(self._first, self._first + self.num_slots, dtype=np.int64)[::-1].copy()
