"""The time of a forward pass on this machine, by its number of rows, measured once at start-up.

Promises: the passes that are timed are those of the real networks, run as in a step. The first pass of
each row count is not timed, since it may compile kernels. No pass starts after `MAX_SECONDS` of timed
passes or `MAX_FIRST_SECONDS` of first ones; row counts that were not reached are extrapolated (with one
measured count, its time is used for all).
Does not know: how many tokens a draft yields (`eyas.draft.shape_policy`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048)
MAX_SECONDS = 2.0
MAX_FIRST_SECONDS = 20.0
REPEATS = 3
"""Timed runs of each row count."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds by number of rows, both ascending. Between two counts the time is interpolated linearly,
    beyond the last one it is extrapolated from the last two."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, num_rows: float) -> float:
        """Return the seconds of a pass over `num_rows` rows."""
        rows, seconds = self.rows, self.seconds
        if len(rows) == 1 or num_rows <= rows[0]:
            return seconds[0]
        i = next((i for i in range(1, len(rows)) if rows[i] >= num_rows), len(rows) - 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return max(seconds[0], seconds[i] + slope * (num_rows - rows[i]))


NOTHING = Costs((1,), (0.0,))
"""The cost of a drafter that runs no network."""


def measure_costs(run: Callable[[int], None], max_rows: int) -> Costs:
    """Time `run(num_rows)`, which must wait for the device, and keep the fastest run of each count."""
    rows: list[int] = []
    seconds: list[float] = []
    left, left_first = MAX_SECONDS, MAX_FIRST_SECONDS
    for num_rows in (count for count in ROWS if count <= max(1, max_rows)):
        left_first -= _timed(run, num_rows)
        best = float("inf")
        for _ in range(REPEATS):
            taken = _timed(run, num_rows)
            best, left = min(best, taken), left - taken
            if left < 0:
                break
        rows.append(num_rows)
        seconds.append(best)
        if left < 0 or left_first < 0:
            break
    return Costs(tuple(rows), _ascending(seconds))


def _timed(run: Callable[[int], None], num_rows: int) -> float:
    started = time.perf_counter()
    run(num_rows)
    return time.perf_counter() - started


def _ascending(seconds: Sequence[float]) -> tuple[float, ...]:
    """Raise each value to the largest one before it: more rows do not take less time but for noise."""
    return tuple(accumulate(seconds, max))
