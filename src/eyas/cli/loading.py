"""A model on its way into memory, with progress on the terminal.

Promises: nothing is printed when the output is for machines or the terminal is none.
Does not know: what the model is for.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eyas.config import EngineConfig
    from eyas.llm import LLM


def open_model(config: EngineConfig, *, quiet: bool) -> LLM:
    """Load what `config` names; a bar shows the bytes of the weights."""
    from eyas.llm import LLM

    with _bar(f"loading {config.model.path}", quiet) as advance:
        return LLM(config=config, progress=advance)


@contextmanager
def _bar(label: str, quiet: bool) -> Iterator[_Advance]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    is_hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        yield _Advance(progress, label)


class _Advance:
    """Called with (stage, bytes done, bytes in all); stages without bytes leave the bar alone."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if total:
            self._progress.update(self._task, completed=done, total=total)
