"""A long run on the terminal: lines of what was done, a bar of what is being done, a way to stop it.

Promises: without a terminal there are lines alone. The first interrupt (Ctrl-C, or SIGTERM) ends the
run where its state can be kept, the second one at once.
Does not know: what the run does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from eyas.train.head.progress import Progress

STATUS_OF_SIGNAL = 128
"""What a shell adds the signal's number to."""


class Stopped(Exception):
    """The run was asked to stop, and its state is kept. status: of the process."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("stopped")
        self.status = STATUS_OF_SIGNAL + signal_number


class Watching:
    """say: takes a line. watch: takes the progress of a phase, and raises Stopped."""

    def __init__(self, console: Console, bars: Bars) -> None:
        self._console = console
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self.signal_number = 0

    def say(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def watch(self, progress: Progress) -> None:
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
def watching() -> Iterator[Watching]:
    """While the run lasts."""
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
        run = Watching(console, bars)
        with _interrupts(run):
            yield run


@contextmanager
def _interrupts(run: Watching) -> Iterator[None]:
    """The first signal is noted, and the next one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def back() -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)

    def note(number: int, frame: FrameType | None) -> None:
        run.signal_number = number
        back()
        # print() may be what was interrupted
        os.write(2, b"\nstopping after this step; once more to leave at once\n")

    for kind in kinds:
        signal.signal(kind, note)
    try:
        yield
    finally:
        back()
