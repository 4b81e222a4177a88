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

import json
from collections.abc import Sequence

from eyas.dialect.base import Dialect, ToolSpec, Vocabulary
from eyas.dialect.compose import ComposedDialect
from eyas.dialect.pairs import Pairs, read_argument
from eyas.dialect.reasoning import ReasoningFormat, marker
from eyas.dialect.segment import Reading, StreamReader, Writer
from eyas.dialect.tools import MarkedCalls, ignore, one_of
from eyas.grammar import Concat, Literal, Marker, Node, Repeat

_FUNCTION = Marker("<function=")
_PARAMETER = Marker("<parameter=")
_NAME_END = Marker(">\n")
_PARAMETER_END = Marker("\n</parameter>")
_FUNCTION_END = Marker("</function>")


class TaggedCalls(MarkedCalls):
    """Calls whose function and parameters are in the names of tags."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.begin: Marker = marker(tokenizer, "<tool_call>")
        self.end: Marker = marker(tokenizer, "</tool_call>")

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = Concat((one_of([_call(tool) for tool in tools]), self.end))
        if not several:
            return call
        return Concat((call, Repeat(Concat((Literal("\n"), self.begin, call)))))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        if (yield from reader.until((_FUNCTION, self.end), ignore)) != _FUNCTION:
            return
        name, found = yield from reader.collect(_NAME_END, _FUNCTION_END, self.end)
        if found != _NAME_END:
            return
        pairs = next((Pairs.of(tool) for tool in tools if tool.name == name), None)
        writer.call(name)
        writer.arguments("{")
        found = yield from self._read_parameters(reader, writer, pairs)
        if found is not None:
            writer.arguments("}")
        if found == _FUNCTION_END:
            yield from reader.until((self.end,), ignore)

    def _read_parameters(
        self, reader: StreamReader, writer: Writer, pairs: Pairs | None
    ) -> Reading[Marker | None]:
        """Read the parameters of a call through the marker that ends it, and return that; None at the
        end of the stream."""
        ends = (_FUNCTION_END, self.end)
        separator = ""
        while True:
            found = yield from reader.until((_PARAMETER, *ends), ignore)
            if found != _PARAMETER:
                return found
            key, found = yield from reader.collect(_NAME_END, *ends)
            if found != _NAME_END:
                return found
            writer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            separator = ", "
            is_text = pairs is not None and pairs.is_text(key)
            found = yield from read_argument(reader, writer, _PARAMETER_END, is_text=is_text)
            if found is None:
                return None


def _call(tool: ToolSpec) -> Node:
    begin = Literal(f"\n{_FUNCTION.text}{tool.name}{_NAME_END.text}")
    parameters = Pairs.of(tool).grammar(_parameter, _PARAMETER_END)
    return Concat((begin, *parameters, Literal(f"{_FUNCTION_END.text}\n")))


def _parameter(key: Node, is_text: bool) -> Node:
    """Return the grammar of a parameter's tag."""
    return Concat((Literal(_PARAMETER.text), key, Literal(_NAME_END.text)))


def qwen3_coder(tokenizer: Vocabulary) -> Dialect:
    return ComposedDialect(
        "qwen3_coder", tokenizer, ReasoningFormat.of(tokenizer), TaggedCalls(tokenizer)
    )
