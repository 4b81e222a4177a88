"""Qwen3-Coder and Qwen3.5: <think> reasoning, calls in tags.

    <tool_call>
    <function=NAME>
    <parameter=k>
    v
    </parameter>
    </function>
    </tool_call>

Strings are written without quotes, other values as JSON. The segmenter turns parameters into one JSON
object.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec
from eyas.dialect.pairs import Pairs, read_pairs, texts_of
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import CallsInTags
from eyas.grammar import Concat, Literal, Marker, Node

_FUNCTION = Marker("<function=")
_PARAMETER = Marker("<parameter=")
_NAME_END = Marker(">\n")
_PARAMETER_END = Marker("\n</parameter>")
_FUNCTION_END = Marker("</function>")


class TaggedCalls(CallsInTags):
    """Calls whose function and parameters are in the names of tags."""

    def call(self, tool: ToolSpec) -> Node:
        begin = Literal(f"\n{_FUNCTION.text}{tool.name}{_NAME_END.text}")
        parameters = Pairs.of(tool).grammar(_parameter, (_NAME_END,), _PARAMETER_END)
        return Concat((begin, *parameters, Literal(f"{_FUNCTION_END.text}\n")))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        if (yield from reader.until((_FUNCTION, self.end), ignore)) != _FUNCTION:
            return
        name, found = yield from reader.collect(_NAME_END, _FUNCTION_END, self.end)
        if found != _NAME_END:
            return
        is_text = texts_of(tools, name)
        writer.call(name)
        found = yield from read_pairs(
            reader,
            writer,
            (_PARAMETER, (_NAME_END,), _PARAMETER_END),
            (_FUNCTION_END, self.end),
            lambda key, _: is_text(key),
        )
        if found == _FUNCTION_END:
            yield from reader.until((self.end,), ignore)


def _parameter(key: Node, is_text: bool) -> Node:
    """Return the grammar of a parameter's tag."""
    return Concat((Literal(_PARAMETER.text), key, Literal(_NAME_END.text)))
