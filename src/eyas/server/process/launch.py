"""Starts, drains and ends a server: the HTTP process and its engine process.

Promises: HTTP answers immediately, /ready once the engine is ready. SIGTERM lets running answers
finish; a second one ends the process at once. If the engine cannot be started, or not again, the exit
status is 1.
Does not know: routes, engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec
import uvicorn

from eyas import logs
from eyas.children import freeze_loaded
from eyas.config import EngineConfig
from eyas.core import DraftCounts
from eyas.server.app import create_app
from eyas.server.http.protocol import BoundedProtocol, Connections
from eyas.server.options import ServerOptions
from eyas.server.process.client import EngineClient, EngineProcess
from eyas.server.process.listening import Server
from eyas.server.process.restarts import RestartPolicy
from eyas.server.process.socket_file import SocketFile
from eyas.server.process.start_choices import as_fields, as_table, server_choices
from eyas.server.process.supervisor import EngineSupervisor
from eyas.server.service import Service

if TYPE_CHECKING:
    from eyas.server.telemetry.traces import Traces

log = logging.getLogger("eyas.server")

REPORT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 30
SHUTDOWN_SECONDS = 2.0
SPARE_FILES = 128
"""File descriptors reserved for everything except connections; half of all if the limit is low."""
MIN_SPARE_FILES = 32
"""Minimum of these beyond what is open at the start: 14 permanent ones, and temporary ones for
starting an engine process, importing modules and so on."""
MIN_CONNECTIONS = 4


def serve(
    config: EngineConfig,
    options: ServerOptions,
    worded: Callable[[str], str] = str,
    *,
    command: Sequence[str] | None = None,
) -> int:
    """Serve until the process is told to stop. Return its exit status.

    worded: returns an error text with the names by which the user gave the settings. command: the
    engine process's command; by default `python -m eyas.engine.worker`.
    """
    traces = None if options.otlp_traces_endpoint is None else _traces(options.otlp_traces_endpoint)
    logs.configure(options.log_level, options.log_format)
    for note in options.notes:
        log.info("%s", note)
    host, port = options.host, options.port
    try:
        opened = _listen(host, port) if options.uds is None else SocketFile(options.uds)
    except OSError as error:
        reason = error.strerror
        log.error("cannot listen on %s:%d: %s; choose another --host or --port", host, port, reason)
        return 1
    with opened as listener:
        if not (options.api_keys or options.allow_no_key) and is_reached_by_others(listener):
            log.warning(
                "%s:%d is open without a key to everybody who can reach this machine: they can use "
                "the model, fill its queue and read /metrics. Set --api-key-file, or listen on "
                "127.0.0.1; --allow-no-key silences this warning, if a firewall or proxy restricts "
                "access",
                host,
                listener.getsockname()[1],
            )
        fitted = fit_to_open_files(options)
        return asyncio.run(_serve(config, fitted, listener, worded, command, traces))


def _traces(endpoint: str) -> Traces:
    """Return what exports spans. ValueError if its libraries are not installed."""
    try:
        from eyas.server.telemetry.traces import Traces
    except ModuleNotFoundError as error:
        raise ValueError(
            f"otlp_traces_endpoint: needs a library that is missing ({error.name}); install the extra: "
            "pip install 'eyas[otel]'"
        ) from error
    return Traces.to_collector(endpoint)


def is_reached_by_others(listener: socket.socket) -> bool:
    """Whether the socket listens at an address that other machines can reach."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    address = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_loopback


def fit_to_open_files(options: ServerOptions) -> ServerOptions:
    """Return the options with as many connections as the limit of open files allows.

    Raises the process's soft limit if possible. ValueError if the limit is too low for a server.
    """
    num_files = options.max_connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= num_files:
        return options
    num_open = _num_open_files()
    num_connections = soft - min(SPARE_FILES, max(num_open + MIN_SPARE_FILES, soft // 2))
    if num_connections < MIN_CONNECTIONS:
        raise ValueError(
            f"this process may have {soft} files open, which is too few for a server: allow it "
            f"{num_open + MIN_SPARE_FILES + MIN_CONNECTIONS} or more with ulimit -n"
        )
    num_requests = max(1, min(options.max_requests, num_connections * 3 // 4))
    log.warning(
        "only %d requests at once instead of %d: this process may have %d files open; raise the limit "
        "with ulimit -n",
        num_requests,
        options.max_requests,
        soft,
    )
    return msgspec.structs.replace(
        options, max_connections=num_connections, max_requests=num_requests
    )


def _num_open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return MIN_SPARE_FILES  # this system does not tell


def new_server(service: Service, on_signal: Callable[[int], None]) -> Server:
    """Create the uvicorn server of our application."""
    options = service.options
    connections = Connections(options.max_connections)
    config = uvicorn.Config(
        create_app(service),
        http=partial(  # pyrefly: ignore
            BoundedProtocol,
            connections=connections,
            max_header_bytes=options.max_header_bytes,
            write_timeout_seconds=options.write_timeout_seconds,
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(SHUTDOWN_SECONDS)),
    )
    return Server(config, connections, on_signal)


def new_supervisor(
    config: EngineConfig, options: ServerOptions, command: Sequence[str] | None = None
) -> EngineSupervisor:
    """Create what keeps the server's engine running. command: of the engine process."""
    return EngineSupervisor(
        partial(
            EngineProcess,
            config,
            max_queued=options.max_queued,
            max_queued_each=options.max_queued_each,
            log_level=options.log_level,
            log_format=options.log_format,
            command=command,
        ),
        RestartPolicy(options.max_restarts),
    )


async def _serve(
    config: EngineConfig,
    options: ServerOptions,
    listener: socket.socket,
    worded: Callable[[str], str],
    command: Sequence[str] | None,
    traces: Traces | None,
) -> int:
    client = new_supervisor(config, options, command)
    service = Service(config, options, client)
    if traces is not None:
        service.reporters.append(traces.report)
    loop = asyncio.get_running_loop()
    status = 0
    draining: asyncio.Task[None] | None = None

    async def drain() -> None:
        await service.drain()
        server.should_exit = True

    def begin_draining() -> None:
        nonlocal draining
        if draining is None:
            num, seconds = service.num_running, options.drain_seconds
            patience = f": {num} running answers have {seconds:.0f} s to finish" if num else ""
            log.info("shutting down%s", patience)
            client.disable_restarts()
            draining = asyncio.create_task(drain())

    def on_signal(number: int) -> None:
        if service.is_draining:
            client.kill()
            os._exit(128 + number)
        service.is_draining = True
        loop.call_soon_threadsafe(begin_draining)

    async def run_engine() -> None:
        nonlocal status
        try:
            reason = await client.run(partial(on_ready, service, url))
        except Exception:
            log.exception("the supervisor of the engine failed")
            reason = "the server failed"
        if draining is None:
            status = 1
            log.error("%s", worded(reason))
        service.end_start()
        await service.wait_for_answers(SHUTDOWN_SECONDS)
        server.should_exit = True

    url = _url_of(listener)
    server = new_server(service, on_signal)
    tasks = [asyncio.create_task(run_engine()), asyncio.create_task(_log_throughput(client))]
    log.info("listening on %s; the model is being loaded", url)
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        service.close()
        if traces is not None:
            await asyncio.to_thread(traces.close)
    log.info("ended")
    return status


async def on_ready(service: Service, url: str) -> None:
    """Load the text processor of the ready engine's model, and log what was chosen. ValueError if it
    cannot be loaded."""
    await service.load_text_processor()
    freeze_loaded()
    info = service.client.info
    if info is not None:
        choices = [*info.choices, *service.text_processor.choices, *server_choices(service.options)]
        log.info(
            "ready: %s at %s",
            service.names[0],
            url,
            extra={"lines": as_table(choices), "fields": as_fields(choices)},
        )


async def _log_throughput(client: EngineClient) -> None:
    """Log the throughput every REPORT_SECONDS while something runs."""
    before = client.health().stats
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        stats = client.health().stats
        num_output = stats.num_output_tokens - before.num_output_tokens
        num_prompt = stats.num_prompt_tokens - before.num_prompt_tokens
        if num_output or num_prompt or stats.num_running:
            log.info(
                "running %d, waiting %d, output %.1f tokens/s, prompt %.1f tokens/s, cache %.0f %%%s",
                stats.num_running,
                stats.num_waiting,
                num_output / REPORT_SECONDS,
                num_prompt / REPORT_SECONDS,
                100 * stats.cache_usage,
                draft_statistics(before.drafts, stats.drafts),
            )
        before = stats


def draft_statistics(before: DraftCounts, now: DraftCounts) -> str:
    """Return statistics of the drafts between two counts, for the log: the mean number of tokens of a
    step with a draft, and the share of these steps that accepted a token at each depth. Empty without
    drafts."""
    num_drafts = now.num_drafts - before.num_drafts
    if num_drafts <= 0:
        return ""
    pairs = zip_longest(now.accepted_by_depth, before.accepted_by_depth, fillvalue=0)
    rates = [(later - earlier) / num_drafts for later, earlier in pairs]
    by_position = " ".join(f"{rate:.2f}" for rate in rates)
    return f", mean accepted length {1 + sum(rates):.2f}, by position {by_position or 'none'}"


def _url_of(listener: socket.socket) -> str:
    """Return the URL at which the socket listens."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)
