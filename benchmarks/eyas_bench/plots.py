"""Draw heat maps of a sweep: speed and accepted tokens, with a row for each batch size.

Promises: no window is opened and no global state of matplotlib is changed; the best shape has a
frame. Does not know: how the numbers were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eyas.verify.lineup import AUTO, PLAIN

Cell = tuple[float, str]
"""The value that a cell's colour shows, and the text in the cell."""


def require_matplotlib() -> None:
    """Raise ValueError with the installation command if matplotlib is missing."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "--plot: matplotlib is not installed; it comes with the extra eyas-bench[plots] "
            "(pip install './benchmarks[plots]')"
        ) from error


def draw_sweep(result: dict[str, Any], file: Path) -> None:
    """Write the heat maps of a result of `eyas bench tune` to a PNG file."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    entries = result["results"]
    fixed = [_fixed(entry) for entry in entries]
    columns = sorted({nodes for one in fixed for _, _, nodes in one})
    rows = sorted({(topk, steps) for one in fixed for steps, topk, _ in one})
    wide, high = 2.5 + 0.8 * len(columns), 1.2 + 0.45 * len(rows)
    figure = Figure(figsize=(2 * wide, high * len(entries) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(entries), 2, squeeze=False)
    for (left, right), entry, cells in zip(grid, entries, fixed, strict=True):
        all_of = entry["contestants"]
        plain, auto = (all_of[name]["tokens_per_second"] for name in (PLAIN, AUTO))
        left.set_title(
            f"batch {entry['batch']}: tokens/s (plain {plain:.0f}, auto {auto:.0f})", fontsize=9
        )
        right.set_title(f"batch {entry['batch']}: accepted tokens a step", fontsize=9)
        best = all_of[entry["best_shape"]]["shape"]
        _draw(left, cells, rows, columns, best, _speed)
        _draw(right, cells, rows, columns, best, _accepted)
    model, machine = result["model"], result["machine"]
    where = machine["gpu"] if model["device"].startswith("cuda") else machine["cpu"]
    figure.suptitle(f"{model['name']}, {model['dtype']}, on {where}", fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def _fixed(entry: dict[str, Any]) -> dict[tuple[int, int, int], dict[str, Any]]:
    """Return the contestants with a fixed shape, by (steps, topk, nodes)."""
    return {
        tuple(one["shape"]): one
        for name, one in entry["contestants"].items()
        if name not in (PLAIN, AUTO)
    }


def _speed(one: dict[str, Any]) -> Cell:
    speed = one["tokens_per_second"]
    return speed, f"{speed:.0f}\n{one['speed_ratio']:.2f}x"


def _accepted(one: dict[str, Any]) -> Cell:
    return one["accepted_per_step"], f"{one['accepted_per_step']:.2f}"


def _draw(
    axes: Any,
    cells: dict[tuple[int, int, int], dict[str, Any]],
    rows: Sequence[tuple[int, int]],
    columns: Sequence[int],
    best: Sequence[int],
    cell_of: Callable[[dict[str, Any]], Cell],
) -> None:
    """Draw a map: rows are numbers of children and levels, columns are numbers of nodes."""
    table = [[float("nan")] * len(columns) for _ in rows]
    texts: list[tuple[int, int, str]] = []
    for (steps, topk, nodes), one in cells.items():
        y, x = rows.index((topk, steps)), columns.index(nodes)
        table[y][x], text = cell_of(one)
        texts.append((x, y, text))
    axes.imshow(table, aspect="auto", cmap="viridis")
    middle = _middle([value for line in table for value in line if value == value])
    for x, y, text in texts:
        colour = "black" if table[y][x] > middle else "white"
        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=colour)
    y, x = rows.index((best[1], best[0])), columns.index(best[2])
    frame = [(x - 0.5, y - 0.5), (x + 0.5, y - 0.5), (x + 0.5, y + 0.5), (x - 0.5, y + 0.5)]
    axes.plot(*zip(*frame, frame[0], strict=True), color="red", linewidth=1.5)
    axes.set_xticks(range(len(columns)), [str(count) for count in columns], fontsize=8)
    names = [f"topk {topk}, steps {steps}" for topk, steps in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_xlabel("nodes", fontsize=8)


def _middle(values: Sequence[float]) -> float:
    """Return the value above which a cell's colour is bright."""
    return min(values) + 0.6 * (max(values) - min(values))
