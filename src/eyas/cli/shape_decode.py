"""`eyas bench decode --shape`: a model of a known size with random weights, by the peers' protocol.

Promises: synthetic acceptance is named wherever its numbers are; what else is measured of a shape is in
`shape_more`. Does not know: how anything is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.cli.bench import command_line
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DraftOptions
from eyas.cli.shape_options import Protocol, ShapeOptions, shape_config, unpaced

if TYPE_CHECKING:
    from eyas.bench.synthetic import SyntheticAcceptance


def decode_shape(
    options: ShapeOptions,
    drafting: DraftOptions,
    protocol: Protocol,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure every batch size in one engine."""
    from eyas.bench import synthetic
    from eyas.bench.machine import describe_run, write_result
    from eyas.bench.prompts import random_prompts
    from eyas.bench.shape import about, dummy_engine
    from eyas.bench.step_profile import profile_steps
    from eyas.bench.together import repeat, requests, summarise
    from eyas.models.shapes import find_shape

    assert options.shape is not None
    shape = find_shape(options.shape)
    drafting = unpaced(drafting)
    drafts = drafting.drafter != "root"
    accepted = options.synthetic_acceptance
    if accepted is not None and not drafts:
        raise ValueError("--synthetic-acceptance: nothing drafts; add --drafter eagle3")
    if options.schemas is not None or options.prefill is not None:
        from eyas.cli import shape_more

        measure = shape_more.schema_steps if options.schemas is not None else shape_more.prefill
        measure(options, drafting, protocol, output, as_json)
        return
    config = shape_config(options, drafting, protocol)
    if accepted is not None:
        synthetic.continuation(accepted, config.draft.max_steps)
    say = narrator(as_json)
    say("filling weights")
    engine = dummy_engine(shape.name, config)
    drawn = None
    if accepted is not None:
        alike = options.synthetic_alike
        drawn = synthetic.install(engine, accepted, config.draft.max_steps, alike=alike)
    results: list[dict[str, Any]] = []
    for size in protocol.batches:
        prompts = random_prompts(size, protocol.prompt_tokens, shape.model.vocab_size)
        runs = repeat(
            engine,
            prompts,
            max_tokens=protocol.max_tokens,
            temperature=protocol.temperature,
            repeats=protocol.repeats,
            tell=lambda turn, size=size: say(
                f"batch {size}: " + (f"round {turn}" if turn > 0 else "warm-up")
            ),
        )
        _check_drawn(drawn)
        entry: dict[str, Any] = {
            "batch": size,
            "drafter": drafting.drafter if drafts else "plain",
            "synthetic_acceptance": accepted,
            **summarise(runs),
        }
        if options.profile:
            say(f"batch {size}: profile")
            most = engine.info.max_model_len - protocol.prompt_tokens
            batch = requests(prompts, most, protocol.temperature, f"profile-{size}")
            entry["profile"] = profile_steps(engine, batch)
        results.append(entry)
    engine.check()
    result = {
        **describe_run(command_line()),
        "model": about(engine, shape.name),
        "settings": {
            "protocol": "random prompts that start together; tokens after t_1 over t_n - t_1",
            "acceptance": _acceptance(options),
            **{k: v for k, v in asdict(protocol).items() if k not in ("batches",)},
            "prefix_cache": False,
            "drafting": vars(drafting) if drafts else None,
            "max_batch_tokens": config.scheduler.max_batch_tokens,
        },
        "results": results,
    }
    engine.shutdown()
    if output is not None:
        write_result(result, output)
    say("")
    print(json.dumps(result)) if as_json else _show(result)


def _acceptance(options: ShapeOptions) -> str:
    from eyas.bench import synthetic

    if options.synthetic_acceptance is None:
        return "real"
    return synthetic.ALIKE if options.synthetic_alike else synthetic.NAME


def _check_drawn(drawn: SyntheticAcceptance | None) -> None:
    if drawn is not None and not drawn.num_calls:
        raise CheckFailed("synthetic acceptance never ran: no step had a draft, or none was asked")


def narrator(quiet: bool) -> Callable[[str], None]:
    """Tells a person what goes on."""
    if quiet or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r{text:<48}", end="", file=sys.stderr, flush=True)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    model, settings, machine = result["model"], result["settings"], result["machine"]
    where = machine.get("gpu") if model["device"].startswith("cuda") else machine["cpu"]
    title = f"{model['name']}, dummy weights, {model['dtype']} on {where}"
    if settings["acceptance"] != "real":
        title += f", {settings['acceptance']}"
    table = Table(
        *("batch", "drafter", "tokens/s", "step\nms", "asked\ntokens\na step"),
        *("tokens\na step", "tokens\na draft", "first\ntokens ms", "tokens/s of every round"),
        title=title,
        padding=(0, 0),
    )
    for one in result["results"]:
        table.add_row(
            str(one["batch"]),
            one["drafter"],
            f"{one['tokens_per_second']:.1f}",
            f"{one['step_ms']:.3f}",
            number(one["synthetic_acceptance"]),
            number(one["tokens_per_step"]),
            number(one["tokens_per_draft"]),
            f"{one['first_tokens_ms']:.1f}",
            " ".join(f"{run['tokens_per_second']:.1f}" for run in one["runs"]),
        )
    console = Console()
    console.print(table)
    for one in result["results"]:
        if profile := one.get("profile"):
            console.print(_profile_table(one["batch"], profile))


def _profile_table(batch: int, profile: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        *("", "ms", "share", "kernels"),
        title=f"a step at batch {batch}: {profile['step_ms']:.3f} ms",
    )
    step = profile["step_ms"]
    for kind, one in profile["kinds"].items():
        table.add_row(kind, f"{one['ms']:.3f}", f"{one['ms'] / step:.1%}", f"{one['kernels']:g}")
    gaps = profile["gaps_ms"]
    table.add_row("gaps", f"{gaps:.3f}", f"{gaps / step:.1%}", "")
    table.add_section()
    for part, spent in profile["parts"].items():
        table.add_row(f"part: {part}", f"{spent:.3f}", f"{spent / step:.1%}", "")
    table.add_row("busy", f"{profile['busy_ms']:.3f}", "", f"{profile['kernels_per_step']:g}")
    return table


def number(value: float | None) -> str:
    """As tables have it."""
    return "" if value is None else f"{value:.2f}"
