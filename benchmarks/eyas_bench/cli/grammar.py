"""`eyas bench grammar`: measure the cost of output schemas, and check that they are enforced.

Promises: exit status 1 where an invalid instance was accepted. Does not know: how anything is
measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.results import Output, report_result, run_facts, status
from eyas.config import GrammarBackend
from eyas_bench.cli.measuring import prefixed


def grammar(
    *,
    folder: Annotated[
        Path,
        typer.Argument(
            help='Directory of files {"schema": ..., "tests": [{"valid": true, "data": ...}]}.',
            exists=True,
            file_okay=False,
        ),
    ],
    tokenizer: Annotated[
        Path,
        typer.Option(help="Model directory or tokenizer.json file.", exists=True),
    ],
    backend: Annotated[GrammarBackend, typer.Option(help="Grammar library.")] = "llguidance",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of files to read. Default: all."),
    ] = None,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Measure compilation and masks of schemas, for instances and draft trees, on one core."""
    from eyas.constraint import build_backend
    from eyas_bench.grammar import measure, read_cases, read_vocabulary, summary

    cases = read_cases(folder, limit)
    reader, vocabulary = read_vocabulary(tokenizer)
    built = build_backend(backend, vocabulary, 1)
    with status(as_json) as show_status:
        on_case = prefixed(show_status, "measuring")
        measured = measure(built, reader, vocabulary, cases, on_case)
    result: dict[str, Any] = {
        **run_facts(),
        "backend": backend,
        "folder": folder.name,
        **summary(measured),
    }
    report_result(result, output, as_json, _show)
    if result["invalid_accepted"]:
        names = sorted({entry["file"] for entry in result["accepted"]})
        raise CheckFailed(f"invalid instances were accepted: {', '.join(names[:8])}")


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{result['schemas']} schemas, {result['backend']}, {result['machine']['cpu']}"
    table = Table("milliseconds", "p50", "p95", "p99", "max", title=title)
    names = {
        "prepare": "prepare a schema",
        "compile": "compile, without the first mask",
        "first_mask": "first mask",
        "mask": "mask of a token",
        "tree_walk": f"walk of a {result['tree_nodes']}-node tree",
        "tree_fill": "its masks",
        "tree": "both",
    }
    for key, name in names.items():
        times = result["milliseconds"][key]
        if times is not None:
            table.add_row(name, *(f"{times[p]:.3f}" for p in ("p50", "p95", "p99", "max")))
    console.print(table)
    print(
        f"valid rejected {result['valid_rejected']} of {result['valid']}, invalid accepted "
        f"{result['invalid_accepted']} of {result['invalid']}, legal nodes of the trees "
        f"{result['legal_nodes']:.0%}, limits hit {result['limits_hit']}"
    )
    reasons = ", ".join(f"{name} {count}" for name, count in result["refused_by_keyword"].items())
    print(f"refused {result['refused']} of {result['schemas']}{': ' if reasons else ''}{reasons}")
    for refusal in result["refusals"]:
        print(f"  {refusal['file']}: {refusal['message'].splitlines()[0][:160]}")
