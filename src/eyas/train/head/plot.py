"""The curve of a run as a picture: divergence of the first level, and simulated acceptance length.

Promises: a PNG beside the log; without matplotlib only a sentence that says how to get it.
Does not know: training.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from eyas.train.head.answers import Say
from eyas.train.head.loop import LOG_FILE

PLOT_FILE = "training.png"


def plot_run(directory: Path, say: Say) -> Path | None:
    """Draw the log of a run."""
    if importlib.util.find_spec("matplotlib") is None:
        say(
            "plot: matplotlib is not installed (pip install 'eyas[train]'); the log has the numbers"
        )
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = json.loads((directory / LOG_FILE).read_text())
    curve, evaluations = record["curve"], record["evaluations"]
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, length = figure.subplots(1, 2)
    loss.plot([p["step"] for p in curve], [p["divergence"][0] for p in curve], label="training")
    steps = [p["step"] for p in evaluations]
    if evaluations:
        loss.plot(steps, [p["divergence"][0] for p in evaluations], label="held out")
        length.plot(steps, [p["acceptance_length"] for p in evaluations], label="held out")
    length.plot(
        [p["step"] for p in curve], [p["acceptance_length"] for p in curve], label="training"
    )
    loss.set(xlabel="step", ylabel="divergence from the target, first level", yscale="log")
    length.set(xlabel="step", ylabel="simulated acceptance length")
    for axes in (loss, length):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(directory / PLOT_FILE, dpi=120)
    return directory / PLOT_FILE
