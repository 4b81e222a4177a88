"""How many tokens the cache holds: the slots that fit in memory, and those of layers with a window.

Promises: one sequence of the returned length always fits, whatever else is running; the slots of layers
with a window suffice for every sequence that may run and for two steps in flight.
Does not know: what slots hold.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT_SHARE = 8
"""With a prefix cache, layers with a window have at least one slot for so many of the others: for
prefixes that a later request may continue."""


@dataclass(frozen=True, slots=True)
class SlotBytes:
    """What one token takes.

    full: bytes in the layers that keep all tokens, and in the layers of drafts. windowed: bytes in the
    layers with a window. window: the widest window; 0 if there is none.
    """

    full: int
    windowed: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of the cache.

    most_useful: slots beyond which more serve nothing. num_sequences: that run at once. rows: of a
    step. shares_prefixes: whether prefixes are kept for later requests.
    """

    most_useful: int
    num_sequences: int
    rows: int
    shares_prefixes: bool


SEATS = (512, 384, 256, 192, 128, 96, 64)
"""Numbers of sequences to choose among."""
SEATS_SHARE = 8
"""What seats take beside the tokens of their sequences is at most one such part of the memory."""


def choose_num_seats(budget: int, per_seat: int) -> int:
    """Return how many sequences may run at once on a device.

    budget: bytes that are free. per_seat: bytes that a sequence takes however many tokens it has.
    """
    return next((n for n in SEATS if n * per_seat * SEATS_SHARE <= budget), SEATS[-1])


MAP_BYTES = 8
"""Bytes of the place of a token in layers with a window."""


def num_window_slots(num_slots: int, size: SlotBytes, demand: Demand) -> int:
    """Return how many slots layers with a window have, if the others have `num_slots`."""
    if not size.window:
        return num_slots
    seen = demand.num_sequences * (size.window - 1) + 2 * demand.rows
    kept = num_slots // KEPT_SHARE if demand.shares_prefixes else 0
    return min(num_slots, max(seen, kept))


def cache_bytes(num_slots: int, size: SlotBytes, demand: Demand) -> int:
    """Return the bytes of a cache of so many slots."""
    own = num_window_slots(num_slots, size, demand)
    mapped = MAP_BYTES * num_slots if own < num_slots else 0
    return num_slots * size.full + own * size.windowed + mapped


def most_slots(budget: int, size: SlotBytes, demand: Demand) -> int:
    """Return the largest number of slots whose cache takes at most `budget` bytes."""
    low, high = 0, demand.most_useful
    while low < high:
        middle = (low + high + 1) // 2
        if cache_bytes(middle, size, demand) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
