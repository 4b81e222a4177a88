"""What all families' tool calls have in common.

Promises: once a call has begun it is well-formed; text before calls never spells what begins one.
Does not know: any family's markers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from eyas.dialect.base import ToolSpec
from eyas.dialect.segment import WHITE, Reading, StreamReader, Writer
from eyas.grammar import Choice, Concat, FreeText, Json, Marker, Node


class ToolFormat(ABC):
    """How calls are written."""

    @property
    @abstractmethod
    def openings(self) -> tuple[Marker, ...]:
        """What begins a call where an answer of another form may stand instead."""

    @abstractmethod
    def calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        """One call, or more where `several`, where an answer of another form may stand instead."""

    def only_calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        """The same where nothing else may stand."""
        return self.calls(tools, several)

    @abstractmethod
    def text_or_calls(
        self, tools: Sequence[ToolSpec], several: bool, without: tuple[Marker, ...], gap: str
    ) -> Node:
        """Free text that spells none of `without`, calls, or both. gap: what may stand before calls
        even where text may not (it is not content)."""

    @abstractmethod
    def read(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec], *, answers: bool
    ) -> Reading[None]:
        """Reads to the end of the stream. answers: it is calls, or an answer without any."""


class MarkedCalls(ToolFormat):
    """A format in which one marker begins calls."""

    begin: Marker

    @property
    def openings(self) -> tuple[Marker, ...]:
        return (self.begin,)

    def calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        return Concat((self.begin, self.after_begin(tools, several)))

    def text_or_calls(
        self, tools: Sequence[ToolSpec], several: bool, without: tuple[Marker, ...], gap: str
    ) -> Node:
        text = FreeText(without=(*without, self.begin) if self.begin.is_text else without)
        before = FreeText(until=(self.begin,), without=without)
        return Choice((text, Concat((before, self.after_begin(tools, several)))))

    @abstractmethod
    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        """The rest of the output once the marker came."""

    @abstractmethod
    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        """Reads to the end of what the marker began, or to where it is malformed."""

    def read(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec], *, answers: bool
    ) -> Reading[None]:
        if answers:
            if (yield from reader.at(self.begin)) is None:
                yield from reader.until((), writer.content)
                return
            yield from self._read_begun(reader, writer, tools)
        while (yield from reader.until((self.begin,), writer.content, trim=WHITE)) is not None:
            yield from self._read_begun(reader, writer, tools)

    def _read_begun(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        """What is no call at all is content."""
        num_calls = writer.num_calls
        reader.record()
        yield from self.read_after_begin(reader, writer, tools)
        text = reader.recorded()
        if writer.num_calls > num_calls:
            yield from reader.white()
        elif not reader.is_at_end:
            writer.content(self.begin.text + text)


def arguments(tool: ToolSpec) -> Json:
    """The JSON of a call's arguments."""
    return Json(json.dumps(parameters(tool), ensure_ascii=False), lenient=not tool.strict)


def parameters(tool: ToolSpec) -> dict:
    """The schema of a call's arguments: of an object, and an empty one where nothing is said."""
    schema = tool.parameters
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf"}:
        return schema
    return {"type": "object", **schema}


def one_of(options: Sequence[Node]) -> Node:
    """A choice, where there is one to make."""
    assert options
    return options[0] if len(options) == 1 else Choice(tuple(options))


def ignore(text: str) -> None:
    """A sink for what is no part of the output's meaning."""
