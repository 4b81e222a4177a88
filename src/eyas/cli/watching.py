"""Show a long run on the terminal, as log lines and a progress bar, and stop it on a signal.

Promises: without a terminal only lines are printed. The first interrupt (Ctrl-C or SIGTERM) stops the
run after the current step, with its state saved; the second one stops it immediately.
Does not know: what the run does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eyas.signals import first_signal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from eyas.train.head.progress import Progress

STATUS_OF_SIGNAL = 128
"""The exit status of a process that a signal ended is this plus the signal's number."""


class Stopped(Exception):
    """A signal stopped the run. status: the exit status for it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("stopped")
        self.status = STATUS_OF_SIGNAL + signal_number


class RunDisplay:
    """The lines and the progress bar of a run. signal_number: of the signal that came; 0 is none."""

    def __init__(self, console: Console, bars: Bars) -> None:
        self._console = console
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self.signal_number = 0

    def note_signal(self, number: int) -> None:
        """Stop the run after the current step."""
        self.signal_number = number
        # not print(), which may be what the signal interrupted
        os.write(2, b"\nstopping after this step; interrupt again to stop immediately\n")

    def print_line(self, line: str) -> None:
        """Print a line above the progress bar."""
        if self._console.is_terminal:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def show_progress(self, progress: Progress) -> None:
        """Show the progress of a phase. Stopped: a signal has come."""
        if self.signal_number:
            raise Stopped(self.signal_number)
        if not self._console.is_terminal:
            return
        if progress.phase not in self._tasks:
            for task in self._tasks.values():
                self._bars.update(task, visible=False)
            self._tasks[progress.phase] = self._bars.add_task(progress.phase, note="")
        self._bars.update(
            self._tasks[progress.phase],
            completed=progress.done,
            total=progress.total,
            note=progress.note,
        )


@contextmanager
def run_display() -> Iterator[RunDisplay]:
    """Yield the display of a run, and handle signals until the block ends."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console()
    columns = (
        *(TextColumn("{task.description:<10}"), BarColumn(), TaskProgressColumn()),
        *(TimeRemainingColumn(), TextColumn("{task.fields[note]}")),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        display = RunDisplay(console, bars)
        with first_signal((signal.SIGINT, signal.SIGTERM), display.note_signal):
            yield display
