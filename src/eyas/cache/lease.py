"""What the cache has given to one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from eyas.cache.node import RadixNode


@dataclass(slots=True, eq=False)
class Lease:
    """The slots that one admitted sequence holds.

    slots: slots[:num_stored] are those of its stored positions. The first `num_shared` of them belong
    to the prefix tree and are locked through `node`; the others belong to the sequence. reserved:
    slots for the rows of flights, one array a reservation.

    Where layers have a state per sequence: snapshot: that of the state at `num_shared`, to start from.
    boundary: position at which other sequences have continued in another way, so that a snapshot there
    helps the next one; 0 if there is none. saving, saved: snapshots that a flight takes, and has taken,
    by position.

    holds_snapshot: `snapshot` is kept until the lease is released.

    window_start: where layers have windows of their own slots: the first position whose window slot is
    held. Those from there to `num_stored` are, and those of reserved slots. unseen: reservations
    without window slots.

    rank: whose slots these are. num_expected: positions that the sequence is known to need.
    """

    namespace: str
    slots: np.ndarray
    num_stored: int
    num_shared: int
    node: RadixNode | None
    reserved: list[np.ndarray] = field(default_factory=list)
    unseen: list[np.ndarray] = field(default_factory=list)
    snapshot: int | None = None
    holds_snapshot: bool = False
    boundary: int = 0
    saving: dict[int, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    window_start: int = 0
    rank: int = 0
    num_expected: int = 0

    @property
    def num_missing(self) -> int:
        """Positions that are expected and have no slot yet."""
        num_held = self.num_stored + sum(map(len, (*self.reserved, *self.unseen)))
        return max(0, self.num_expected - num_held)
