"""GLM 4.5 and 4.7: <think> reasoning, calls as pairs of keys and values.

    <tool_call>NAME
    <arg_key>k</arg_key>
    <arg_value>v</arg_value>
    ...</tool_call>

GLM 4.7 writes the same without the line ends.
Strings are written without quotes, other values as JSON. The segmenter turns the pairs into one JSON
object.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.pairs import Pairs, read_argument, texts_of, write_key
from eyas.dialect.reasoning import ReasoningFormat, marker
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import CallsInTags, literal
from eyas.grammar import Concat, Literal, Marker, Node

_LINE_END = Marker("\n")


class GlmCalls(CallsInTags):
    """Calls of a name, then keys and values between markers. has_lines: with line ends between them."""

    def __init__(self, tokenizer: Vocabulary, *, has_lines: bool = True) -> None:
        super().__init__(tokenizer, "\n" if has_lines else "")
        self.key: Marker = marker(tokenizer, "<arg_key>")
        self.key_end: Marker = marker(tokenizer, "</arg_key>")
        self.value: Marker = marker(tokenizer, "<arg_value>")
        self.value_end: Marker = marker(tokenizer, "</arg_value>")

    def call(self, tool: ToolSpec) -> Node:
        pairs = Pairs.of(tool).grammar(
            self._key_and_value_begin, (self.key_end,), self.value_end, gap=self._gap
        )
        return Concat((Literal(f"{tool.name}{self._gap}"), *pairs))

    def _key_and_value_begin(self, key: Node, is_text: bool) -> Node:
        return Concat((self.key, key, self.key_end, *literal(self._gap), self.value))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        name, found = yield from reader.collect(_LINE_END, self.key, self.end)
        name = name.strip()
        if found is None or not name:
            return
        is_text = texts_of(tools, name)
        writer.call(name)
        writer.arguments("{")
        separator = ""
        while True:
            if found not in (self.key, self.end):
                found = yield from reader.until((self.key, self.end), ignore)
            if found != self.key:
                break
            key, found = yield from reader.collect(self.key_end, self.end)
            if found != self.key_end:
                break
            found = yield from reader.until((self.value, self.end), ignore)
            if found != self.value:
                break
            write_key(writer, key, separator)
            separator = ", "
            found = yield from read_argument(reader, writer, self.value_end, is_text=is_text(key))
            if found != self.value_end:
                break
        if found is not None:
            writer.arguments("}")


def glm_reasoning(tokenizer: Vocabulary) -> ReasoningFormat:
    """Return the format of reasoning, with a new line before reasoning and before the answer."""
    return ReasoningFormat.of(tokenizer, gap="\n", leads=True)
