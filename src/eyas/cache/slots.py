"""The pool of slots: which token positions of the key/value tensors are free.

Promises: a slot is handed out once until it returns; slot 0 (`NULL_SLOT`) is never handed out, rows
that must write somewhere harmless write there. Low slots first after a quiet moment, so that a
sequence's slots tend to be one contiguous run.
Does not know: sequences, prefixes, tensors.
"""

from __future__ import annotations

import numpy as np

NULL_SLOT = 0
NO_SLOTS = np.empty(0, dtype=np.int64)


class SlotPool:
    """`num_slots` usable slots, numbered 1 to num_slots."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = _all_slots(num_slots)
        self._num_free = num_slots

    @property
    def num_free(self) -> int:
        return self._num_free

    def take(self, count: int) -> np.ndarray:
        """[count] slots; the caller has made sure that they are there."""
        assert 0 <= count <= self._num_free, (count, self._num_free)
        start = self._num_free - count
        self._num_free = start
        return self._free[start : start + count][::-1].copy()

    def give(self, slots: np.ndarray) -> None:
        """Return slots that were taken."""
        count = len(slots)
        assert self._num_free + count <= self.num_slots, "a slot came back twice"
        self._free[self._num_free : self._num_free + count] = slots[::-1]
        self._num_free += count
        if self._num_free == self.num_slots:
            self._free = _all_slots(self.num_slots)

    def free_slots(self) -> np.ndarray:
        """The free slots, for integrity checks."""
        return self._free[: self._num_free]


def _all_slots(num_slots: int) -> np.ndarray:
    """Every usable slot, low ones last, where they are taken first."""
    return np.arange(num_slots, 0, -1, dtype=np.int64)
