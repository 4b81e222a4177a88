"""Plot a run: divergence of the first level, and simulated acceptance length.

Promises: a PNG file in the directory of the log; without matplotlib, only a log line that says how
to install it. Does not know: training.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.train.head.loop import LOG_FILE
from eyas.train.head.progress import Log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = Mapping[str, Any]
PLOT_FILE = "training.png"
MAX_MARKERS = 40
"""Curves of at most this many points have a marker at each point."""


def plot_run(directory: Path, log: Log) -> Path | None:
    """Plot the log of a run. Return the picture's path; None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        log(
            "plot: matplotlib is not installed (pip install 'eyas[train]'); the log has the numbers"
        )
        return None
    record = json.loads((directory / LOG_FILE).read_text())
    figure = draw(record["curve"], record["evaluations"])
    figure.savefig(directory / PLOT_FILE, dpi=120)
    return directory / PLOT_FILE


def draw(curve: Sequence[Point], evaluations: Sequence[Point]) -> Figure:
    """Return a figure with the curves of the training and of held-out texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, length = figure.subplots(1, 2)
    for points, label in ((curve, "training"), (evaluations, "held out")):
        if not points:
            continue
        steps = [point["step"] for point in points]
        # A curve of a single point is visible only as a marker.
        style = {
            "label": label,
            "marker": "o" if len(points) <= MAX_MARKERS else "",
            "markersize": 4,
        }
        loss.plot(steps, [point["divergence"][0] for point in points], **style)
        length.plot(steps, [point["acceptance_length"] for point in points], **style)
    loss.set(xlabel="step", ylabel="divergence from the target, first level", yscale="log")
    length.set(xlabel="step", ylabel="simulated acceptance length")
    for axes in (loss, length):
        axes.legend()
        axes.grid(alpha=0.3)
    return figure
