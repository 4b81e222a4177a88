"""`eyas serve`: an OpenAI-compatible API in front of one engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from eyas.cli import options
from eyas.cli.command_line import META, ParsedLine
from eyas.cli.handover import HandoverOptions
from eyas.cli.options import (
    GRAMMAR_PANEL,
    MODEL_PANEL,
    DraftOptions,
    GrammarOptions,
    ModelOptions,
    ParallelOptions,
    ResourceOptions,
    engine_config,
    flattened,
)
from eyas.cli.peers import PeerOptions
from eyas.cli.translated import error_text, option_of_error, translated, unreadable_model
from eyas.cli.white_space import WhiteSpaceOptions
from eyas.peers import Refused, translate_options
from eyas.settings import PARALLEL

Result = TypeVar("Result")

SERVER_PANEL = "Server"
MAX_WAITING = 1024
MAX_LOGPROBS = 20
SPARE_REQUESTS, SPARE_CONNECTIONS = 1024, 2048
"""Requests being prepared, in addition to those running or queued; connections, in addition to all
requests."""


class LogLevel(StrEnum):
    """The least severe messages that are logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """The format of a log line."""

    text = "text"
    json = "json"


class MetricsNames(StrEnum):
    """The engine whose metric names are exported in addition to eyas_..."""

    eyas = "eyas"
    vllm = "vllm"
    sglang = "sglang"


class StreamGranularity(StrEnum):
    """How streams are cut into events."""

    step = "step"
    token = "token"


@flattened
def serve(
    *,
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="<file>",
            help="YAML file with options by name, such as 'port: 8000'. The command line takes "
            "precedence.",
        ),
    ] = None,
    chosen: ModelOptions,
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template",
            metavar="<file>",
            help="Chat template to use instead of the model's: a Jinja file, or the template's text.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            help="Model name in the API. Repeat it for several names. Default: the value of --model.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    drafting: DraftOptions,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on.", rich_help_panel=SERVER_PANEL)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            help="Port to listen on; 0 chooses a free port.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 8000,
    uds: Annotated[
        str | None,
        typer.Option(
            "--uds",
            metavar="<path>",
            help="Listen on a Unix socket at this path, which only this user can open, instead of a "
            "port.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help="API key that requests must send. Repeat it for several keys. Other users of this "
            "machine can read it in the process list: prefer --api-key-file.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            help="File with API keys, one per line.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    allow_no_key: Annotated[
        bool,
        typer.Option(
            "--allow-no-key",
            help="Do not warn when the server is reachable from other machines without an API key.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="Another host name to accept in the Host header of requests without an API key; '*' "
            "accepts all. localhost, IP addresses and this machine's name are always accepted. Repeat "
            "it for several names.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            help="Origin of web pages that may use the API, such as http://localhost:3000; '*' allows "
            "all. Repeat it for several origins.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            "--max-body-bytes",
            help="Maximum size of a request body in bytes; larger requests get status 413.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 8 * 1024 * 1024,
    response_store: Annotated[
        int,
        typer.Option(
            "--response-store",
            min=0,
            max=2**20,
            help="MiB of memory for the responses of /v1/responses that can be read and continued; 0 "
            "stores none.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 64,
    stream_granularity: Annotated[
        StreamGranularity,
        typer.Option(
            "--stream-granularity",
            help="How streams are cut into events: one per step, or one per token, so that the number "
            "of events does not tell how many drafted tokens were accepted. A request may choose.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = StreamGranularity.step,
    max_logprobs: Annotated[
        int,
        typer.Option(
            "--max-logprobs",
            help="Maximum number of alternatives per token whose log-probabilities a request may ask "
            f"for, 0 to {MAX_LOGPROBS}.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = MAX_LOGPROBS,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            help="Time that running answers get to finish after SIGTERM, in seconds.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 30.0,
    start_wait: Annotated[
        float,
        typer.Option(
            "--start-wait",
            help="Time that a request waits while the model is loaded for the first time, in seconds, "
            "before it gets status 503; 0 refuses it immediately.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 30.0,
    stall_timeout: Annotated[
        float,
        typer.Option(
            "--stall-timeout",
            help="Time without an engine step while there are requests, in seconds, after which /ready "
            "and new requests get status 503. Must be longer than the longest step.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 5.0,
    no_playground: Annotated[
        bool,
        typer.Option(
            "--no-playground",
            help="Serve no web page at '/'.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = False,
    no_restart: Annotated[
        bool,
        typer.Option(
            "--no-restart",
            help="Exit with status 1 when the engine process dies, instead of restarting it.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = False,
    grammars: GrammarOptions,
    white_space: WhiteSpaceOptions,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(
            "--reasoning-parser",
            help="Format of the model's reasoning, by the names of SGLang and vLLM (qwen3, "
            "deepseek-r1, glm45, gpt-oss, ...). Default: detected from the model's files.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            "--tool-call-parser",
            help="Format of the model's tool calls, by the names of SGLang and vLLM (qwen25, hermes, "
            "llama3_json, deepseekv3, glm45, gpt-oss, ...). Default: detected from the model's files.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="Least severe messages to log.")
    ] = LogLevel.info,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format", help="Format of log lines: text, or one JSON object per line."
        ),
    ] = LogFormat.text,
    metrics_names: Annotated[
        MetricsNames,
        typer.Option(
            "--metrics-names",
            help="Metric names at /metrics: eyas_... alone, or in addition the names that dashboards "
            "and routers for vLLM or SGLang read.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = MetricsNames.eyas,
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-traces-endpoint",
            metavar="<url>",
            help="OpenTelemetry collector that gets a span of each request, without its content: OTLP "
            "over HTTP, such as http://localhost:4318. Needs the extra 'otel'.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    resources: ResourceOptions,
    max_waiting: Annotated[
        int,
        typer.Option(
            "--max-waiting",
            min=0,
            max=1_000_000,
            help="Maximum number of answers in the queue; beyond it new requests get status 429.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = MAX_WAITING,
    no_prefix_cache: options.NoPrefixCache = False,
    kv_events_config: options.KVEvents = None,
    flights: options.Flights = "auto",
    handover: HandoverOptions,
    parallel: ParallelOptions,
    nnodes: options.Nnodes = PARALLEL.num_nodes,
    node_rank: options.NodeRank = PARALLEL.node_rank,
    dist_init_addr: options.DistInitAddr = PARALLEL.address,
    peers: PeerOptions,
) -> None:
    """Serve a model over an OpenAI-compatible API."""
    from eyas.dialect import check_parsers
    from eyas.server.launch import serve as run_server
    from eyas.server.options import MAX_RESTARTS, ServerOptions, traces_endpoint
    from eyas.server.origins import checked_host, checked_origin

    parsed: ParsedLine = context.meta[META]
    translation = translate_options(vars(peers), chosen.model, _given(context))
    reasons = [*parsed.reasons, *translation.reasons]
    num_ranks = max(parallel.tensor_parallel_size, parallel.data_parallel_size)
    settings: dict[str, Any] = {
        **vars(chosen),
        **vars(drafting),
        **vars(grammars),
        **vars(white_space),
        **vars(resources),
        **vars(parallel),
        "nnodes": nnodes,
        "node_rank": node_rank,
        "dist_init_addr": dist_init_addr,
        **torchrun_settings(os.environ, num_ranks),
        "no_prefix_cache": no_prefix_cache,
        "kv_events_config": kv_events_config,
        "flights": flights,
        "max_waiting": max_waiting,
        "drain_timeout": drain_timeout,
        **translation.settings,
    }
    max_waiting, drain_timeout = settings.pop("max_waiting"), settings.pop("drain_timeout")
    errors: list[ValueError] = []

    def collect_error(make: Callable[[], Result]) -> Result | None:
        try:
            return make()
        except ValueError as error:
            errors.append(error)
            return None

    without_cache = settings.pop("no_prefix_cache")
    engine = collect_error(
        lambda: handover.applied_to(engine_config(**settings, prefix_cache=not without_cache))
    )
    template = collect_error(lambda: _template_text(chat_template))
    endpoint = None
    if otlp_traces_endpoint is not None:
        endpoint = collect_error(lambda: traces_endpoint(otlp_traces_endpoint))
    collect_error(lambda: check_parsers(reasoning_parser, None))
    collect_error(lambda: check_parsers(None, tool_call_parser))
    line = translated(context, translation.settings, set(map(option_of_error, errors)))
    if reasons or errors:
        if reasons:
            reasons += unreadable_model(settings["model"], chosen.revision)
        reasons += [error_text(error, translation.flags) for error in errors]
        raise Refused(reasons, line if parsed.has_peer_options else "")
    assert engine is not None
    max_queued = engine.scheduler.most_seats + max_waiting
    max_requests = max_queued + SPARE_REQUESTS
    notes = [*parsed.notes, *translation.notes]
    if parsed.has_peer_options:
        notes.append(f"equivalent command: {line}")
    server_options = ServerOptions(
        host=host,
        port=port,
        uds=uds,
        api_keys=(*(api_key or ()), *_read_keys(api_key_file)),
        allowed_hosts=tuple(map(checked_host, allowed_host or ())),
        cors_origins=tuple(map(checked_origin, cors_origin or ())),
        served_model_names=tuple(served_model_name or ()),
        max_body_bytes=max_body_bytes,
        max_queued=max_queued,
        max_requests=max_requests,
        max_connections=max_requests + SPARE_CONNECTIONS,
        max_top_logprobs=max_logprobs,
        drain_seconds=drain_timeout,
        stall_seconds=stall_timeout,
        max_restarts=0 if no_restart else MAX_RESTARTS,
        reasoning_parser=reasoning_parser,
        tool_call_parser=tool_call_parser,
        chat_template=template,
        playground=not no_playground,
        log_level=log_level.value,
        notes=tuple(notes),
        log_format=log_format.value,
        metrics_names=metrics_names.value,
        otlp_traces_endpoint=endpoint,
        allow_no_key=allow_no_key,
        start_wait_seconds=start_wait,
        response_store_bytes=response_store * 2**20,
        stream_granularity=stream_granularity.value,
    )
    if engine.parallel.node_rank:
        from eyas.server.node import run_node

        restarts = server_options.max_restarts
        raise typer.Exit(
            run_node(
                engine,
                log_level=log_level.value,
                log_format=log_format.value,
                max_restarts=restarts,
            )
        )
    raise typer.Exit(run_server(engine, server_options))


def torchrun_settings(environment: Mapping[str, str], num_ranks: int) -> dict[str, int]:
    """Return the settings of a process that `torchrun` has started, which is one rank: each counts as a
    machine with one rank. Empty for a process that it has not started, and for one rank.

    Raises ValueError if it has started another number of processes than --tp or --dp.
    """
    names = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    if num_ranks == 1 or any(name not in environment for name in names):
        return {}
    started = int(environment["WORLD_SIZE"])
    if started != num_ranks:
        raise ValueError(
            f"parallel.tp: torchrun has started {started} processes for {num_ranks} ranks; pass --tp "
            f"{started} (or --dp {started}), or start as many"
        )
    return {
        "nnodes": started,
        "node_rank": int(environment["RANK"]),
        "first_device": int(environment["LOCAL_RANK"]),
    }


def _template_text(template: str | None) -> str | None:
    """Return the text of the chat template that --chat-template names or contains."""
    if template is None:
        return None
    from eyas.text.template import template_text

    return template_text(template)


def _given(context: typer.Context) -> set[str]:
    """Return the names of the parameters that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _read_keys(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--api-key-file: cannot read {file} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"--api-key-file: {file} is not UTF-8 text; save it as such") from error
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not keys:
        raise ValueError(f"--api-key-file: {file} holds no key; write one per line")
    return keys
