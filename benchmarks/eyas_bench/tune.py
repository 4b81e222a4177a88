"""Find the fastest tree: all shapes of a grid, plain decoding and `auto`, in turn on one engine.

Promises: a tree that several combinations of the grid describe is measured once; contestants take
turns within a batch size, and a ratio is taken within a round, so that noise of the machine affects
all of them; the tokens of every contestant are compared with plain decoding.
Does not know: how results are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from eyas.config import AUTO_NODES
from eyas.draft import TreeShape
from eyas.verify.contestants import EngineContestant, Job, take_turns
from eyas.verify.lineup import AUTO, PLAIN, LineupContestant, Stage, compare
from eyas.verify.prompts import cycle_to
from eyas.verify.shapes import normal

LIMITS = {"--steps": (1, 32), "--topk": (1, 32), "--nodes": (2, 128), "--batch": (1, 1024)}
"""The minimum and maximum of each option, as in `eyas.config`."""
AUTO_WITHIN = 1.03
"""`auto` is recommended unless another contestant is faster by this factor, since it adapts to
other loads."""

OnRun = Callable[[int, str, int], None]
"""Called before a run with the batch size, the contestant and the round (0 is the warm-up)."""


def numbers(text: str, option: str) -> list[int]:
    """Parse an option such as 1,3,5 into ascending numbers. ValueError: names the option."""
    low, high = LIMITS[option]
    parts = [part.strip() for part in text.split(",")]
    values = {int(part) for part in parts if part.isdecimal()}
    if not all(part.isdecimal() for part in parts) or not all(low <= v <= high for v in values):
        raise ValueError(
            f"{option}: whole numbers from {low} to {high} with commas between them, not {text!r}"
        )
    return sorted(values)


def distinct_shapes(
    steps: Sequence[int], topk: Sequence[int], nodes: Sequence[int], *, only_chains: bool = False
) -> list[TreeShape]:
    """Return the distinct trees of a grid, small ones first.

    only_chains: the drafter has no trees.
    """
    if only_chains:
        topk = [1]
    shapes = {normal(TreeShape(*sizes)) for sizes in product(steps, topk, nodes)}
    return sorted(shapes, key=lambda shape: (shape.topk, shape.steps, shape.nodes))


def largest(shapes: Sequence[TreeShape]) -> TreeShape:
    """Return the smallest shape that contains all of them, with which an engine can run each."""
    return TreeShape(
        max(shape.steps for shape in shapes),
        max(shape.topk for shape in shapes),
        max(AUTO_NODES, *(shape.nodes for shape in shapes)),
    )


def shape_name(shape: TreeShape) -> str:
    """Return the name of a shape: steps, children per node and nodes."""
    return f"{shape.steps}x{shape.topk}x{shape.nodes}"


def sweep(
    stage: Stage,
    shapes: Sequence[TreeShape],
    prompts: Sequence[list[int]],
    sizes: Sequence[int],
    *,
    max_tokens: int,
    temperature: float,
    repeats: int,
    stops_at_eos: bool = False,
    on_run: OnRun,
) -> list[dict[str, Any]]:
    """Measure all contestants at each batch size. Return an entry for each: medians and the fastest
    contestant.

    stops_at_eos: answers end at end-of-text tokens, and all prompts are used; else as many as the
    batch has.
    """
    lineups = [stage.plain(), *(stage.fixed(shape_name(s), s) for s in shapes), stage.auto()]
    stopwatch = EngineContestant("stopwatch", stage.llm)
    contestants = [LineupContestant(stage, stopwatch, lineup) for lineup in lineups]
    entries: list[dict[str, Any]] = []
    for size in sizes:
        count = max(size, len(prompts) if stops_at_eos else 1)
        job = Job(cycle_to(prompts, count), size, max_tokens, stops_at_eos, temperature)
        turns = take_turns(contestants, job, repeats, _of_size(on_run, size))
        compared = compare(contestants, turns)
        speeds = {name: one["speed_ratio"] for name, one in compared.items()}
        fixed = {name: ratio for name, ratio in speeds.items() if name not in (PLAIN, AUTO)}
        fastest = max(fixed, key=fixed.__getitem__)
        entries.append(
            {
                "batch": size,
                "best": max(speeds, key=speeds.__getitem__),
                "best_shape": fastest,
                "auto_of_best": round(speeds[AUTO] / max(1.0, speeds[fastest]), 3),
                "changed_tokens": [n for n, one in compared.items() if not one["same_tokens"]],
                "contestants": compared,
            }
        )
    return entries


def advised(entries: Sequence[dict[str, Any]]) -> tuple[str, float]:
    """Return the recommended contestant and its speed relative to plain decoding, the geometric
    mean over batch sizes.
    """
    means = {
        name: math.prod(entry["contestants"][name]["speed_ratio"] for entry in entries)
        ** (1 / len(entries))
        for name in entries[0]["contestants"]
    }
    fastest = max(means, key=means.__getitem__)
    name = fastest if means[fastest] > AUTO_WITHIN * means[AUTO] else AUTO
    return name, round(means[name], 2)


def options_of(name: str, entry: dict[str, Any]) -> list[str]:
    """Return the options of `eyas serve` for drafting as a contestant does."""
    if name == PLAIN:
        return ["--drafter", "root"]
    if name == AUTO:
        return ["--draft-nodes", "auto"]
    steps, topk, nodes = map(str, entry["contestants"][name]["shape"])
    return ["--draft-steps", steps, "--draft-topk", topk, "--draft-nodes", nodes]


def _of_size(on_run: OnRun, size: int) -> Callable[[str, int], None]:
    return lambda name, turn: on_run(size, name, turn)
