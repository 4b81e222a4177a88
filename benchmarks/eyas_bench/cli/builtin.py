"""`eyas bench builtin`: measure the accuracy of the built-in model.

Does not know: what the correct answers are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from eyas.cli import options
from eyas.cli.options import engine_config
from eyas.cli.results import Output, report_result, run_facts
from eyas.config import DEFAULTS

if TYPE_CHECKING:
    from eyas_bench.builtin import BuiltinReport


def builtin(
    num_per_family: Annotated[
        int,
        typer.Option(min=1, help="Number of held-out conversations of each family."),
    ] = 50,
    seed: Annotated[str, typer.Option(help="Random seed of the held-out conversations.")] = "0",
    drafter: options.Drafter = "root",
    model: options.Model = DEFAULTS.model.path,
    show_misses: Annotated[int, typer.Option(help="Maximum number of wrong answers to print.")] = 0,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Measure how many greedy answers to held-out conversations are correct."""
    from dataclasses import asdict

    from eyas.cli.loading import open_model
    from eyas_bench.answers import engine_answers
    from eyas_bench.builtin import evaluate

    with open_model(engine_config(model=model, drafter=drafter), quiet=as_json) as llm:
        report = evaluate(engine_answers(llm), num_per_family, seed)
    measured = {**asdict(report), "misses": [asdict(miss) for miss in report.misses[:20]]}
    result = {**run_facts(), **measured}
    report_result(result, output, as_json, lambda _: _show(report, show_misses))


def _show(report: BuiltinReport, num_misses: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "exact answers", title=f"{report.num_examples} held-out conversations")
    for family, rate in report.families.items():
        table.add_row(family, f"{100 * rate:.1f} %")
    table.add_row("[bold]overall[/bold]", f"[bold]{100 * report.overall:.1f} %[/bold]")
    Console().print(table)
    for miss in report.misses[:num_misses]:
        print(
            f"\n{miss.family}: {miss.asked}\n  expected: {miss.expected}\n  answer: {miss.answered}"
        )
