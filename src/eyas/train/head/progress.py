"""What a run reports: lines of text, and its progress.

Promises: the callback of progress is called between units of work. An exception that it raises stops
the run with the state saved, as `stop_after` does, so that the same command continues.
Does not know: terminals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["answers", "features", "training", "export", "evaluation"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a phase.

    done, total: numbers of prompts, tokens, files or answers; in the training phase `done` is a
    fraction and `total` is 1. note: more numbers as text.
    """

    phase: Phase
    done: float
    total: float
    note: str = ""


Log = Callable[[str], None]
OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Do nothing: the default callback."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """log: called with each line of text. progress: called between units of work."""

    log: Log
    progress: OnProgress = ignore_progress
