"""`eyas bench decode --shape`: a model of a known size with random weights, by the peers' protocol.

Promises: synthetic acceptance is named wherever its numbers are; what else is measured of a shape is in
`shape_more`. Does not know: how anything is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from eyas.cli.bench import command_line
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DraftOptions, engine_config

if TYPE_CHECKING:
    from eyas.bench.synthetic import SyntheticAcceptance

Drafting = TypeVar("Drafting", bound=DraftOptions)

SHAPE_PANEL = "Named shapes"
PROMPT_TOKENS, NEW_TOKENS, REPEATS = 128, 256, 3
TEXT_TOKENS = 448
"""Longest instance with --schemas: all contexts then share the graphs of the shortest."""
MOST_TREE_NODES = 32


@dataclass(frozen=True, kw_only=True)
class DummyOptions:
    """A model without a checkpoint."""

    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            help="A model of a known size instead of --model: llama-3.1-8b, qwen3-8b or tiny. Trees "
            "are not paced: without --draft-nodes a chain has all its levels, a tree 32 nodes.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    dummy_weights: Annotated[
        bool,
        typer.Option(
            "--dummy-weights",
            help="Random weights; --shape has no others.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    synthetic_acceptance: Annotated[
        float | None,
        typer.Option(
            "--synthetic-acceptance",
            help="Verify in full, then accept so many tokens a step on average, the one that every "
            "step yields included.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None

    def check(self) -> None:
        """ValueError for what cannot go together."""
        if self.shape is None:
            for field in fields(self):
                if getattr(self, field.name):
                    option = "--" + field.name.replace("_", "-")
                    raise ValueError(f"{option}: goes with --shape, which was not given")
        elif not self.dummy_weights:
            raise ValueError("--shape: there are no weights of a shape; add --dummy-weights")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(DummyOptions):
    """What is measured of it."""

    synthetic_alike: Annotated[
        bool,
        typer.Option(
            "--synthetic-alike",
            help="With --synthetic-acceptance: all sequences of a step accept as many, as in SGLang's "
            "simulation; otherwise each draws for itself, and a batch ends with its slowest.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Also tell what a step is made of: device time by kind, kernels, gaps.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = False
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            help="Positions to prepare for; prompt and answer by default.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-batch-tokens",
            min=1,
            help="Rows of one step; by default as many as a batch's prompts, with --prefill 8192, and "
            "with --interfere 2048.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    schemas: Annotated[
        Path | None,
        typer.Option(
            "--schemas",
            help='Measure steps instead, with schemas and without: folder of {"schema": ..., "tests": '
            "[...]} files, whose valid instances of up to --max-tokens (448) tokens are the answers.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            help="With --schemas: a model directory whose tokens instances are spelled with.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    prefill: Annotated[
        int | None,
        typer.Option(
            "--prefill",
            min=1,
            help="Measure instead how long a prompt of so many tokens takes, such as 8192.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None
    interfere: Annotated[
        int | None,
        typer.Option(
            "--interfere",
            min=1,
            help="With --prefill: also how long so many sequences, such as 16, wait for their tokens "
            "while such a prompt arrives.",
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None

    def check(self) -> None:
        """ValueError for what cannot go together."""
        DummyOptions.check(self)
        if (self.schemas is None) != (self.tokenizer is None):
            raise ValueError("--schemas: goes with --tokenizer, which spells the instances")
        if self.synthetic_alike and self.synthetic_acceptance is None:
            raise ValueError("--synthetic-alike: goes with --synthetic-acceptance")
        if self.synthetic_alike and self.schemas is not None:
            raise ValueError("--synthetic-alike: with --schemas every sequence has its own text")
        if self.interfere is not None and self.prefill is None:
            raise ValueError("--interfere: add --prefill, the length of the prompt that arrives")
        asked = {
            "--schemas": self.schemas is not None,
            "--prefill": self.prefill is not None,
            "--profile": self.profile,
        }
        if sum(asked.values()) > 1:
            given = [option for option, is_given in asked.items() if is_given]
            raise ValueError(
                f"{given[0]}: measures something else than {given[1]}; give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How the named shape is run."""

    batches: list[int]
    prompt_tokens: int
    max_tokens: int
    temperature: float
    repeats: int
    dtype: str
    device: str
    threads: int | None
    exact: bool


def with_aliases(drafting: Drafting) -> Drafting:
    """eagle3 is another name of head."""
    names = ["head" if name == "eagle3" else name for name in drafting.drafter.split("+")]
    return replace(drafting, drafter="+".join(names))


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


def unpaced(drafting: DraftOptions) -> DraftOptions:
    """The tree's size in numbers."""
    if drafting.drafter == "root" or drafting.draft_nodes != "auto":
        return drafting
    try:
        steps = 5 if drafting.draft_steps == "auto" else int(drafting.draft_steps)
    except ValueError:
        return drafting  # engine_config says what is wrong with it
    levels = 1 + drafting.draft_topk * (1 + (steps - 1) * drafting.draft_topk)
    nodes = steps + 1 if drafting.draft_topk == 1 else min(MOST_TREE_NODES, levels)
    return replace(drafting, draft_steps=str(steps), draft_nodes=str(nodes))


def shape_config(
    options: ShapeOptions, drafting: DraftOptions, protocol: Protocol, *, spare_seats: int = 0
) -> Any:
    """The engine for the largest batch, with seats beside it."""
    from eyas.bench.together import SLACK, step_rows

    largest, prompt_tokens = max(protocol.batches) + spare_seats, protocol.prompt_tokens
    if prompt_tokens < 1 or protocol.max_tokens < 2:
        raise ValueError(
            "--max-tokens: at least 2, and --prompt-tokens at least 1, are needed here"
        )
    needed = prompt_tokens + protocol.max_tokens
    if options.max_model_len is not None and options.max_model_len < needed:
        raise ValueError(
            f"--max-model-len: {options.max_model_len} is less than prompt and answer, {needed}"
        )
    is_number = drafting.draft_nodes.isdecimal()  # engine_config says what else is wrong with it
    nodes = int(drafting.draft_nodes) if is_number and drafting.drafter != "root" else 1
    return engine_config(
        model=options.shape or "",
        dtype=protocol.dtype,
        device=protocol.device,
        threads=protocol.threads,
        exact=protocol.exact,
        max_model_len=options.max_model_len or needed + SLACK,
        max_num_seqs=largest,
        max_batch_tokens=options.max_batch_tokens or step_rows(largest, prompt_tokens, nodes),
        prefix_cache=False,
        **vars(drafting),
    )


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
