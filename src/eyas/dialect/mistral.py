"""Mistral: calls after [TOOL_CALLS], reasoning between [THINK] and [/THINK] where a model has it.

As far as version 7 of the format, one list of calls:

    [TOOL_CALLS][{"name": "f", "arguments": {...}, "id": "a1b2c3d4e"}, ...]

From version 11 on, names and arguments, with ids in version 11 alone:

    [TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}

Text may precede calls. Ids that a model writes are read over: clients get those of the server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.json_text import read_call, read_value
from eyas.dialect.reasoning import ReasoningFormat, marker
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import MarkedCalls, arguments, one_of
from eyas.grammar import Concat, Literal, Marker, Node, Regex, Repeat

BEGIN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
REASONING, REASONING_END = "[THINK]", "[/THINK]"
_ID = Regex("[a-zA-Z0-9]{9}")
_LIST, _LIST_END, _COMMA = Marker("["), Marker("]"), Marker(",")


class MistralList(MarkedCalls):
    """Calls as one JSON list."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.begin: Marker = marker(tokenizer, BEGIN)

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = one_of([_object(tool) for tool in tools])
        following = (Repeat(Concat((Literal(", "), call))),) if several else ()
        return Concat((Repeat(Literal(" "), 0, 1), Literal("["), call, *following, Literal("]")))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        yield from reader.white()
        if (yield from reader.at(_LIST)) is None:
            return
        while True:
            yield from reader.white()
            if not (yield from read_call(reader, writer)):
                return
            yield from reader.white()
            if (yield from reader.at(_COMMA, _LIST_END)) != _COMMA:
                return


class MistralNames(MarkedCalls):
    """Calls as names and arguments. has_ids: an id stands between them."""

    def __init__(self, tokenizer: Vocabulary, *, has_ids: bool = False) -> None:
        self.begin: Marker = marker(tokenizer, BEGIN)
        self.arguments: Marker = marker(tokenizer, ARGUMENTS)
        self.call_id: Marker = marker(tokenizer, CALL_ID)
        self.has_ids = has_ids

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = one_of([self._call(tool) for tool in tools])
        return Concat((call, Repeat(Concat((self.begin, call))))) if several else call

    def _call(self, tool: ToolSpec) -> Node:
        call_id = (self.call_id, _ID) if self.has_ids else ()
        return Concat((Literal(tool.name), *call_id, self.arguments, arguments(tool)))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        name, found = yield from reader.collect(self.arguments, self.call_id, self.begin)
        if found == self.call_id:
            found = yield from reader.until((self.arguments, self.begin), ignore)
        if found != self.arguments or not name.strip():
            return
        writer.call(name.strip())
        yield from reader.white()
        yield from read_value(reader, writer.arguments)


def _object(tool: ToolSpec) -> Node:
    name = json.dumps(tool.name, ensure_ascii=False)
    begin = Literal(f'{{"name": {name}, "arguments": ')
    call_id = Concat((Literal(', "id": "'), _ID, Literal('"')))
    return Concat((begin, arguments(tool), Repeat(call_id, 0, 1), Literal("}")))


def mistral_reasoning(tokenizer: Vocabulary) -> ReasoningFormat:
    """Return the format of reasoning, without a gap before the answer."""
    close = Marker(REASONING_END, tokenizer.control_id(REASONING_END), spelled=True)
    return ReasoningFormat(marker(tokenizer, REASONING), close, gap="")


def call_format(template_source: str) -> str | None:
    """Return the format of calls that a chat template writes; None if it is none of Mistral's."""
    if BEGIN not in template_source:
        return None
    if ARGUMENTS not in template_source:
        return "mistral"
    return "mistral_v11" if CALL_ID in template_source else "mistral_v13"
