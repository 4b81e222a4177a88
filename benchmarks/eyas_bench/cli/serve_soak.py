"""`eyas bench serve-soak`: run many streaming clients against a server for a long time.

Promises: exit status 1 where a part of an answer was lost or repeated, or memory grew.
Does not know: how that is detected.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.results import Output, report_result, run_facts

SOAK_SLOTS = 16384
"""A small cache, so that the prefix cache is full long before memory is compared."""


def serve_soak(
    clients: Annotated[
        int, typer.Option(min=1, help="Number of concurrent streaming clients.")
    ] = 64,
    seconds: Annotated[float, typer.Option(help="Duration in seconds.")] = 120.0,
    vanish: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Fraction of streams that the client closes before the end.",
        ),
    ] = 0.2,
    max_growth: Annotated[
        float,
        typer.Option(help="Maximum growth of memory, as a fraction, that passes."),
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Random seed of the requests.")] = 0,
    drafter: options.Drafter = "root",
    output: Output = None,
) -> None:
    """Check a server under many streaming clients: complete answers, and constant memory."""
    import contextlib
    import io

    from eyas_bench import serve_soak as bench

    printed = io.StringIO()
    arguments = [
        *("--clients", str(clients), "--seconds", str(seconds), "--vanish", str(vanish)),
        *("--max-growth", str(max_growth), "--seed", str(seed)),
        *("--", "--drafter", drafter, "--num-slots", str(SOAK_SLOTS), "--log-level", "warning"),
    ]
    with contextlib.redirect_stdout(printed):
        status = bench.main(arguments)
    result = {**run_facts(), **json.loads(printed.getvalue())}
    del result["machine"]["threads"]  # of this process, not of the server
    printed_again = json.dumps(result, indent=1, ensure_ascii=False)
    report_result(result, output, False, lambda _: print(printed_again))
    if status:
        raise CheckFailed("the soak test failed; the report says where")
