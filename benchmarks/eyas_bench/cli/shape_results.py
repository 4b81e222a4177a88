"""What the measurements of a shape share: the form of the result.

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


def show_rounds(show_status: Callable[[str], None], name: str) -> Callable[[int], None]:
    """Return a function that shows the name of a round as the status."""
    return lambda turn: show_status(f"{name}: {round_name(turn)}")


def result_of(
    engine: Engine,
    shape: str,
    drafting: DraftOptions,
    protocol: Protocol,
    settings: dict[str, Any],
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the result of a measurement. results: may be extended later."""
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


def finish(engine: Engine, show_status: Callable[[str], None]) -> None:
    """Check and close the engine, and clear the status line."""
    engine.check()
    engine.shutdown()
    show_status("")


def title_of(result: dict[str, Any]) -> str:
    """Return the title of a table: the model, the device and the kind of acceptance."""
    model, settings = result["model"], result["settings"]
    packed = settings.get("quantization")
    weights = "dummy weights" if packed is None else f"dummy weights ({packed})"
    title = f"{model['name']}, {weights}, {model['dtype']} on {place(result)}"
    return title if settings["acceptance"] == "real" else f"{title}, {settings['acceptance']}"
