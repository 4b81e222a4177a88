"""The protocol between `eyas.text.renderers` and a process that renders chat templates.

Promises: a request is a `RenderRequest` in JSON; a reply is one byte of `ReplyKind` and a text. Each is
preceded by its length. Any Python string arrives unchanged, lone surrogates included.
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
    """What an answer is. TEXT: what was rendered. USES: the fields of `FieldUses` in JSON, of what
    compiles. UNKNOWN: the template's source is wanted. REFUSED: what the template does instead of
    rendering. FAILED: what went wrong. FULL: there is no memory for it."""

    TEXT = 0
    USES = 1
    UNKNOWN = 2
    REFUSED = 3
    FAILED = 4
    FULL = 5


@dataclasses.dataclass(frozen=True, slots=True)
class RenderRequest:
    """place: a number that stands for the template. source: its text; None where it is compiled, if it
    still is. variables: what to render it with; None compiles it only. cpu_seconds: for all of it.
    max_chars: of the rendered text."""

    place: int
    source: str | None
    variables: dict[str, Any] | None
    cpu_seconds: float
    max_chars: int

    def encoded(self) -> bytes:
        """TypeError or ValueError for variables that are no plain data."""
        text = json.dumps([getattr(self, name) for name in self.__slots__], ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")

    @classmethod
    def decoded(cls, data: bytes) -> RenderRequest:
        return cls(*json.loads(data.decode("utf-8", "surrogatepass")))


def send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket, max_bytes: int) -> bytes:
    """What the other side has sent. EOFError where it has gone, or sends more than so much."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > max_bytes:
        raise EOFError
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(1 << 20, length - len(data)))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
