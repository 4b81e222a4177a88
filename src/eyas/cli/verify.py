"""`eyas verify`: check a model and its draft head on this machine, and measure them.

Promises: exit status 1 where the drafter law or the parity with transformers does not hold.
Does not know: how anything is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import engine_config
from eyas.cli.results import Output, report_result, run_facts, status
from eyas.config import DEFAULTS

_TITLES = {
    "exactness": "exact on this machine",
    "law": "same tokens with drafts",
    "parity": "parity with transformers",
    "acceptance": "accepted tokens",
    "speed": "speed",
}
_STYLES = {"pass": "green", "fail": "bold red", "skipped": "yellow"}


def verify(
    *,
    model: Annotated[
        str, typer.Argument(help="Model: 'builtin', a directory, or a Hugging Face hub name.")
    ] = DEFAULTS.model.path,
    head: Annotated[
        str | None,
        typer.Option(help="EAGLE or MTP head to check: a directory or a hub name."),
    ] = None,
    draft_model: options.DraftModel = None,
    draft_steps: options.DraftSteps = str(DEFAULTS.draft.steps),
    draft_topk: options.DraftTopk = DEFAULTS.draft.topk,
    draft_nodes: Annotated[
        int,
        typer.Option(help="Number of nodes of the largest draft tree, including the root."),
    ] = DEFAULTS.draft.max_nodes,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines file of prompts: {"prompt": text or token ids}, used without a chat '
            'template, or {"messages": [...]}. Default: a few short built-in tasks.',
        ),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, max=64, help="Number of prompts to use.")] = 4,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Maximum length of an answer in tokens.")
    ] = 64,
    parity: Annotated[
        bool,
        typer.Option(
            "--parity/--no-parity",
            help="Compare the logits with transformers, which loads the model again in float32.",
        ),
    ] = True,
    repeats: Annotated[
        int, typer.Option(min=1, help="Number of measured rounds of the speed part.")
    ] = 3,
    revision: options.Revision = DEFAULTS.model.revision,
    dtype: options.Dtype = "auto",
    max_model_len: options.MaxModelLen = None,
    device: options.Device = DEFAULTS.device.device,
    threads: options.Threads = None,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Check a model and its drafters on your prompts, and measure acceptance and speed."""
    from eyas.cli.prompts_file import read_entries
    from eyas.verify.report import VerifyPlan
    from eyas.verify.report import verify as run

    entries = None if prompts_file is None else read_entries(prompts_file)
    config = engine_config(
        model=model,
        revision=revision,
        offline=offline,
        dtype=dtype,
        max_model_len=max_model_len,
        draft_model=draft_model,
        draft_steps=draft_steps,
        draft_topk=draft_topk,
        draft_nodes=draft_nodes,
        device=device,
        threads=threads,
    )
    plan = VerifyPlan(config, head, entries, num_prompts, max_tokens, repeats, parity)
    with status(as_json) as show_status:
        report = run(plan, show_status)
    result = {**run_facts(), **report}
    report_result(result, output, as_json, _show)
    if not result["passed"]:
        failed = [_TITLES[n] for n, part in result["parts"].items() if part["status"] == "fail"]
        raise CheckFailed(f"{', '.join(failed)}: does not hold; the report says where")


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    model, drafting, prompts = result["model"], result["drafting"], result["prompts"]
    console.print(
        f"[bold]{model['name']}[/bold], {model['architecture']}, {model['parameters'] / 1e6:.1f} M, "
        f"{model['dtype']} on {model['device']}",
        highlight=False,
    )
    lengths = prompts["num_tokens"]
    console.print(
        f"prompts: {len(lengths)} {prompts['source']}, {min(lengths)} to {max(lengths)} tokens",
        highlight=False,
    )
    console.print(
        f"drafter: {drafting['drafter']}" + (f" ({drafting['note']})" if drafting["note"] else ""),
        highlight=False,
    )
    table = Table(show_header=False, box=None, padding=(0, 1))
    for name, part in result["parts"].items():
        style = _STYLES[part["status"]]
        table.add_row(_TITLES[name], f"[{style}]{part['status']}[/{style}]", part["text"])
    console.print(table)
    console.print(_acceptance_table(result["parts"]["acceptance"]["rows"]))
    console.print(_speed_table(result["parts"]["speed"]["results"]))


def _acceptance_table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("temperature", "", "accepted\na step", "accepted by depth", title="drafts")
    for row in rows:
        shares = " ".join(f"{share:.2f}" for share in row["acceptance_by_depth"][:8])
        accepted = f"{row['accepted_per_step']:.2f}"
        table.add_row(f"{row['temperature']:g}", row["lineup"], accepted, shares)
    return table


def _speed_table(results: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("batch", "", "tokens/s", "of plain", "accepted\na step", title="speed")
    for entry in results:
        for name, contestant in entry["contestants"].items():
            table.add_row(
                str(entry["batch"]),
                name,
                f"{contestant['tokens_per_second']:.1f}",
                f"{contestant['speed_ratio']:.2f}",
                f"{contestant['accepted_per_step']:.2f}",
            )
    return table
