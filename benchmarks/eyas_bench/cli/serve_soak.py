"""`eyas bench serve-soak`: many streaming clients against a live server, for long.

Promises: status 1 where anything was lost or doubled, or memory grew. Does not know: how that is found.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.results import Output, report_result, run_facts

SOAK_SLOTS = 16384
"""Few enough that the prefix cache is full long before memory is compared."""


def serve_soak(
    clients: Annotated[int, typer.Option("--clients", min=1, help="Streams at once.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", help="How long they go on.")] = 120.0,
    vanish: Annotated[
        float, typer.Option("--vanish", min=0, max=1, help="Share of streams left half way.")
    ] = 0.2,
    max_growth: Annotated[
        float, typer.Option("--max-growth", help="Growth of memory that is still flat.")
    ] = 0.05,
    seed: Annotated[int, typer.Option("--seed", help="Which requests are drawn.")] = 0,
    drafter: options.Drafter = "root",
    output: Output = None,
) -> None:
    """Many streaming clients against a live server: nothing lost or doubled, memory flat."""
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
    del result["machine"]["threads"]  # those of this process, not the server's
    printed_again = json.dumps(result, indent=1, ensure_ascii=False)
    report_result(result, output, False, lambda _: print(printed_again))
    if status:
        raise CheckFailed("the soak did not hold; its report says where")
