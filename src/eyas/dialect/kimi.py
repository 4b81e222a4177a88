"""Kimi-K2: calls in a section, each with an id that names its function.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}
    <|tool_call_end|><|tool_call_begin|>...<|tool_calls_section_end|>

without new lines. The number of a call counts on over a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.json_text import read_value
from eyas.dialect.reasoning import marker
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import MarkedCalls, arguments, one_of
from eyas.grammar import Concat, Literal, Marker, Node, Regex, Repeat

SECTION = "<|tool_calls_section_begin|>"
_FUNCTIONS = "functions."


class KimiCalls(MarkedCalls):
    """One section with all calls of a turn."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.begin: Marker = marker(tokenizer, SECTION)
        self.end: Marker = marker(tokenizer, "<|tool_calls_section_end|>")
        self.call_begin: Marker = marker(tokenizer, "<|tool_call_begin|>")
        self.call_end: Marker = marker(tokenizer, "<|tool_call_end|>")
        self.arguments: Marker = marker(tokenizer, "<|tool_call_argument_begin|>")

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = one_of([self._call(tool) for tool in tools])
        rest = (Repeat(call),) if several else ()
        return Concat((call, *rest, self.end))

    def _call(self, tool: ToolSpec) -> Node:
        name = Concat((Literal(f"{_FUNCTIONS}{tool.name}:"), Regex("[0-9]{1,4}")))
        return Concat((self.call_begin, name, self.arguments, arguments(tool), self.call_end))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        ends = (self.call_end, self.end)
        while True:
            yield from reader.white()
            if (yield from reader.at(self.call_begin)) is None:
                break
            call_id, found = yield from reader.collect(self.arguments, *ends)
            if found != self.arguments:
                return
            writer.call(name_of(call_id))
            yield from reader.white()
            yield from read_value(reader, writer.arguments)
            yield from reader.until(ends, ignore)
        yield from reader.at(self.end)


def name_of(call_id: str) -> str:
    """Return the name of the function in the id of a call."""
    name = call_id.strip().removeprefix(_FUNCTIONS)
    before, colon, number = name.rpartition(":")
    return before if colon and number.isdigit() else name
