"""How long steps of different shapes take, relative to each other, on a machine whose speed changes.

Promises: shapes are compared by steps that ran one after the other. Where one shape follows another,
the times before and after the change make a pair; what a shape takes relative to a step without a draft
is the median of its last pairs. So no shape looks good because it was timed in a faster minute, and one
change of speed at the wrong moment does not count. How slow the machine is now is what the shape that
runs says of it.
Does not know: tokens, which shape is chosen.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from eyas.draft.base import TreeShape

PLAIN = TreeShape(0, 1, 1)
"""No draft."""
RECENT = 8
"""Steps of a shape that say how slow the machine is now."""
PAIRED = 4
"""First steps of a shape after a change that are compared with the last ones before it."""
NUM_PAIRS = 5
"""Pairs of a shape that count."""


class Timing:
    """The steps of one batch size. A ratio is measured over predicted seconds of a step."""

    def __init__(self) -> None:
        self._seen: set[TreeShape] = set()
        self._pairs: dict[TreeShape, deque[float]] = {}
        self._running: TreeShape | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._num = 0
        self._before: tuple[TreeShape, float] | None = None

    def add(self, shape: TreeShape, ratio: float) -> None:
        """Add a step. The first one of a shape does not count: it prepares what later ones use."""
        if shape not in self._seen:
            self._seen.add(shape)
            return
        if shape != self._running:
            if self._running is not None:
                if self._num < PAIRED:
                    self._pair()
                self._before = (self._running, median(self._recent))
            self._running, self._num = shape, 0
            self._recent.clear()
        self._recent.append(ratio)
        self._num += 1
        if self._num == PAIRED:
            self._pair()

    def relative(self, shape: TreeShape) -> float | None:
        """Return the ratio of a shape over that of a step without a draft; None if it is not known."""
        if shape == PLAIN:
            return 1.0
        pairs = self._pairs.get(shape)
        return median(pairs) if pairs else None

    @property
    def known(self) -> dict[TreeShape, float]:
        """What is known of shapes that draft."""
        return {shape: median(pairs) for shape, pairs in self._pairs.items()}

    @property
    def slowness(self) -> float | None:
        """The ratio that a step without a draft would have now; None before any step."""
        if self._running is None:
            return None
        if self._num < PAIRED and self._before is not None:
            shape, ratio = self._before
        else:
            shape, ratio = self._running, median(self._recent)
        return ratio / (self.relative(shape) or 1.0)

    def _pair(self) -> None:
        """Compare the shape that runs with the one before it; the one that is known less learns."""
        if self._before is None or self._running is None:
            return
        shape, ratio = self._running, median(self._recent)
        reference, reference_ratio = self._before
        if self._confidence(shape) > self._confidence(reference):
            shape, ratio, reference, reference_ratio = reference, reference_ratio, shape, ratio
        sample = ratio / reference_ratio * (self.relative(reference) or 1.0)
        self._pairs.setdefault(shape, deque(maxlen=NUM_PAIRS)).append(sample)

    def _confidence(self, shape: TreeShape) -> int:
        return NUM_PAIRS + 1 if shape == PLAIN else len(self._pairs.get(shape, ()))
