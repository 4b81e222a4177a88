"""Llama 3.x: no reasoning; the output is an answer or calls.

    {"name": "f", "parameters": {...}}

<|python_tag|> may stand before a call, and "; " separates calls. If the request asks for an answer of
some form, a call must begin with <|python_tag|>, because the answer may be JSON as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.json_text import read_call
from eyas.dialect.reasoning import marker
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import ToolFormat, arguments, one_of
from eyas.grammar import Choice, Concat, FreeText, Literal, Marker, Node, Repeat

_SEPARATOR = Marker(";")
_BEGINNING = Marker('{"name": ')


class LlamaCalls(ToolFormat):
    """Calls as JSON objects that begin with their name."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.tag: Marker = marker(tokenizer, "<|python_tag|>")

    @property
    def openings(self) -> tuple[Marker, ...]:
        return (self.tag,)

    def calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        return Concat((self.tag, _objects(tools, several)))

    def only_calls(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        return Concat((Repeat(self.tag, 0, 1), _objects(tools, several)))

    def text_or_calls(
        self, tools: Sequence[ToolSpec], several: bool, without: tuple[Marker, ...], gap: str
    ) -> Node:
        excluded = (*without, _BEGINNING, *((self.tag,) if self.tag.is_text else ()))
        beginnings = ("", gap) if gap else ("",)
        options: list[Node] = [FreeText(without=excluded)]
        for beginning in beginnings:
            options.append(_objects(tools, several, beginning))
            tagged = Concat((self.tag, _objects(tools, several)))
            options.append(Concat((Literal(beginning), tagged)) if beginning else tagged)
        return Choice(tuple(options))

    def read(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec], *, answers: bool
    ) -> Reading[None]:
        found = yield from reader.at(self.tag)
        if found is None and not answers:
            found = yield from reader.at(_BEGINNING)
            reader.unread("" if found is None else _BEGINNING.text)
        if found is not None:
            yield from _read_calls(reader, writer)
        yield from reader.until((), writer.content)


def _objects(tools: Sequence[ToolSpec], several: bool, beginning: str = "") -> Node:
    first = one_of([_object(tool, beginning) for tool in tools])
    if not several:
        return first
    following = one_of([_object(tool, "; ") for tool in tools])
    return Concat((first, Repeat(following)))


def _object(tool: ToolSpec, beginning: str) -> Node:
    name = json.dumps(tool.name, ensure_ascii=False)
    begin = Literal(f'{beginning}{_BEGINNING.text}{name}, "parameters": ')
    return Concat((begin, arguments(tool), Literal("}")))


def _read_calls(reader: StreamReader, writer: Writer) -> Reading[None]:
    """Read calls up to other text; text that is no call is content."""
    while True:
        num_calls = writer.num_calls
        reader.record()
        yield from reader.white()
        is_whole = yield from read_call(reader, writer)
        text = reader.recorded()
        if writer.num_calls == num_calls:
            if not reader.is_at_end:
                writer.content(text)
            return
        if not is_whole:
            yield from reader.until((), ignore)
            return
        yield from reader.white()
        if (yield from reader.at(_SEPARATOR)) is None:
            return
