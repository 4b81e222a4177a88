"""What the measurements of a named shape have in common: how a result is told.

Does not know: what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eyas.cli.options import DraftOptions
from eyas.cli.results import run_facts
from eyas_bench.cli.measuring import place, round_name
from eyas_bench.cli.shape_options import Protocol

if TYPE_CHECKING:
    from eyas.engine.engine import Engine


def turns(say: Callable[[str], None], what: str) -> Callable[[int], None]:
    """Says which round of something it is."""
    return lambda turn: say(f"{what}: {round_name(turn)}")


def result_of(
    engine: Engine,
    shape: str,
    drafting: DraftOptions,
    protocol: Protocol,
    settings: dict[str, Any],
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """What is told of a measurement; results may grow."""
    from eyas_bench.shape import about

    return {
        **run_facts(),
        "model": about(engine, shape),
        "settings": {
            **settings,
            **{k: v for k, v in asdict(protocol).items() if k != "batches"},
            "prefix_cache": False,
            "drafting": None if drafting.drafter == "root" else vars(drafting),
        },
        "results": results,
    }


def finish(engine: Engine, say: Callable[[str], None]) -> None:
    """Nothing more is measured."""
    engine.check()
    engine.shutdown()
    say("")


def title_of(result: dict[str, Any]) -> str:
    """What was run, and where."""
    model, settings = result["model"], result["settings"]
    title = f"{model['name']}, dummy weights, {model['dtype']} on {place(result)}"
    return title if settings["acceptance"] == "real" else f"{title}, {settings['acceptance']}"
