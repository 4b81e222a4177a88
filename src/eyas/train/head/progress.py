"""How far a run is, for whoever watches it.

Promises: the watcher is called between two pieces of work, never within one. What it raises ends the
run there, and what is done by then is kept as after `stop_after`, so that the same command goes on.
Does not know: terminals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["answers", "features", "training", "export", "evaluation"]


@dataclass(frozen=True, slots=True)
class Progress:
    """done, total: prompts, tokens, files or answers; of the training, its share of 1. note: further
    numbers in words."""

    phase: Phase
    done: float
    total: float
    note: str = ""


Watch = Callable[[Progress], None]


def unwatched(progress: Progress) -> None:
    """The watcher of a run that nobody watches."""
