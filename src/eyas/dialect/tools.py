"""The interface of formats of tool calls, and the parts that they share.

Promises: a call that has begun is well-formed; text before calls never spells the beginning of a call.
Does not know: the markers of a family.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.reasoning import marker
from eyas.dialect.segment import WHITE, Reading, StreamReader, Writer
from eyas.grammar import Choice, Concat, FreeText, Json, Literal, Marker, Node, Repeat


class ToolFormat(ABC):
    """A format of tool calls."""

    @property
    @abstractmethod
    def openings(self) -> tuple[Marker, ...]:
        """The markers that begin a call if the output may be an answer instead."""

    @abstractmethod
    def calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        """Return the grammar of one call (or more if `several`), as an alternative to an answer."""

    def only_calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        """Return the grammar of calls without an alternative."""
        return self.calls(tools, several)

    @abstractmethod
    def text_or_calls(
        self, tools: Sequence[ToolSpec], several: bool, without: tuple[Marker, ...], gap: str
    ) -> Node:
        """Return the grammar of free text without the markers `without`, calls, or both. gap: text that
        may precede calls and is not content."""

    @abstractmethod
    def read(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec], *, answers: bool
    ) -> Reading[None]:
        """Read to the end of the stream. answers: the stream has either calls or an answer."""


class MarkedCalls(ToolFormat):
    """A format in which a marker begins calls."""

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
        """Return the grammar of the output after the marker."""

    @abstractmethod
    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        """Read to the end of the calls after the marker, or to the first malformed part."""

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
        """Read calls after the marker. If there are none, the text is content."""
        num_calls = writer.num_calls
        reader.record()
        yield from self.read_after_begin(reader, writer, tools)
        text = reader.recorded()
        if writer.num_calls > num_calls:
            yield from reader.white()
        elif not reader.is_at_end:
            writer.content(self.begin.text + text)


class CallsInTags(MarkedCalls):
    """A format in which two tags enclose each call. gap: the text between calls."""

    tags: tuple[str, str] = ("<tool_call>", "</tool_call>")

    def __init__(self, tokenizer: Vocabulary, gap: str = "\n") -> None:
        begin, end = self.tags
        self.begin: Marker = marker(tokenizer, begin)
        self.end: Marker = marker(tokenizer, end)
        self._gap = gap

    @abstractmethod
    def call(self, tool: ToolSpec) -> Node:
        """Return the grammar of a call between the tags."""

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = Concat((one_of([self.call(tool) for tool in tools]), self.end))
        if not several:
            return call
        return Concat((call, Repeat(Concat((*literal(self._gap), self.begin, call)))))


def arguments(tool: ToolSpec) -> Json:
    """Return the grammar of a call's arguments as JSON."""
    return Json(json.dumps(parameters(tool), ensure_ascii=False), lenient=not tool.strict)


def parameters(tool: ToolSpec) -> dict:
    """Return the schema of a call's arguments: of an object, without properties by default."""
    schema = tool.parameters
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf"}:
        return schema
    return {"type": "object", **schema}


def literal(text: str) -> tuple[Literal, ...]:
    """Return the parts of a sequence that are this text: none if it is empty."""
    return (Literal(text),) if text else ()


def one_of(options: Sequence[Node]) -> Node:
    """Return a choice of the options, or a single option itself."""
    assert options
    return options[0] if len(options) == 1 else Choice(tuple(options))
