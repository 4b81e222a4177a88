"""Calls in tags that name the function and its parameters, as Qwen3-Coder, Qwen3.5 and Seed-OSS write
them.

    <tool_call>
    <function=NAME>
    <parameter=k>
    v
    </parameter>
    </function>
    </tool_call>

Seed-OSS writes values without the lines around them, and has tags of its own around calls and
reasoning. Strings are written without quotes, other values as JSON. The segmenter turns parameters into
one JSON object.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.pairs import Pairs, read_pairs, texts_of
from eyas.dialect.reasoning import ReasoningFormat
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import CallsInTags
from eyas.grammar import Concat, Literal, Marker, Node

_FUNCTION = Marker("<function=")
_PARAMETER = Marker("<parameter=")
_NAME_END = Marker(">\n")
_FUNCTION_END = Marker("</function>")
SEED_THINK = "<seed:think>"


class TaggedCalls(CallsInTags):
    """The calls of Qwen3-Coder and Qwen3.5."""

    key_end = Marker(">\n")
    value_end = Marker("\n</parameter>")

    def call(self, tool: ToolSpec) -> Node:
        begin = Literal(f"\n{_FUNCTION.text}{tool.name}{_NAME_END.text}")
        parameters = Pairs.of(tool).grammar(self._parameter, (self.key_end,), self.value_end)
        return Concat((begin, *parameters, Literal(f"{_FUNCTION_END.text}\n")))

    def _parameter(self, key: Node, is_text: bool) -> Node:
        """Return the grammar of a parameter's tag."""
        return Concat((Literal(_PARAMETER.text), key, Literal(self.key_end.text)))

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
            (_PARAMETER, (self.key_end,), self.value_end),
            (_FUNCTION_END, self.end),
            lambda key, _: is_text(key),
        )
        if found == _FUNCTION_END:
            yield from reader.until((self.end,), ignore)


class SeedCalls(TaggedCalls):
    """The calls of Seed-OSS."""

    tags = ("<seed:tool_call>", "</seed:tool_call>")
    key_end = Marker(">")
    value_end = Marker("</parameter>")


def seed_reasoning(tokenizer: Vocabulary) -> ReasoningFormat:
    """Return the format of reasoning of Seed-OSS."""
    return ReasoningFormat.of(tokenizer, gap="\n", tags=(SEED_THINK, "</seed:think>"))
