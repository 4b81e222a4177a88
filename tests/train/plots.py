"""Pictures of trainings: the first one of a session is drawn, later ones are copies of it.

Drawing costs as much as the small trainings of tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eyas.train.head import run
from eyas.train.head.plot import PLOT_FILE, plot_run

_drawn: list[bytes] = []


@pytest.fixture(autouse=True, scope="module")
def one_picture() -> Iterator[None]:
    def plot_once(directory: Path, log: Callable[[str], None]) -> Path | None:
        if _drawn:
            (directory / PLOT_FILE).write_bytes(_drawn[0])
            return directory / PLOT_FILE
        file = plot_run(directory, log)
        if file is not None:
            _drawn.append(file.read_bytes())
        return file

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "plot_run", plot_once)
        yield
