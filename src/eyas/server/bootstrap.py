"""bootstrap_host, bootstrap_port, bootstrap_room: the fields by which SGLang's routers let one server
compute a prompt and another one continue it.

The router sends the same request to a prefill server and to a decode server at once. The room is a
number that names the prompt; host and port are where the prefill server is asked for it. For several
prompts, or for several choices, the fields are lists.

Promises: a field with a value that cannot be served is a RequestError that names it.
Does not know: engines, which of the two servers this one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eyas.core import MAX_CHOICES, field_error
from eyas.server.request_models import CompletionFields

ROOM, HOST, PORT = "bootstrap_room", "bootstrap_host", "bootstrap_port"
MAX_ROOM = 2**64 - 1
MAX_HOST_CHARS = 255


@dataclass(frozen=True, slots=True)
class Room:
    """Where a prompt is handed over. host, port: of the prefill server."""

    number: int
    host: str
    port: int

    @property
    def key(self) -> str:
        """The name of the prompt there."""
        return f"room {self.number}"


def has_room(body: CompletionFields) -> bool:
    """Whether a request is one of the two of a router."""
    given = [name for name in (ROOM, HOST, PORT) if getattr(body, name) is not None]
    if given and ROOM not in given:
        raise field_error(ROOM, f"is missing beside {given[0]}")
    return bool(given)


def rooms_of(body: CompletionFields, count: int) -> list[Room]:
    """Return the rooms of the `count` prompts of a request. Choices of one prompt share the first."""
    columns = [_values(body, name, count) for name in (ROOM, HOST, PORT)]
    return [_room(*values) for values in zip(*columns, strict=True)]


def _values(body: CompletionFields, name: str, count: int) -> list[Any]:
    value = getattr(body, name)
    if not isinstance(value, list):
        return [value] * count
    if len(value) == count or (count == 1 and 0 < len(value) <= MAX_CHOICES):
        return value[:count]
    raise field_error(name, "must be one value, or a list with one for each prompt")


def _room(number: Any, host: Any, port: Any) -> Room:
    if type(number) is not int or not 0 <= number <= MAX_ROOM:
        raise field_error(ROOM, f"must be a whole number from 0 to {MAX_ROOM}")
    if not isinstance(host, str) or not 0 < len(host) <= MAX_HOST_CHARS:
        raise field_error(HOST, "must be the host of the prefill server")
    if type(port) is not int or not 0 < port < 65536:
        raise field_error(
            PORT,
            "must be the --kv-port of the prefill server; routers are told it behind the "
            "server's address: --prefill URL PORT",
        )
    return Room(number, host, port)
