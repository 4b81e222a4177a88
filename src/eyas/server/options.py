"""The settings of the HTTP process.

Promises: plain frozen data within bounds. Does not know: the engine's settings (`eyas.config`).
"""

from __future__ import annotations

from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from eyas.core import MAX_LOGPROBS
from eyas.dialect import check_parsers
from eyas.logs import LogFormat
from eyas.server.fields import MAX_NAME_CHARS
from eyas.server.http.origins import checked_host, checked_origin
from eyas.server.telemetry.metrics_format import MetricsNames

MAX_RESTARTS = 5
MAX_LARGE_BODIES = 32
"""How many bodies of the largest size may be in memory at once."""
StreamGranularity = Literal["step", "token"]
"""How a stream is cut into events: one for all the tokens of a step, or one for each token."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server.

    host, port: the address to listen at. uds: the path of a Unix socket to listen at instead.
    api_keys: each of them gives access to every route; empty requires no key.
    allowed_hosts: further names of this machine, for requests without a key; "*" is any name.
    cors_origins: origins whose web pages may use the server; "*" is any origin.
    served_model_names: the names that clients may send, the first of which answers have; empty is the
    model's path. max_body_bytes, max_header_bytes: limits of a request.
    max_connections: beyond them the connection that has been without a complete request for the longest
    time is closed. max_requests: running requests with a complete body, before 429.
    max_queued: choices in the engine, running or waiting, before 429.
    max_held_logprobs: log-probabilities of an answer that is held in memory before it is sent.
    max_top_logprobs: log-probabilities per token that a request may ask for.
    drain_seconds: how long running answers may take to finish after SIGTERM.
    write_timeout_seconds: a client that reads nothing for so long is cut off.
    read_timeout_seconds: the limit of the time in which a body arrives.
    text_timeout_seconds: the limit of waiting for the preparation of a request, and also of preparing
    it. stall_seconds: /ready is 503 if the engine has made no step for so long while it had work, or
    has sent no heartbeat for so long. start_wait_seconds: how long a request waits for the first
    engine, before 503. allow_no_key: log no warning if other machines can use the server without a
    key. metrics_names: the engine whose names /metrics has beside ours. log_format: text, or one JSON
    object per line. otlp_traces_endpoint: the URL of an OpenTelemetry collector that gets a span of
    each request; None sends none. max_restarts: restarts of the engine process in a row
    (`eyas.server.process.supervisor`). stream_granularity: that of streams whose request has none.
    response_store_bytes, response_store_count, response_store_seconds: how much, how many and for how
    long answers of /v1/responses are kept in memory (`responses.store`); 0 bytes keeps none.
    reasoning_parser, tool_call_parser: the formats of reasoning and tool calls, by their names in
    vLLM and SGLang; None detects them from the checkpoint. chat_template: the text of a template that
    replaces the model's own. default_chat_template_kwargs: its variables in requests that leave them
    open. playground: whether `/` is a web page (`eyas.server.playground`). notes:
    logged at the start.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    max_connections: int = 4096
    max_requests: int = 2048
    max_queued: int = 1024
    max_held_logprobs: int = 1_000_000
    max_top_logprobs: int = MAX_LOGPROBS
    drain_seconds: float = 30.0
    write_timeout_seconds: float = 60.0
    read_timeout_seconds: float = 60.0
    text_timeout_seconds: float = 60.0
    stall_seconds: float = 5.0
    max_restarts: int = MAX_RESTARTS
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    chat_template: str | None = None
    default_chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    playground: bool = True
    notes: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: LogFormat = "text"
    metrics_names: MetricsNames = "eyas"
    otlp_traces_endpoint: str | None = None
    allow_no_key: bool = False
    start_wait_seconds: float = 30.0
    stream_granularity: StreamGranularity = "step"
    response_store_bytes: int = 64 * 1024 * 1024
    response_store_count: int = 4096
    response_store_seconds: float = 86_400.0

    @property
    def max_queued_each(self) -> int:
        """The limit of choices of one client: with several keys, a quarter of the queue is for the
        others."""
        several = len(self.api_keys) > 1
        return max(1, self.max_queued * 3 // 4) if several else self.max_queued

    @property
    def max_body_memory(self) -> int:
        """The limit of the bytes of all bodies that are being read, and of all that wait to be
        prepared."""
        return MAX_LARGE_BODIES * self.max_body_bytes

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 0, 65535),
            ("max_body_bytes", 1024, 2**30),
            ("max_header_bytes", 1024, 2**20),
            ("max_connections", 2, 2_000_000),
            ("max_requests", 1, 2_000_000),
            ("max_queued", 1, 1_000_000),
            ("max_held_logprobs", 1000, 1_000_000_000),
            ("max_top_logprobs", 0, MAX_LOGPROBS),
            ("drain_seconds", 0, 86_400),
            ("write_timeout_seconds", 0.1, 86_400),
            ("read_timeout_seconds", 0.1, 86_400),
            ("text_timeout_seconds", 0.1, 86_400),
            ("stall_seconds", 1, 86_400),
            ("start_wait_seconds", 0, 86_400),
            ("max_restarts", 0, 1000),
            ("response_store_bytes", 0, 2**40),
            ("response_store_count", 1, 10_000_000),
            ("response_store_seconds", 1, 86_400 * 365),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: must be between {low} and {high}, not {value}")
        if self.max_requests >= self.max_connections:
            raise ValueError("max_requests: must be below max_connections, which probes need too")
        if any(not key or not key.isprintable() for key in self.api_keys):
            raise ValueError("api_keys: must not be empty and have printable characters only")
        for name in self.served_model_names:
            if not (0 < len(name) <= MAX_NAME_CHARS and name.isprintable()):
                raise ValueError(
                    f"served_model_names: must have 1 to {MAX_NAME_CHARS} printable characters, not "
                    f"{name[:MAX_NAME_CHARS]!r}"
                )
        for name, check in (("allowed_hosts", checked_host), ("cors_origins", checked_origin)):
            for value in getattr(self, name):
                if check(value) != value:
                    raise ValueError(f"{name}: write {check(value)!r} for {value!r}")
        check_parsers(self.reasoning_parser, self.tool_call_parser)
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError("log_level: must be debug, info, warning or error")
        if self.log_format not in get_args(LogFormat):
            raise ValueError("log_format: must be text or json")
        if self.metrics_names not in get_args(MetricsNames):
            raise ValueError("metrics_names: must be eyas, vllm or sglang")
        if self.stream_granularity not in get_args(StreamGranularity):
            raise ValueError("stream_granularity: must be step or token")
        if self.otlp_traces_endpoint is not None:
            endpoint = traces_endpoint(self.otlp_traces_endpoint)
            if endpoint != self.otlp_traces_endpoint:
                raise ValueError(
                    f"otlp_traces_endpoint: write {endpoint!r} for {self.otlp_traces_endpoint!r}"
                )


def traces_endpoint(url: str) -> str:
    """Return the URL of a collector's route for traces: without a path it is the usual one. ValueError
    if it is not a URL of OTLP over HTTP."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that cannot be read
        parts, is_valid = urlsplit(""), False
    if not is_valid:
        raise ValueError(
            f"otlp_traces_endpoint: {url!r} is not the URL of a collector; give one for OTLP over "
            "HTTP, such as http://localhost:4318/v1/traces"
        )
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1/traces"
