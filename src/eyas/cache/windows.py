"""The slots of layers with a window, which keep fewer tokens than the other layers do.

A slot of the cache stands for a token in all layers; a *window slot* is where the layers with a window
have its keys and values. A token has one while a query may still see it. Afterwards the window slot
stays with its token as long as no other token needs it, because a sequence that continues from there
can use it. The one that was left longest ago is recycled first, and those at the end of a prompt or of
an answer, where sequences usually continue, after the others.

Promises: a window slot is free or belongs to one slot. One that is held is never recycled. Window slot
0 belongs to slot 0 (`NULL_SLOT`) and is never handed out.
Does not know: sequences, prefixes, tensors.
"""

from __future__ import annotations

import numpy as np

from eyas.cache.slots import SlotPool

RECYCLED_SHARE = 32
"""At least one in so many window slots is recycled at a time, since choosing them looks at all."""


class WindowSlots:
    """`num_window_slots` window slots for `num_slots` slots.

    window: the widest of the layers' windows. reach: positions before its own that a query sees.
    num_recycled: window slots that were taken from a token that still had a slot.
    """

    def __init__(self, num_slots: int, num_window_slots: int, window: int) -> None:
        self.reach = window - 1
        self.num_recycled = 0
        self._pool = SlotPool(num_window_slots)
        self._of_slot = np.zeros(num_slots + 1, dtype=np.int64)
        self._slot_of = np.zeros(num_window_slots + 1, dtype=np.int64)
        self._num_holders = np.zeros(num_window_slots + 1, dtype=np.int64)
        self._left_at = np.zeros(num_window_slots + 1, dtype=np.int64)
        self._is_preferred = np.zeros(num_window_slots + 1, dtype=bool)
        self._clock = 0
        self._num_held = 0
        self._changed: list[np.ndarray] = []

    @property
    def num_slots(self) -> int:
        """Number of window slots."""
        return self._pool.num_slots

    def places(self, slots: np.ndarray) -> np.ndarray:
        """Return the window slots of these slots, which have one each."""
        own = self._of_slot[slots]
        assert own.all(), "a token without a window slot was asked for"
        return own

    @property
    def num_available(self) -> int:
        """Window slots that can be taken now: free ones, and those that nobody holds."""
        return self._pool.num_slots - self._num_held

    def take(self, slots: np.ndarray) -> None:
        """Give each of these slots a window slot, and hold it. The caller has checked
        `num_available`."""
        missing = len(slots) - self._pool.num_free
        if missing > 0:
            self._recycle(missing)
        own = self._pool.take(len(slots))
        self._of_slot[slots] = own
        self._slot_of[own] = slots
        self._num_holders[own] = 1
        self._num_held += len(own)
        self._changed.append(slots)

    def hold(self, slots: np.ndarray) -> None:
        """Keep the window slots of these slots from being recycled, until `leave`."""
        own = self._of_slot[slots]
        assert own.all(), "a token without a window slot was to be seen"
        self._num_held += int((self._num_holders[own] == 0).sum())
        self._num_holders[own] += 1

    def leave(self, slots: np.ndarray) -> None:
        """Undo one `hold` or `take` of these slots, in order of position."""
        own = self._of_slot[slots]
        self._num_holders[own] -= 1
        assert own.all() and (self._num_holders[own] >= 0).all(), "left more often than held"
        left = own[self._num_holders[own] == 0]
        self._num_held -= len(left)
        self._left_at[left] = self._clock + np.arange(len(left))
        self._clock += len(left)

    def prefer(self, slots: np.ndarray) -> None:
        """Recycle the window slots of these slots, where they have one, after all others."""
        own = self._of_slot[slots]
        self._is_preferred[own[own > 0]] = True

    def drop(self, slots: np.ndarray) -> None:
        """Free the window slots of slots that become free themselves."""
        own = self._of_slot[slots]
        own = own[own > 0]
        self._num_held -= int((self._num_holders[own] > 0).sum())
        self._free(own)

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Let slots that have no window slot take over those of other slots of the same tokens, which
        nobody holds."""
        own = self._of_slot[sources]
        wanted = (own > 0) & (self._of_slot[targets] == 0)
        own, targets = own[wanted], targets[wanted]
        assert not self._num_holders[own].any()
        self._of_slot[sources[wanted]] = 0
        self._of_slot[targets] = own
        self._slot_of[own] = targets
        self._changed.append(targets)

    def usable(self, slots: np.ndarray) -> int:
        """Return the length of the longest part of a prefix that a sequence can continue: all tokens
        that its next query sees have window slots."""
        if not len(slots):
            return 0
        places = np.arange(len(slots))
        last_without = np.maximum.accumulate(np.where(self._of_slot[slots] > 0, -1, places))
        seen = np.minimum(places + 1, self.reach)
        ends = np.flatnonzero(places - last_without >= seen)
        return int(ends[-1]) + 1 if len(ends) else 0

    def take_changes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return slots and their window slots, of all that have changed since the last call."""
        if not self._changed:
            return self._of_slot[:0], self._of_slot[:0]
        slots = np.unique(np.concatenate(self._changed))
        self._changed.clear()
        return slots, self._of_slot[slots]

    def check(self, slots: np.ndarray, held: list[np.ndarray]) -> None:
        """Raise AssertionError unless each window slot is exactly once free or a slot's, and held as
        often as it should be.

        slots: all that are not free. held: for each holder, the slots whose window slots it holds.
        """
        owners = np.flatnonzero(self._of_slot)
        own = self._of_slot[owners]
        assert np.isin(owners, slots).all(), "a free slot has a window slot"
        assert np.array_equal(self._slot_of[own], owners), "a window slot belongs to another slot"
        both = np.sort(np.concatenate([own, self._pool.free_slots()]))
        assert np.array_equal(both, np.arange(1, self._pool.num_slots + 1)), "a window slot is lost"
        counts = np.zeros_like(self._num_holders)
        for each in held:
            assert self._of_slot[each].all(), "a held token has no window slot"
            np.add.at(counts, self._of_slot[each], 1)
        assert np.array_equal(counts, self._num_holders), "holders of a window slot are off"
        assert self._num_held == np.count_nonzero(counts)

    def _recycle(self, missing: int) -> None:
        """Free at least `missing` window slots that nobody holds, those left first."""
        idle = np.flatnonzero((self._slot_of > 0) & (self._num_holders == 0))
        count = min(max(missing, self._pool.num_slots // RECYCLED_SHARE), len(idle))
        assert count >= missing
        if count < len(idle):
            order = self._left_at[idle] + self._is_preferred[idle] * self._clock
            idle = idle[np.argpartition(order, count - 1)[:count]]
        self.num_recycled += len(idle)
        self._free(idle)

    def _free(self, own: np.ndarray) -> None:
        self._of_slot[self._slot_of[own]] = 0
        self._slot_of[own] = 0
        self._num_holders[own] = 0
        self._is_preferred[own] = False
        self._pool.give(own)
