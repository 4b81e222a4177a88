"""The result of a command that measures: how it begins, where it is kept, how it is told.

Promises: with --json standard output holds the result alone. Does not know: what is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the result to this JSON file.")
]


@contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is being done, on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as shown:
        yield shown.update


def run_facts() -> dict[str, Any]:
    """How a result begins: when, what was typed, which commit, on what."""
    from eyas.verify.machine import describe_run

    return describe_run(["eyas", *sys.argv[1:]])


def tell(
    result: dict[str, Any],
    output: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Keep the result where that was asked for; print it for a program, or for a person."""
    from eyas.verify.machine import write_result

    if output is not None:
        write_result(result, output)
    print(json.dumps(result, ensure_ascii=False)) if as_json else show(result)
