"""`eyas bench structured`: measure the cost of schemas and the gain of drafting forced text.

Promises: exit status 1 where a drafter changed a token or an answer violated its schema.
Does not know: how anything is measured.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import engine_config
from eyas.cli.results import Output, report_result, run_facts, status
from eyas.config import DEFAULTS
from eyas_bench.cli.measuring import place, prefixed


def structured(
    *,
    model: options.Model = DEFAULTS.model.path,
    draft_model: Annotated[
        str | None,
        typer.Option(help="Draft head. Default: the model's own."),
    ] = None,
    draft_steps: Annotated[
        int,
        typer.Option(min=1, max=15, help="Length in tokens of the chain of fixed size."),
    ] = 5,
    num_prompts: Annotated[
        int,
        typer.Option(
            min=2,
            help="Number of prompts in a group; the groups of forms have at most 36.",
        ),
    ] = 36,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Maximum length of an answer in tokens.")
    ] = 512,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Number of measured rounds, after a warm-up round."),
    ] = 7,
    dtype: options.Dtype = "auto",
    device: options.Device = DEFAULTS.device.device,
    threads: options.Threads = None,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Measure answers with and without schemas and drafts, one request at a time, in turn."""
    from eyas.cli.loading import open_model
    from eyas.config import AUTO_NODES, AUTO_STEPS
    from eyas.verify.inputs import Inputs, check_lengths
    from eyas.verify.lineup import Stage, about
    from eyas_bench import structured as bench

    bench.require_validator()
    config = engine_config(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        offline=offline,
        drafter="head",
        draft_model=draft_model,
        draft_steps=max(AUTO_STEPS, draft_steps),
        draft_nodes=AUTO_NODES,
        max_num_seqs=1,
        prefix_cache=False,
    )
    groups = bench.groups(num_prompts)
    reports: dict[str, Any] = {}
    with open_model(config, quiet=as_json) as llm, status(as_json) as show_status:
        stage = Stage(llm, with_forced_spans=True)
        lineup = bench.contestants(stage, draft_steps)
        for name, tasks in groups.items():
            prepared, compile_seconds = bench.prepare_tasks(llm, tasks)
            check_lengths(Inputs(name, [one.prompt for one in prepared]), llm, max_tokens)
            rounds = bench.measure(
                stage,
                lineup,
                prepared,
                max_tokens=max_tokens,
                repeats=repeats,
                show_status=prefixed(show_status, name),
            )
            reports[name] = bench.report(lineup, prepared, rounds, compile_seconds)
        result = {
            **run_facts(),
            "model": about(llm),
            "settings": {
                "head": draft_model or "the model's own",
                "draft_steps": draft_steps,
                "grammar_backend": llm.info.grammar_backend,
                "num_prompts": num_prompts,
                "max_tokens": max_tokens,
                "repeats": repeats,
            },
            "groups": reports,
        }
    report_result(result, output, as_json, _show)
    _check(reports)


def _check(reports: dict[str, Any]) -> None:
    """Raise CheckFailed if tokens differ or an answer violates its schema."""
    constrained = [
        (group, name, one)
        for group, found in reports.items()
        for name, one in found["contestants"].items()
        if one["has_schema"]
    ]
    changed = [f"{name} ({group})" for group, name, one in constrained if one["same_tokens"] < 1]
    if changed:
        raise CheckFailed(
            f"tokens differ from plain decoding's with {', '.join(changed)}; please report it with "
            "this command"
        )
    broken = sorted({title for _, _, one in constrained for title in one["broken"]})
    if broken:
        raise CheckFailed(f"answers violate their schemas: {', '.join(broken)}")


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, model, machine = Console(), result["model"], result["machine"]
    for group, found in result["groups"].items():
        columns = (
            *("tokens\nper step", "tokens/s", "ms per\nstep", "steps", "finished", "valid", "same"),
        )
        table = Table(
            "",
            *columns,
            title=f"{group}: {found['num_tasks']} prompts, {found['num_schemas']} schemas, "
            f"{model['name']} on {place(result)}, {machine['threads']} threads",
        )
        for name, one in found["contestants"].items():
            held = [f"{one[key]:.0%}" if key in one else "" for key in ("valid", "same_tokens")]
            table.add_row(
                name,
                f"{one['tokens_per_step']:.2f}",
                f"{one['tokens_per_second']:.0f}",
                f"{one['step_ms']:.2f}",
                str(one["num_steps"]),
                f"{one['finished']:.0%}",
                *held,
            )
        console.print(table)
        gained = found["tokens_per_step_ratio"]
        print(
            f"tokens per step, head+forced / head: {gained['ratio']:.3f} ({gained['low']:.3f} to "
            f"{gained['high']:.3f}, 95 % interval over prompts)"
        )
        for name, speed in found["speed_ratios"].items():
            print(
                f"tokens/s, {name}: {speed['median']:.3f} ({speed['low']:.3f} to "
                f"{speed['high']:.3f}, {speed['coverage']:.0%} of {speed['rounds']} rounds)"
            )
        compiled = found["compile_ms"]
        if compiled is not None:
            print(f"compile: median {compiled['median']} ms, max {compiled['max']} ms")
        print()
