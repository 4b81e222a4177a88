"""The protocol between `eyas.text.renderers` and a process that renders chat templates.

Promises: a request is a `RenderRequest` in JSON; a reply is one byte of `ReplyKind` and a text. Each
is preceded by its length. Any Python string arrives unchanged, lone surrogates included.
Does not know: templates.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
from enum import IntEnum
from typing import Any

_LENGTH = struct.Struct("<Q")


class ReplyKind(IntEnum):
    """The kinds of replies, and the text of each.

    TEXT: the rendered text. USES: the fields of `FieldUses` in JSON, after compiling only.
    UNKNOWN: nothing; the template is not compiled here, send its source. REFUSED: why the template
    refused to render. FAILED: the error. FULL: nothing; there is not enough memory.
    """

    TEXT = 0
    USES = 1
    UNKNOWN = 2
    REFUSED = 3
    FAILED = 4
    FULL = 5


@dataclasses.dataclass(frozen=True, slots=True)
class RenderRequest:
    """A request to compile or render a template.

    template_id: the number of the template. source: its text; None if the process should have it
    compiled already. variables: those to render it with; None only compiles it. cpu_seconds: the
    limit of processor time for compiling and rendering. max_chars: the limit of the rendered text.
    """

    template_id: int
    source: str | None
    variables: dict[str, Any] | None
    cpu_seconds: float
    max_chars: int

    def encoded(self) -> bytes:
        """Return the request in JSON. TypeError or ValueError if the variables are not plain data."""
        text = json.dumps([getattr(self, name) for name in self.__slots__], ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")

    @classmethod
    def decoded(cls, data: bytes) -> RenderRequest:
        return cls(*json.loads(data.decode("utf-8", "surrogatepass")))


def send(connection: socket.socket, data: bytes) -> None:
    """Send one message."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket, max_bytes: int) -> bytes:
    """Receive one message. EOFError if the connection is closed, or the message exceeds `max_bytes`."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > max_bytes:
        raise EOFError
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(1 << 20, length - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
