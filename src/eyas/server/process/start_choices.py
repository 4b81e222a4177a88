"""What was chosen at the start of a server, as a table and as a record.

Promises: a row for each choice: name, value, seconds, reason.
Does not know: how anything is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eyas.config import StartChoice
from eyas.server.options import ServerOptions

MAX_VALUE_WIDTH = 44
"""Longer values push their reason to the right."""


def server_choices(options: ServerOptions) -> list[StartChoice]:
    """Return the limits of the HTTP side, and who may use it."""
    requests = f"{options.max_requests:,} requests, {options.max_connections:,} connections"
    body = f"{options.max_body_bytes / 2**20:g} MiB"
    num_keys = len(options.api_keys)
    return [
        StartChoice("queue", f"{options.max_queued:,} answers", "--max-num-seqs and --max-waiting"),
        StartChoice("at once", requests, "the queue, and the limit of open files"),
        StartChoice("body", f"{body} at most", "--max-body-bytes"),
        StartChoice(
            "API keys",
            str(num_keys or "none"),
            "--api-key-file, --api-key" if num_keys else "no --api-key-file or --api-key",
        ),
    ]


def as_table(choices: Sequence[StartChoice]) -> list[str]:
    """Return the lines of a table."""
    names = max((len(choice.name) for choice in choices), default=0)
    values = [len(choice.value) for choice in choices if len(choice.value) <= MAX_VALUE_WIDTH]
    width = max(values, default=0)
    return [
        f"{choice.name:<{names}}  {choice.value:<{width}}  {_time(choice.seconds):>7}  {choice.reason}"
        for choice in choices
    ]


def as_fields(choices: Sequence[StartChoice]) -> dict[str, Any]:
    """Return the fields of a structured log record."""
    return {"choices": [msgspec.to_builtins(choice) for choice in choices]}


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"
