"""How many rows a step may have so that it does not take too long.

Promises: the limit follows the times of the last steps with prompt chunks.
Does not know: what the rows are for.
"""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST = 256
"""Rows that a step may have for prompts, however long it takes."""
RECENT = 9
"""Steps that count."""
MOSTLY_PROMPT = 128
"""Prompt rows of a step that counts, at least: in smaller ones a row takes longer."""


class StepTime:
    """seconds: how long a step may take; None is any time."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._per_row: deque[float] = deque(maxlen=RECENT)

    def learn(self, num_prompt_rows: int, num_node_rows: int, seconds: float) -> None:
        """A step of so many rows has taken so long."""
        if num_prompt_rows >= MOSTLY_PROMPT:
            self._per_row.append(seconds / (num_prompt_rows + num_node_rows))

    def most_rows(self, limit: int) -> int:
        """Return the most rows of the next step, at most `limit`."""
        if self._seconds is None or not self._per_row:
            return limit
        return min(limit, max(LEAST, int(self._seconds / median(self._per_row))))
