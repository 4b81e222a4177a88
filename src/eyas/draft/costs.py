"""What a step costs on this machine, by its number of rows: measured once, at start-up.

Promises: the real model and the real drafting network are run, as they will be run; no pass begins
after the time allowed, and what was not reached is extrapolated (from a single count: the same).
Does not know: what a draft is worth (`pace` does).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
MAX_SECONDS = 2.0
REPEATS = 4
"""The first of them warms up."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds by number of rows, ascending; in between linear, beyond the last like the last piece."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, num_rows: float) -> float:
        """Seconds of a pass over so many rows."""
        rows, seconds = self.rows, self.seconds
        if len(rows) == 1 or num_rows <= rows[0]:
            return seconds[0]
        i = next((i for i in range(1, len(rows)) if rows[i] >= num_rows), len(rows) - 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return max(seconds[0], seconds[i] + slope * (num_rows - rows[i]))


NOTHING = Costs((1,), (0.0,))
"""The cost of a drafter that runs no network."""


def measure_costs(run: Callable[[int], None], max_rows: int) -> Costs:
    """Time `run(num_rows)`, which waits for the device; the fastest of a few counts."""
    rows: list[int] = []
    seconds: list[float] = []
    deadline = time.perf_counter() + MAX_SECONDS
    for num_rows in (count for count in ROWS if count <= max(1, max_rows)):
        best = float("inf")
        for _ in range(REPEATS):
            started = time.perf_counter()
            run(num_rows)
            best = min(best, time.perf_counter() - started)
            if time.perf_counter() > deadline:
                break
        rows.append(num_rows)
        seconds.append(best)
        if time.perf_counter() > deadline:
            break
    return Costs(tuple(rows), _ascending(seconds))


def _ascending(seconds: Sequence[float]) -> tuple[float, ...]:
    """More rows never cost less: what says otherwise is noise."""
    highest, cleaned = 0.0, []
    for value in seconds:
        highest = max(highest, value)
        cleaned.append(highest)
    return tuple(cleaned)
