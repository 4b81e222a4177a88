"""The result of a command that measures: its header, its file, and how it is printed.

Promises: with --json, standard output holds only the result. Does not know: what is measured.
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
    Path | None,
    typer.Option(
        "--output", "-o", dir_okay=False, help="JSON file to write the result to as well."
    ),
]


@contextmanager
def status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a status text on standard error; it does nothing if quiet."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as shown:
        yield shown.update


def run_facts() -> dict[str, Any]:
    """Return the header of a result: date, command line, commit and machine."""
    from eyas.verify.machine import describe_run

    return describe_run(["eyas", *sys.argv[1:]])


def report_result(
    result: dict[str, Any],
    output: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Print the result, as JSON or with `show`, and write it to `output` if given."""
    from eyas.verify.machine import write_result

    print(json.dumps(result, ensure_ascii=False)) if as_json else show(result)
    if output is not None:
        write_result(result, output)
