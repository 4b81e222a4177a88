"""The options of a server itself, and the settings that they are.

Does not know: the engine's options.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eyas.config import EngineConfig
from eyas.core import MAX_LOGPROBS
from eyas.logs import LogFormat

if TYPE_CHECKING:
    from eyas.server.options import ServerOptions

server_option = partial(typer.Option, rich_help_panel="Server")
MAX_WAITING = 1024
SPARE_REQUESTS, SPARE_CONNECTIONS = 1024, 2048
"""Requests being prepared, in addition to those running or queued; connections, in addition to all
requests."""


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """How a server listens, what it accepts, and what it logs."""

    served_model_name: Annotated[
        list[str] | None,
        server_option(
            help="Model name in the API. Repeat it for several names. Default: the value of --model.",
        ),
    ] = None
    host: Annotated[str, server_option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int,
        server_option(help="Port to listen on; 0 chooses a free port."),
    ] = 8000
    uds: Annotated[
        str | None,
        server_option(
            metavar="<path>",
            help="Listen on a Unix socket at this path, which only this user can open, instead of a "
            "port.",
        ),
    ] = None
    api_key: Annotated[
        list[str] | None,
        server_option(
            help="API key that requests must send. Repeat it for several keys. Other users of this "
            "machine can read it in the process list: prefer --api-key-file.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        server_option(help="File with API keys, one per line."),
    ] = None
    allow_no_key: Annotated[
        bool,
        server_option(
            "--allow-no-key",
            help="Do not warn when the server is reachable from other machines without an API key.",
        ),
    ] = False
    allowed_host: Annotated[
        list[str] | None,
        server_option(
            help="Another host name to accept in the Host header of requests without an API key; '*' "
            "accepts all. localhost, IP addresses and this machine's name are always accepted. Repeat "
            "it for several names.",
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        server_option(
            help="Origin of web pages that may use the API, such as http://localhost:3000; '*' allows "
            "all. Repeat it for several origins.",
        ),
    ] = None
    max_body_bytes: Annotated[
        int,
        server_option(
            help="Maximum size of a request body in bytes; larger requests get status 413.",
        ),
    ] = 8 * 1024 * 1024
    response_store: Annotated[
        int,
        server_option(
            min=0,
            max=2**20,
            help="MiB of memory for the responses of /v1/responses that can be read and continued; 0 "
            "stores none.",
        ),
    ] = 64
    stream_granularity: Annotated[
        Literal["step", "token"],
        server_option(
            help="How streams are cut into events: one per step, or one per token, so that the number "
            "of events does not tell how many drafted tokens were accepted. A request may choose.",
        ),
    ] = "step"
    max_logprobs: Annotated[
        int,
        server_option(
            help="Maximum number of alternatives per token whose log-probabilities a request may ask "
            f"for, 0 to {MAX_LOGPROBS}.",
        ),
    ] = MAX_LOGPROBS
    drain_timeout: Annotated[
        float,
        server_option(
            help="Time that running answers get to finish after SIGTERM, in seconds.",
        ),
    ] = 30.0
    start_wait: Annotated[
        float,
        server_option(
            help="Time that a request waits while the model is loaded for the first time, in seconds, "
            "before it gets status 503; 0 refuses it immediately.",
        ),
    ] = 30.0
    stall_timeout: Annotated[
        float,
        server_option(
            help="Time without an engine step while there are requests, in seconds, after which /ready "
            "and new requests get status 503. Must be longer than the longest step.",
        ),
    ] = 5.0
    no_playground: Annotated[
        bool,
        server_option("--no-playground", help="Serve no web page at '/'."),
    ] = False
    no_restart: Annotated[
        bool,
        server_option(
            "--no-restart",
            help="Exit with status 1 when the engine process dies, instead of restarting it.",
        ),
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Least severe messages to log."),
    ] = "info"
    log_format: Annotated[
        LogFormat,
        typer.Option(help="Format of log lines: text, or one JSON object per line."),
    ] = "text"
    metrics_names: Annotated[
        Literal["eyas", "vllm", "sglang"],
        server_option(
            help="Metric names at /metrics: eyas_... alone, or in addition the names that dashboards "
            "and routers for vLLM or SGLang read.",
        ),
    ] = "eyas"
    otlp_traces_endpoint: Annotated[
        str | None,
        server_option(
            metavar="<url>",
            help="OpenTelemetry collector that gets a span of each request, without its content: OTLP "
            "over HTTP, such as http://localhost:4318. Needs the extra 'otel'.",
        ),
    ] = None
    max_waiting: Annotated[
        int,
        server_option(
            min=0,
            max=1_000_000,
            help="Maximum number of answers in the queue; beyond it new requests get status 429.",
        ),
    ] = MAX_WAITING

    def options(self, engine: EngineConfig, **others: Any) -> ServerOptions:
        """Return the server's settings. others: fields of `ServerOptions` that no option here sets.

        Raises ValueError that names an option.
        """
        from eyas.server.http.origins import checked_host, checked_origin
        from eyas.server.options import MAX_RESTARTS, ServerOptions

        max_queued = engine.scheduler.most_seats + self.max_waiting
        max_requests = max_queued + SPARE_REQUESTS
        return ServerOptions(
            host=self.host,
            port=self.port,
            uds=self.uds,
            api_keys=(*(self.api_key or ()), *read_keys(self.api_key_file)),
            allowed_hosts=tuple(map(checked_host, self.allowed_host or ())),
            cors_origins=tuple(map(checked_origin, self.cors_origin or ())),
            served_model_names=tuple(self.served_model_name or ()),
            max_body_bytes=self.max_body_bytes,
            max_queued=max_queued,
            max_requests=max_requests,
            max_connections=max_requests + SPARE_CONNECTIONS,
            max_top_logprobs=self.max_logprobs,
            drain_seconds=self.drain_timeout,
            stall_seconds=self.stall_timeout,
            max_restarts=0 if self.no_restart else MAX_RESTARTS,
            playground=not self.no_playground,
            log_level=self.log_level,
            log_format=self.log_format,
            metrics_names=self.metrics_names,
            allow_no_key=self.allow_no_key,
            start_wait_seconds=self.start_wait,
            response_store_bytes=self.response_store * 2**20,
            stream_granularity=self.stream_granularity,
            **others,
        )


def read_keys(file: Path | None) -> tuple[str, ...]:
    """Return the API keys in a file, one per line; none without a file."""
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
        raise ValueError(f"--api-key-file: {file} contains no key; write one per line")
    return keys
