"""`eyas bench serve`: an open load of requests, and how long they waited.

Promises: arrivals do not wait for answers; what stood in line at the end is told. Does not know: how
anything is measured.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.options import DraftOptions, ResourceOptions, engine_config, flattened
from eyas.cli.results import Output, report_result, run_facts
from eyas_bench.cli.measuring import narrator
from eyas_bench.cli.shape_options import SHAPE_PANEL, DummyOptions, unpaced, with_aliases

if TYPE_CHECKING:
    from collections.abc import Callable

    from eyas.config import EngineConfig
    from eyas.engine.engine import Engine
    from eyas_bench.load import Load

LOAD_PANEL = "Load"


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What arrives, and what is in time."""

    rate: Annotated[
        float,
        typer.Option("--rate", help="Requests a second, on average.", rich_help_panel=LOAD_PANEL),
    ] = 4.0
    num_requests: Annotated[
        int, typer.Option("--num-requests", min=1, rich_help_panel=LOAD_PANEL)
    ] = 100
    prompt_tokens: Annotated[
        int,
        typer.Option(
            "--prompt-tokens",
            min=1,
            help="Mean length of prompts; log-normal, an eighth to four times the mean.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 256
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            min=1,
            help="Mean length of answers, drawn alike; one with a schema may end sooner.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 128
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", rich_help_panel=LOAD_PANEL)
    ] = 0.0
    schemas: Annotated[
        Path | None,
        typer.Option(
            "--schemas",
            help='Folder of {"schema": ..., "tests": [...]} files that answers are held to, in turn.',
            exists=True,
            file_okay=False,
            rich_help_panel=LOAD_PANEL,
        ),
    ] = None
    schema_share: Annotated[
        float,
        typer.Option(
            "--schema-share",
            min=0,
            max=1,
            help="Share of the requests that have a schema, where --schemas is given.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 0.25
    seed: Annotated[int, typer.Option("--seed", rich_help_panel=LOAD_PANEL)] = 0
    slo_first_token_ms: Annotated[
        float,
        typer.Option(
            "--slo-first-token-ms",
            help="A first token is in time within this, from when its request was due.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 500.0
    slo_inter_token_ms: Annotated[
        float,
        typer.Option(
            "--slo-inter-token-ms",
            help="An answer is in time within this a token, on average after its first.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 50.0
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="A running server with OpenAI's interface, instead of an engine in this process.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = None
    vocab_size: Annotated[
        int,
        typer.Option(
            "--vocab-size",
            min=2,
            help="With --url: prompts are random tokens below this.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 256

    def check(self) -> None:
        """ValueError for numbers that make no load."""
        for name in ("rate", "slo_first_token_ms", "slo_inter_token_ms"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')}: must be above 0, not {value:g}")


@flattened
def serve(
    *,
    model: options.Model = options.MODEL.path,
    load: LoadOptions,
    shaped: DummyOptions,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            help="With --shape: a model directory whose tokens schemas are spelled with.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None,
    drafting: DraftOptions,
    resources: ResourceOptions,
    dtype: options.Dtype = options.DtypeChoice.auto,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """An open load: time to first token, time between tokens, and requests served in time.

    Requests arrive at random moments whether or not earlier ones have been answered, and every time
    counts from when a request was due. Prompts are random tokens.
    """
    from eyas_bench.load import Load, draw_load, summarise
    from eyas_bench.serve_load import run_on_engine, run_on_server

    load.check()
    shaped.check()
    drafting = with_aliases(drafting)
    _check_together(load, shaped, tokenizer)
    schemas, num_refused = _schemas(load.schemas)
    plan = Load(
        rate=load.rate,
        num_requests=load.num_requests,
        prompt_tokens=load.prompt_tokens,
        max_tokens=load.max_tokens,
        vocab_size=load.vocab_size,
        seed=load.seed,
        schemas=schemas,
        schema_share=load.schema_share if schemas else 0.0,
    )
    say = narrator(as_json)

    def on_turn(arrived: int, ended: int) -> None:
        say(f"{arrived} of {load.num_requests} arrived, {ended} ended")

    if load.url is not None:
        outcomes, queue = asyncio.run(
            run_on_server(load.url, draw_load(plan), load.temperature, on_turn)
        )
        about: dict[str, Any] = {"url": "a server"}
    else:
        needed = plan.most_prompt_tokens + plan.most_tokens
        config = _config(model, dtype, offline, drafting, resources, shaped, needed)
        engine, close, about = _engine(config, shaped, tokenizer, as_json)
        try:
            plan = _fitted(plan, engine, needed)
            outcomes, queue = run_on_engine(engine, draw_load(plan), load.temperature, on_turn)
            engine.check()
        finally:
            close()
    result = {
        **run_facts(),
        "model": about,
        "settings": {
            **{k: v for k, v in vars(load).items() if k not in ("url", "schemas", "vocab_size")},
            "num_schemas": len(schemas),
            "num_schemas_refused": num_refused,
            "acceptance": "real" if shaped.synthetic_acceptance is None else "synthetic acceptance",
            "synthetic_acceptance": shaped.synthetic_acceptance,
            "drafting": None if load.url is not None else vars(drafting),
        },
        "results": summarise(
            outcomes, queue, load.slo_first_token_ms / 1000, load.slo_inter_token_ms / 1000
        ),
    }
    say("")
    report_result(result, output, as_json, _show)


def _check_together(load: LoadOptions, shaped: DummyOptions, tokenizer: Path | None) -> None:
    if load.url is not None and shaped.shape is not None:
        raise ValueError("--url: the server has its own model; leave --shape out")
    if tokenizer is not None and shaped.shape is None:
        raise ValueError("--tokenizer: goes with --shape, which was not given")
    if load.schemas is not None and shaped.shape is not None and tokenizer is None:
        raise ValueError("--schemas: a shape has no tokenizer; add --tokenizer")
    if load.schemas is not None and shaped.synthetic_acceptance is not None:
        raise ValueError(
            "--schemas: drawn acceptance keeps to no schema; leave --synthetic-acceptance out"
        )


def _schemas(folder: Path | None) -> tuple[list[str], int]:
    """The schemas of a folder as they are enforced, and how many were refused."""
    if folder is None:
        return [], 0
    from eyas.core import GrammarError
    from eyas.schemas import prepare
    from eyas_bench.grammar import read_cases

    schemas, num_refused = [], 0
    for case in read_cases(folder):
        try:
            schemas.append(prepare(case.schema, param="schema"))
        except GrammarError:
            num_refused += 1
    if not schemas:
        raise ValueError(f"--schemas: none of the {num_refused} schemas there can be enforced")
    return schemas, num_refused


def _config(
    model: str,
    dtype: str,
    offline: bool,
    drafting: DraftOptions,
    resources: ResourceOptions,
    shaped: DummyOptions,
    needed: int,
) -> EngineConfig:
    given: dict[str, Any] = {"model": model, "offline": offline}
    if shaped.shape is not None:
        given = {"model": shaped.shape, "max_model_len": needed + 32}
        drafting = unpaced(drafting)
    return engine_config(**given, dtype=dtype, **vars(drafting), **vars(resources))


def _engine(
    config: EngineConfig, shaped: DummyOptions, tokenizer: Path | None, quiet: bool
) -> tuple[Engine, Callable[[], None], dict[str, Any]]:
    """An engine, how to give it up, and what it is."""
    if shaped.shape is None:
        from eyas.cli.loading import open_model
        from eyas.verify.lineup import about

        llm = open_model(config, quiet=quiet)
        return llm.engine, llm.close, about(llm)
    from eyas.engine.verifier import verify
    from eyas_bench import synthetic
    from eyas_bench.shape import about as about_shape
    from eyas_bench.shape import dummy_engine

    accepted = shaped.synthetic_acceptance
    if accepted is not None and config.draft.drafter == "root":
        raise ValueError("--synthetic-acceptance: nothing drafts; add --drafter eagle3")
    steps = config.draft.max_steps
    drawn = None if accepted is None else synthetic.SyntheticAcceptance(accepted, steps)
    engine = dummy_engine(
        shaped.shape, config, tokenizer_directory=tokenizer, verify=drawn or verify
    )
    return engine, engine.shutdown, about_shape(engine, shaped.shape)


def _fitted(plan: Load, engine: Engine, needed: int) -> Load:
    """The load with the engine's vocabulary; ValueError where its longest request does not fit."""
    from dataclasses import replace

    info = engine.info
    if needed > info.max_model_len:
        raise ValueError(
            f"--prompt-tokens: the longest prompt and answer are {needed} tokens, and the context "
            f"holds {info.max_model_len}; lower --prompt-tokens or --max-tokens"
        )
    if plan.schemas and info.grammar_backend is None:
        raise ValueError("--schemas: this model cannot be held to schemas")
    return replace(plan, vocab_size=max(2, info.vocab_size - 64))


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    found, settings = result["results"], result["settings"]
    name = result["model"].get("name", "a server")
    title = f"{name}: {found['num_requests']} requests, {settings['rate']:g} a second"
    if settings["synthetic_acceptance"] is not None:
        title += ", synthetic acceptance"
    table = Table("ms", "p50", "p90", "p99", title=title)
    groups = [("", found)]
    if len(found["kinds"]) > 1:
        groups += [(f", {kind}", one) for kind, one in found["kinds"].items()]
    for suffix, one in groups:
        for key, text in (
            ("first_token_ms", "first token"),
            ("inter_token_ms", "between tokens"),
            ("gap_ms", "between deliveries"),
        ):
            shares = [one[key].get(p) for p in ("p50", "p90", "p99")]
            table.add_row(text + suffix, *("" if v is None else f"{v:.2f}" for v in shares))
    console, queue = Console(), found["queue"]
    console.print(table)
    console.print(
        f"goodput {found['goodput_per_second']:.2f} requests/s ({found['share_in_time']:.1%} in time: "
        f"first token within {settings['slo_first_token_ms']:g} ms, "
        f"{settings['slo_inter_token_ms']:g} ms a token)\n"
        f"{found['ended_per_second']:.2f} requests/s ended of "
        f"{found['offered_per_second'] or 0:.2f} offered, "
        f"{found['output_tokens_per_second']:.1f} tokens/s, {found['num_failed']} failed\n"
        f"when the last request arrived {queue['open_at_last_arrival']} were open"
        + (
            f" ({queue['waiting_at_last_arrival']} waiting)"
            if queue["waiting_at_last_arrival"] is not None
            else ""
        )
        + f"; they took {queue['drained_seconds']:.2f} s",
        highlight=False,
    )
    for error in found["errors"]:
        console.print(f"failed: {error}", highlight=False)
