"""The curve of a run as a picture: divergence of the first level, and simulated acceptance length.

Promises: a PNG beside the log; without matplotlib only a sentence that says how to get it.
Does not know: training.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.train.head.answers import Say
from eyas.train.head.loop import LOG_FILE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = Mapping[str, Any]
PLOT_FILE = "training.png"
MOST_MARKED = 40
"""Points of a curve, up to which each is marked."""


def plot_run(directory: Path, say: Say) -> Path | None:
    """Draw the log of a run."""
    if importlib.util.find_spec("matplotlib") is None:
        say(
            "plot: matplotlib is not installed (pip install 'eyas[train]'); the log has the numbers"
        )
        return None
    record = json.loads((directory / LOG_FILE).read_text())
    figure = draw(record["curve"], record["evaluations"])
    figure.savefig(directory / PLOT_FILE, dpi=120)
    return directory / PLOT_FILE


def draw(curve: Sequence[Point], evaluations: Sequence[Point]) -> Figure:
    """The curves of training and of held-out texts; those of few points with a mark at each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, length = figure.subplots(1, 2)
    for points, label in ((curve, "training"), (evaluations, "held out")):
        if not points:
            continue
        steps = [point["step"] for point in points]
        # a line through a single point shows nothing
        style = {
            "label": label,
            "marker": "o" if len(points) <= MOST_MARKED else "",
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
