"""Reading JSON out of a stream, piece by piece and as it was written.

Promises: a value's pieces are raw slices of the stream; nothing malformed raises, it ends the reading.
Does not know: schemas; a value's brackets and strings are followed, not its grammar.
"""

from __future__ import annotations

import json
import re

from eyas.dialect.segment import WHITE, Reading, Sink, StreamReader, Writer
from eyas.grammar import Marker

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_OPEN, _CLOSE, _COLON, _COMMA = (Marker(text) for text in "{}:,")


class _Nesting:
    """Follows the brackets and strings of one array, object or string."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self.is_escaped = False

    def end_in(self, text: str) -> int | None:
        """How many characters of `text`, which goes on from the last, belong to the value; None
        where it goes on after it."""
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
    """Passes one value on; False where it is cut off or there is none."""
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
    """A number or a word: all up to what cannot belong to one."""
    is_some = False
    while True:
        head = yield from reader.peek()
        if not isinstance(head, str):
            return False
        found = re.search(rf'[,:"{{}}\[\]<{WHITE}]', head)
        length = found.start() if found else len(head)
        if length:
            sink(reader.take(length))
            is_some = True
        if found:
            return is_some


def read_string(reader: StreamReader) -> Reading[str | None]:
    """What a string says; None where it is cut off or there is none."""
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
    """One call, {"name": ..., "arguments": {...}} ("parameters" means the same), its keys in any order;
    False where it is cut off or malformed. It is a call from where its name is known."""
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
            sink: Sink = _ignore
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


def _ignore(text: str) -> None:
    """What nobody wants."""
