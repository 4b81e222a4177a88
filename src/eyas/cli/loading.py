"""Load a model with a progress bar on the terminal.

Promises: nothing is printed with --json, or where standard error is not a terminal.
Does not know: what the model is used for.
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
    """Load the model and drafter of `config`. quiet: show no progress bar."""
    from eyas.llm import LLM

    with _progress_bar(f"loading {config.model.path}", quiet) as bar:
        return LLM(config=config, progress=bar)


@contextmanager
def _progress_bar(label: str, quiet: bool) -> Iterator[_ProgressBar]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    is_hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        yield _ProgressBar(progress, label)


class _ProgressBar:
    """Called with (stage, bytes done, bytes in all); a stage without bytes does not change the bar."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if total:
            self._progress.update(self._task, completed=done, total=total)
