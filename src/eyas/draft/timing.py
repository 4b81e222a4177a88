"""Relative times of steps of different shapes, on a machine whose speed changes.

Promises: shapes are compared by steps that ran one after the other. Where one shape follows another,
the times before and after the change are a pair. A shape's relative time is the median of its last
pairs, over that of a step without a draft. So a shape does not look good because it was timed while the
machine was faster, and one change of speed at the wrong moment does not count. How slow the machine is
now is estimated from the shape that runs.
Does not know: tokens, which shape is chosen.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from eyas.draft.base import TreeShape

PLAIN = TreeShape(0, 1, 1)
"""No draft."""
NUM_RECENT = 8
"""Latest steps of the running shape, from which the machine's slowdown is estimated."""
STEPS_PER_PAIR = 4
"""First steps of a shape after a change that are compared with the last ones before it."""
NUM_PAIRS = 5
"""Pairs of a shape that count."""


class Timing:
    """The times of one batch size. A ratio is a step's measured seconds over its predicted ones."""

    def __init__(self) -> None:
        self._seen: set[TreeShape] = set()
        self._pairs: dict[TreeShape, deque[float]] = {}
        self._running: TreeShape | None = None
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self._num = 0
        self._before: tuple[TreeShape, float] | None = None

    def skip(self, shape: TreeShape) -> None:
        """Note a step that was not timed."""
        self._seen.add(shape)

    def add(self, shape: TreeShape, ratio: float) -> None:
        """Add a step. The first one of a shape does not count: it prepares what later ones use."""
        if shape not in self._seen:
            self._seen.add(shape)
            return
        if shape != self._running:
            if self._running is not None:
                if self._num < STEPS_PER_PAIR:
                    self._pair()
                self._before = (self._running, median(self._recent))
            self._running, self._num = shape, 0
            self._recent.clear()
        self._recent.append(ratio)
        self._num += 1
        if self._num == STEPS_PER_PAIR:
            self._pair()

    def relative(self, shape: TreeShape) -> float | None:
        """Return the ratio of a shape over that of a step without a draft; None if it is not known."""
        if shape == PLAIN:
            return 1.0
        pairs = self._pairs.get(shape)
        return median(pairs) if pairs else None

    @property
    def known(self) -> dict[TreeShape, float]:
        """The ratio of each shape that drafts over that of a step without a draft, where known."""
        return {shape: median(pairs) for shape, pairs in self._pairs.items()}

    @property
    def slowdown(self) -> float | None:
        """The ratio that a step without a draft would have now; None before any step."""
        if self._running is None:
            return None
        if self._num < STEPS_PER_PAIR and self._before is not None:
            shape, ratio = self._before
        else:
            shape, ratio = self._running, median(self._recent)
        return ratio / (self.relative(shape) or 1.0)

    def _pair(self) -> None:
        """Compare the running shape with the one before it. The one with fewer pairs gets this pair."""
        if self._before is None or self._running is None:
            return
        shape, ratio = self._running, median(self._recent)
        reference, reference_ratio = self._before
        if self._num_pairs(shape) > self._num_pairs(reference):
            shape, ratio, reference, reference_ratio = reference, reference_ratio, shape, ratio
        sample = ratio / reference_ratio * (self.relative(reference) or 1.0)
        self._pairs.setdefault(shape, deque(maxlen=NUM_PAIRS)).append(sample)

    def _num_pairs(self, shape: TreeShape) -> int:
        """Return the number of pairs of a shape; more than of any for a step without a draft, which is
        the unit."""
        return NUM_PAIRS + 1 if shape == PLAIN else len(self._pairs.get(shape, ()))
