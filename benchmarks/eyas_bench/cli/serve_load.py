"""`eyas bench serve`: measure latency and throughput under an open load of requests.

Promises: arrivals do not wait for answers; the queue at the last arrival is reported.
Does not know: how anything is measured.
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
from eyas.config import DEFAULTS
from eyas_bench.cli.measuring import status_line
from eyas_bench.cli.shape_options import SHAPE_PANEL, DummyOptions, unpaced, with_aliases

if TYPE_CHECKING:
    from collections.abc import Callable

    from eyas.config import EngineConfig
    from eyas.engine.engine import Engine
    from eyas_bench.load import Load, Outcome, Queue

LOAD_PANEL = "Load"


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The load of requests, and the latency targets."""

    rate: Annotated[
        str,
        typer.Option(
            help="Mean arrival rate in requests per second; several, separated by commas, run one "
            "after the other on the same engine.",
            metavar="FLOAT[,...]",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = "4"
    num_requests: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of requests; at the highest of several rates, so that all take as long.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 100
    prompt_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Mean length of prompts in tokens; log-normal, 1/8 to 4 times the mean.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 256
    max_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Mean length of answers in tokens, with the same distribution; an answer with a "
            "schema may end sooner.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 128
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            "-t",
            help="Sampling temperature; 0 is greedy.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 0.0
    schemas: Annotated[
        Path | None,
        typer.Option(
            help='Directory of {"schema": ..., "tests": [...]} files; their schemas constrain answers, '
            "in turn.",
            exists=True,
            file_okay=False,
            rich_help_panel=LOAD_PANEL,
        ),
    ] = None
    schema_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="With --schemas: fraction of requests with a schema.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 0.25
    seed: Annotated[
        int,
        typer.Option(help="Random seed of the load.", rich_help_panel=LOAD_PANEL),
    ] = 0
    slo_first_token_ms: Annotated[
        float,
        typer.Option(
            help="Target of the time to first token in milliseconds, from the scheduled arrival.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 500.0
    slo_inter_token_ms: Annotated[
        float,
        typer.Option(
            help="Target of the mean time per token after the first, in milliseconds.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 50.0
    url: Annotated[
        str | None,
        typer.Option(
            help="Base URL of a running OpenAI-compatible server to measure instead of an engine "
            "in this process.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = None
    vocab_size: Annotated[
        int,
        typer.Option(
            min=2,
            help="With --url: upper bound of the random token ids of prompts.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = 256

    def check(self) -> None:
        """Check the numbers. ValueError: one must be above 0."""
        for name in ("slo_first_token_ms", "slo_inter_token_ms"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"--{name.replace('_', '-')}: must be above 0, not {value:g}")
        _ = self.rates

    @property
    def rates(self) -> list[float]:
        """The rates in their order. ValueError: one is no number above 0."""
        values = []
        for part in self.rate.split(","):
            try:
                value = float(part)
            except ValueError:
                value = 0.0
            if not 0 < value < float("inf"):
                raise ValueError(f"--rate: must be a number above 0, not {part.strip()!r}")
            values.append(value)
        return values

    def num_requests_at(self, rate: float) -> int:
        """The requests of one of the rates: fewer at lower ones, in proportion."""
        return max(1, round(self.num_requests * rate / max(self.rates)))


@flattened
def serve(
    *,
    model: options.Model = DEFAULTS.model.path,
    load: LoadOptions,
    shaped: DummyOptions,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="With --shape and --schemas: model directory whose tokenizer is used.",
            exists=True,
            file_okay=False,
            rich_help_panel=SHAPE_PANEL,
        ),
    ] = None,
    drafting: DraftOptions,
    resources: ResourceOptions,
    dtype: options.Dtype = "auto",
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Measure an open load: time to first token, time between tokens, requests within the targets.

    Requests arrive at random times, independently of earlier answers, and every time is measured
    from the scheduled arrival. Prompts are random tokens.
    """
    from eyas_bench.load import Load, draw_load
    from eyas_bench.serve_load import run_on_engine, run_on_server, warm_up

    load.check()
    shaped.check()
    drafting = with_aliases(drafting)
    _check_together(load, shaped, tokenizer)
    schemas, num_refused = _schemas(load.schemas)
    plans = [
        Load(
            rate=rate,
            num_requests=load.num_requests_at(rate),
            prompt_tokens=load.prompt_tokens,
            max_tokens=load.max_tokens,
            vocab_size=load.vocab_size,
            seed=load.seed,
            schemas=schemas,
            schema_share=load.schema_share if schemas else 0.0,
        )
        for rate in load.rates
    ]
    show_status = status_line(as_json)

    def on_turn(arrived: int, ended: int) -> None:
        show_status(f"{arrived} arrived, {ended} ended")

    if load.url is not None:
        about: dict[str, Any] = {"url": "a server"}
        entries = [
            _entry(
                load,
                plan,
                *asyncio.run(run_on_server(load.url, draw_load(plan), load.temperature, on_turn)),
            )
            for plan in plans
        ]
    else:
        needed = plans[0].most_prompt_tokens + plans[0].most_tokens
        config = _config(model, dtype, offline, drafting, resources, shaped, needed)
        engine, close, about = _engine(config, shaped, tokenizer, as_json)
        try:
            plans = [_fitted(plan, engine, needed) for plan in plans]
            largest = max(plans, key=lambda plan: plan.num_requests)
            warm_up(engine, draw_load(largest), load.temperature)
            entries = [
                _entry(
                    load, plan, *run_on_engine(engine, draw_load(plan), load.temperature, on_turn)
                )
                for plan in plans
            ]
            engine.check()
        finally:
            close()
    result = {
        **run_facts(),
        "model": about,
        "settings": {
            **{
                k: v
                for k, v in vars(load).items()
                if k not in ("rate", "url", "schemas", "vocab_size")
            },
            "num_schemas": len(schemas),
            "num_schemas_refused": num_refused,
            "acceptance": "real" if shaped.synthetic_acceptance is None else "synthetic acceptance",
            "synthetic_acceptance": shaped.synthetic_acceptance,
            "drafting": None if load.url is not None else vars(drafting),
        },
        "results": entries,
    }
    show_status("")
    report_result(result, output, as_json, _show)


def _entry(load: LoadOptions, plan: Load, outcomes: list[Outcome], queue: Queue) -> dict[str, Any]:
    """Return the result of one rate."""
    from eyas_bench.load import summarise

    slo_first, slo_inter = load.slo_first_token_ms / 1000, load.slo_inter_token_ms / 1000
    return {"rate": plan.rate, **summarise(outcomes, queue, slo_first, slo_inter)}


def _check_together(load: LoadOptions, shaped: DummyOptions, tokenizer: Path | None) -> None:
    if load.url is not None and shaped.shape is not None:
        raise ValueError("--url: the server has its own model; leave --shape out")
    if tokenizer is not None and shaped.shape is None:
        raise ValueError("--tokenizer: needs --shape")
    if load.schemas is not None and shaped.shape is not None and tokenizer is None:
        raise ValueError("--schemas: a shape has no tokenizer; add --tokenizer")
    if load.schemas is not None and shaped.synthetic_acceptance is not None:
        raise ValueError(
            "--schemas: synthetic acceptance ignores schemas; leave --synthetic-acceptance out"
        )


def _schemas(folder: Path | None) -> tuple[list[str], int]:
    """Return the prepared schemas of a directory, and the number of unsupported ones."""
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
        raise ValueError(f"--schemas: none of its {num_refused} schemas is supported")
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
        if shaped.synthetic_acceptance is None:  # a random head would soon not be asked
            drafting = unpaced(drafting)
    return engine_config(**given, dtype=dtype, **vars(drafting), **vars(resources))


def _engine(
    config: EngineConfig, shaped: DummyOptions, tokenizer: Path | None, quiet: bool
) -> tuple[Engine, Callable[[], None], dict[str, Any]]:
    """Return an engine, the function that closes it, and its description for the result."""
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
        raise ValueError("--synthetic-acceptance: needs a drafter; add --drafter eagle3")
    steps = config.draft.max_steps
    drawn = None if accepted is None else synthetic.SyntheticAcceptance(accepted, steps)
    engine = dummy_engine(
        shaped.shape,
        config,
        quantization=shaped.quantization,
        tokenizer_directory=tokenizer,
        verify=drawn or verify,
    )
    return engine, engine.shutdown, about_shape(engine, shaped.shape)


def _fitted(plan: Load, engine: Engine, needed: int) -> Load:
    """Return the load with the engine's vocabulary. ValueError: its longest request does not fit."""
    from dataclasses import replace

    info = engine.info
    if needed > info.max_model_len:
        raise ValueError(
            f"--prompt-tokens: the longest prompt and answer are {needed} tokens, and the context "
            f"holds {info.max_model_len}; lower --prompt-tokens or --max-tokens"
        )
    if plan.schemas and info.grammar_backend is None:
        raise ValueError("--schemas: this model does not support schemas")
    return replace(plan, vocab_size=max(2, info.vocab_size - 64))


def _show(result: dict[str, Any]) -> None:
    for found in result["results"]:
        _show_rate(found, result["settings"], result["model"].get("name", "a server"))


def _show_rate(found: dict[str, Any], settings: dict[str, Any], name: str) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{name}: {found['num_requests']} requests, {found['rate']:g} per second"
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
        f"goodput {found['goodput_per_second']:.2f} requests/s ({found['share_in_time']:.1%} "
        f"within the targets: first token {settings['slo_first_token_ms']:g} ms, "
        f"{settings['slo_inter_token_ms']:g} ms per token)\n"
        f"{found['ended_per_second']:.2f} requests/s ended of "
        f"{found['offered_per_second'] or 0:.2f} offered, "
        f"{found['output_tokens_per_second']:.1f} tokens/s, {found['num_failed']} failed\n"
        f"open requests at the last arrival: {queue['open_at_last_arrival']}"
        + (
            f" ({queue['waiting_at_last_arrival']} waiting)"
            if queue["waiting_at_last_arrival"] is not None
            else ""
        )
        + f", finished after {queue['drained_seconds']:.2f} s",
        highlight=False,
    )
    for error in found["errors"]:
        console.print(f"failed: {error}", highlight=False)
