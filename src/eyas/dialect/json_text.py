"""Reading JSON from a stream, in pieces and unchanged.

Promises: the pieces of a value are slices of the stream. Malformed text raises no error; it ends the
reading.
Does not know: schemas, and the grammar of JSON beyond brackets and strings.
"""

from __future__ import annotations

import json
import re

from eyas.dialect.segment import WHITE, Reading, Sink, StreamReader, Writer, ignore
from eyas.grammar import Marker

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_OPEN, _CLOSE, _COLON, _COMMA = (Marker(text) for text in "{}:,")


class _Nesting:
    """The nesting of brackets and strings in one array, object or string."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self.is_escaped = False

    def end_in(self, text: str) -> int | None:
        """Continue with `text` and return how many of its characters belong to the value; None if the
        value does not end in it."""
        place = 0
        while place < len(text):
            if self.is_escaped:
                self.is_escaped = False
                place += 1
                continue
            found = (_IN_STRING if self.in_string else _STRUCTURE).search(text, place)
            if found is None:
                return None
            place = found.end()
            match found.group():
                case "\\":
                    self.is_escaped = True
                case '"':
                    self.in_string = not self.in_string
                case "{" | "[":
                    self.depth += 1
                case _:
                    self.depth -= 1
            if self.depth <= 0 and not self.in_string:
                return place
        return None


def read_value(reader: StreamReader, sink: Sink) -> Reading[bool]:
    """Pass one value to the sink. False if it is incomplete or missing."""
    head = yield from reader.peek()
    if not isinstance(head, str):
        return False
    if head[0] not in '{["':
        return (yield from _read_scalar(reader, sink))
    nesting = _Nesting()
    while isinstance(head, str):
        end = nesting.end_in(head)
        sink(reader.take(len(head) if end is None else end))
        if end is not None:
            return True
        head = yield from reader.peek()
    return False


def _read_scalar(reader: StreamReader, sink: Sink) -> Reading[bool]:
    """Read a number or a word, up to the first character that cannot belong to it."""
    has_text = False
    while True:
        head = yield from reader.peek()
        if not isinstance(head, str):
            return False
        found = re.search(rf'[,:"{{}}\[\]<{WHITE}]', head)
        length = found.start() if found else len(head)
        if length:
            sink(reader.take(length))
            has_text = True
        if found:
            return has_text


def read_string(reader: StreamReader) -> Reading[str | None]:
    """Read a string and return its value; None if it is incomplete, malformed or missing."""
    head = yield from reader.peek()
    if not isinstance(head, str) or head[0] != '"':
        return None
    pieces: list[str] = []
    if not (yield from read_value(reader, pieces.append)):
        return None
    try:
        text = json.loads("".join(pieces), strict=False)
    except ValueError:
        return None
    return text.encode("utf-8", "replace").decode()


def read_call(reader: StreamReader, writer: Writer) -> Reading[bool]:
    """Read one call, {"name": ..., "arguments": {...}} (or "parameters"), its keys in any order.

    False if it is incomplete or malformed. The call is reported as soon as its name is known.
    """
    if (yield from reader.at(_OPEN)) is None:
        return False
    name: str | None = None
    early: list[str] = []
    has_arguments = False
    yield from reader.white()
    while True:
        key = yield from read_string(reader)
        yield from reader.white()
        if key is None or (yield from reader.at(_COLON)) is None:
            return False
        yield from reader.white()
        if key == "name" and name is None:
            name = yield from read_string(reader)
            if name is None:
                return False
            writer.call(name)
            writer.arguments("".join(early))
        else:
            sink: Sink = ignore
            if key in ("arguments", "parameters") and not has_arguments:
                has_arguments = True
                sink = early.append if name is None else writer.arguments
            if not (yield from read_value(reader, sink)):
                return False
        yield from reader.white()
        if (yield from reader.at(_COMMA)) is not None:
            yield from reader.white()
            continue
        if (yield from reader.at(_CLOSE)) is None:
            return False
        if name is not None and not has_arguments:
            writer.arguments("{}")
        return name is not None
