"""`eyas serve`: an OpenAI-style API in front of one engine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from eyas.cli import options
from eyas.cli.options import (
    GRAMMAR_PANEL,
    MODEL_PANEL,
    DraftOptions,
    GrammarOptions,
    ModelOptions,
    ResourceOptions,
    engine_config,
    flattened,
)
from eyas.cli.peers import PeerOptions
from eyas.cli.reading import META, Reading
from eyas.cli.translated import blamed, option_of_error, translated, unreadable_model
from eyas.cli.white_space import WhiteSpaceOptions
from eyas.peers import Refused, in_our_words

Result = TypeVar("Result")

SERVER_PANEL = "Server"
MAX_WAITING = 1024
MAX_LOGPROBS = 20
SPARE_REQUESTS, SPARE_CONNECTIONS = 1024, 2048
"""Requests that are being prepared beside those in the queue; connections beside these."""


class LogLevel(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """What a line of the log is."""

    text = "text"
    json = "json"


class MetricsNames(StrEnum):
    """Whose names metrics have beside ours."""

    eyas = "eyas"
    vllm = "vllm"
    sglang = "sglang"


@flattened
def serve(
    *,
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="<file>",
            help="YAML with options by their names, such as 'port: 8000'; what the command line says "
            "counts.",
        ),
    ] = None,
    chosen: ModelOptions,
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template",
            metavar="<file>",
            help="A Jinja file, or the text of a template, in place of the model's own.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            help="What clients call the model; may be given several times.",
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
            "--port", help="Port to listen on; 0 takes a free one.", rich_help_panel=SERVER_PANEL
        ),
    ] = 8000,
    uds: Annotated[
        str | None,
        typer.Option(
            "--uds",
            metavar="<path>",
            help="Listen on a Unix socket at this path, for this user alone, and on no port.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            help="A key that opens the API; may be given several times. Other users of this "
            "machine can read it in the process list: prefer --api-key-file.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file", help="A file with one key a line.", rich_help_panel=SERVER_PANEL
        ),
    ] = None,
    allow_no_key: Annotated[
        bool,
        typer.Option(
            "--allow-no-key",
            help="Do not warn that an address which others reach is open without a key.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="Without a key, requests call this machine by its own name, localhost or an address; "
            "this is a name more, '*' any. May be given several times.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            help="Web pages of this origin (http://localhost:3000) may use the API; '*' is any. May be "
            "given several times.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    max_body_bytes: Annotated[
        int,
        typer.Option(
            "--max-body-bytes",
            help="Larger requests are refused with 413.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 8 * 1024 * 1024,
    max_logprobs: Annotated[
        int,
        typer.Option(
            "--max-logprobs",
            help=f"Most alternatives to a token that a request may ask the log-probabilities of, 0 to "
            f"{MAX_LOGPROBS}.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = MAX_LOGPROBS,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            help="Seconds that running answers may take to finish after SIGTERM.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 30.0,
    start_wait: Annotated[
        float,
        typer.Option(
            "--start-wait",
            help="Seconds that a request may wait for the model while it is loaded for the first time, "
            "before 503; 0 refuses it at once.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 30.0,
    stall_timeout: Annotated[
        float,
        typer.Option(
            "--stall-timeout",
            help="Seconds that the engine may go without a step, while it has work, before /ready and "
            "new requests get 503; more than its longest step takes.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 5.0,
    no_restart: Annotated[
        bool,
        typer.Option(
            "--no-restart",
            help="When the engine process dies, end with status 1 instead of starting it again.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = False,
    grammars: GrammarOptions,
    white_space: WhiteSpaceOptions,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(
            "--reasoning-parser",
            help="How the model writes its reasoning, in the peers' names (qwen3, deepseek-r1, glm45, "
            "gpt-oss, ...); chosen from the model's files by default.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            "--tool-call-parser",
            help="How the model writes tool calls, in the peers' names (qwen25, hermes, llama3_json, "
            "deepseekv3, glm45, gpt-oss, ...); chosen from the model's files by default.",
            rich_help_panel=GRAMMAR_PANEL,
        ),
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="How much is logged.")
    ] = LogLevel.info,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", help="Lines for people, or an object of JSON a line."),
    ] = LogFormat.text,
    metrics_names: Annotated[
        MetricsNames,
        typer.Option(
            "--metrics-names",
            help="Whose names /metrics has: eyas_..., or beside them those that dashboards and "
            "routers made for vLLM or SGLang read.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = MetricsNames.eyas,
    resources: ResourceOptions,
    max_waiting: Annotated[
        int,
        typer.Option(
            "--max-waiting",
            min=0,
            max=1_000_000,
            help="Answers that may wait for a place in a step before new requests get 429.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = MAX_WAITING,
    no_prefix_cache: options.NoPrefixCache = False,
    flights: options.Flights = "auto",
    peers: PeerOptions,
) -> None:
    """Serve a model over an OpenAI-style API."""
    from eyas.dialect import check_parsers
    from eyas.server.launch import serve as run_server
    from eyas.server.options import MAX_RESTARTS, ServerOptions
    from eyas.server.origins import checked_host, checked_origin

    reading: Reading = context.meta[META]
    said = in_our_words(vars(peers), chosen.model, _given(context))
    reasons = [*reading.reasons, *said.reasons]
    settings: dict[str, Any] = {
        **vars(chosen),
        **vars(drafting),
        **vars(grammars),
        **vars(white_space),
        **vars(resources),
        "no_prefix_cache": no_prefix_cache,
        "flights": flights,
        "max_waiting": max_waiting,
        "drain_timeout": drain_timeout,
        **said.settings,
    }
    max_waiting, drain_timeout = settings.pop("max_waiting"), settings.pop("drain_timeout")
    wrong: list[ValueError] = []

    def tried(make: Callable[[], Result]) -> Result | None:
        try:
            return make()
        except ValueError as error:
            wrong.append(error)
            return None

    without_cache = settings.pop("no_prefix_cache")
    engine = tried(lambda: engine_config(**settings, prefix_cache=not without_cache))
    template = tried(lambda: _template_of(chat_template))
    tried(lambda: check_parsers(reasoning_parser, None))
    tried(lambda: check_parsers(None, tool_call_parser))
    line = translated(context, said.settings, set(map(option_of_error, wrong)))
    if reasons or wrong:
        if reasons:
            reasons += unreadable_model(settings["model"], chosen.revision)
        reasons += [blamed(error, said.flags) for error in wrong]
        raise Refused(reasons, line if reading.is_of_peers else "")
    assert engine is not None
    max_queued = engine.scheduler.max_num_seqs + max_waiting
    max_requests = max_queued + SPARE_REQUESTS
    notes = [*reading.notes, *said.notes, *([f"in words of eyas: {line}"] * reading.is_of_peers)]
    server_options = ServerOptions(
        host=host,
        port=port,
        uds=uds,
        api_keys=(*(api_key or ()), *_keys_of(api_key_file)),
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
        log_level=log_level.value,
        notes=tuple(notes),
        log_format=log_format.value,
        metrics_names=metrics_names.value,
        allow_no_key=allow_no_key,
        start_wait_seconds=start_wait,
    )
    raise typer.Exit(run_server(engine, server_options))


def _template_of(given: str | None) -> str | None:
    """The text of a chat template."""
    if given is None:
        return None
    from eyas.text.template import template_text

    return template_text(given)


def _given(context: typer.Context) -> set[str]:
    """The parameters that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _keys_of(file: Path | None) -> tuple[str, ...]:
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
        raise ValueError(f"--api-key-file: {file} holds no key; write one a line")
    return keys
