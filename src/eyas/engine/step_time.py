"""How many rows a step may have so that it does not take too long.

Promises: the limit follows the times of the last steps with prompt chunks.
Does not know: what the rows are for.
"""

from __future__ import annotations

from collections import deque
from statistics import median

MIN_PROMPT_ROWS = 256
"""Prompt rows that a step may have, however long it takes."""
NUM_RECENT_STEPS = 9
"""Number of steps that the limit follows."""
MIN_TIMED_ROWS = 128
"""Least prompt rows of a step whose time counts: with fewer rows, each takes longer."""


class StepTime:
    """seconds: how long a step may take; None is any time."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._per_row: deque[float] = deque(maxlen=NUM_RECENT_STEPS)

    def learn(self, num_prompt_rows: int, num_node_rows: int, seconds: float) -> None:
        """Add the time of a landed step."""
        if num_prompt_rows >= MIN_TIMED_ROWS:
            self._per_row.append(seconds / (num_prompt_rows + num_node_rows))

    def most_rows(self, limit: int) -> int:
        """Return the most rows of the next step, at most `limit`."""
        if self._seconds is None or not self._per_row:
            return limit
        return min(limit, max(MIN_PROMPT_ROWS, int(self._seconds / median(self._per_row))))
