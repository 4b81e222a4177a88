"""`eyas serve`: an OpenAI-style API in front of one engine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eyas.cli import options
from eyas.cli.options import CACHE, DEVICE, DRAFT, MODEL, SCHEDULER, engine_config

SERVER_PANEL = "Server"
MAX_WAITING = 1024


class LogLevel(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def serve(
    model: options.Model = MODEL.path,
    revision: options.Revision = None,
    offline: options.Offline = False,
    dtype: options.Dtype = options.DtypeChoice.auto,
    max_model_len: options.MaxModelLen = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            help="What clients call the model; may be given several times.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = None,
    drafter: options.Drafter = options.DrafterChoice.root,
    draft_model: options.DraftModel = None,
    draft_tokens: options.DraftTokens = DRAFT.num_tokens,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on.", rich_help_panel=SERVER_PANEL)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", help="Port to listen on; 0 takes a free one.", rich_help_panel=SERVER_PANEL
        ),
    ] = 8000,
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
    max_body_bytes: Annotated[
        int,
        typer.Option(
            "--max-body-bytes",
            help="Larger requests are refused with 413.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 8 * 1024 * 1024,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            help="Seconds that running answers may take to finish after SIGTERM.",
            rich_help_panel=SERVER_PANEL,
        ),
    ] = 30.0,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="How much is logged.")
    ] = LogLevel.info,
    device: options.Device = DEVICE.device,
    threads: options.Threads = None,
    num_slots: options.NumSlots = None,
    memory_fraction: options.MemoryFraction = CACHE.memory_fraction,
    max_num_seqs: options.MaxNumSeqs = SCHEDULER.max_num_seqs,
    max_batch_tokens: options.MaxBatchTokens = SCHEDULER.max_batch_tokens,
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
) -> None:
    """Serve a model over an OpenAI-style API."""
    from eyas.server.launch import serve as run_server
    from eyas.server.options import ServerOptions

    config = engine_config(
        model=model,
        revision=revision,
        offline=offline,
        dtype=dtype,
        max_model_len=max_model_len,
        drafter=drafter,
        draft_model=draft_model,
        draft_tokens=draft_tokens,
        device=device,
        threads=threads,
        num_slots=num_slots,
        memory_fraction=memory_fraction,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
        prefix_cache=not no_prefix_cache,
        flights=flights,
    )
    server_options = ServerOptions(
        host=host,
        port=port,
        api_keys=(*(api_key or ()), *_keys_of(api_key_file)),
        served_model_names=tuple(served_model_name or ()),
        max_body_bytes=max_body_bytes,
        max_queued=max_num_seqs + max_waiting,
        drain_seconds=drain_timeout,
        log_level=log_level.value,
    )
    raise typer.Exit(run_server(config, server_options))


def _keys_of(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--api-key-file: cannot read {file} ({error.strerror})") from error
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not keys:
        raise ValueError(f"--api-key-file: {file} holds no key; write one a line")
    return keys
