"""`eyas bench`: measurements, each with the command that repeats it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import MODEL, engine_config
from eyas.cli.results import Output, run_facts, tell

if TYPE_CHECKING:
    from eyas.bench.builtin import BuiltinReport

SOAK_SLOTS = 16384
"""Few enough that the prefix cache is full long before memory is compared."""

app = typer.Typer(help="Measure: decoding speed, the built-in model's answers, a long serve.")


@app.command("builtin")
def builtin(
    num_per_family: Annotated[
        int, typer.Option("--num-per-family", min=1, help="Held-out conversations of each family.")
    ] = 50,
    seed: Annotated[str, typer.Option("--seed", help="Which held-out conversations.")] = "0",
    drafter: options.Drafter = "root",
    model: options.Model = MODEL.path,
    show_misses: Annotated[int, typer.Option("--show-misses", help="Wrong answers to print.")] = 0,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """How often the built-in model's greedy answers to held-out conversations are right."""
    from dataclasses import asdict

    from eyas.bench.answers import engine_answers
    from eyas.bench.builtin import evaluate
    from eyas.cli.loading import open_model

    with open_model(engine_config(model=model, drafter=drafter), quiet=as_json) as llm:
        report = evaluate(engine_answers(llm), num_per_family, seed)
    measured = {**asdict(report), "misses": [asdict(miss) for miss in report.misses[:20]]}
    result = {**run_facts(), **measured}
    tell(result, output, as_json, lambda _: _show(report, show_misses))


def _show(report: BuiltinReport, num_misses: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "exact answers", title=f"{report.num_examples} held-out conversations")
    for family, rate in report.families.items():
        table.add_row(family, f"{100 * rate:.1f} %")
    table.add_row("[bold]overall[/bold]", f"[bold]{100 * report.overall:.1f} %[/bold]")
    Console().print(table)
    for miss in report.misses[:num_misses]:
        print(f"\n{miss.family}: {miss.asked}\n  right: {miss.expected}\n  given: {miss.answered}")


@app.command("serve-soak")
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

    from eyas.bench import serve_soak as bench

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
    tell(result, output, False, lambda _: print(printed_again))
    if status:
        raise CheckFailed("the soak did not hold; its report says where")
