"""The time that stages of steps take, for measurements.

Does not know: what the stages do.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class StageTimer:
    """Adds up the seconds of stages. wait: returns when the device has done its work. stages: the names
    of those to measure, for each whether to wait before it too; others are only run."""

    wait: Callable[[], None]
    stages: dict[str, bool]
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def run(self, name: str, stage: Callable[[], T]) -> T:
        """Return what a stage returns."""
        if name not in self.stages:
            return stage()
        if self.stages[name]:
            self.wait()
        before = time.perf_counter()
        result = stage()
        self.wait()
        self.seconds[name] += time.perf_counter() - before
        return result
