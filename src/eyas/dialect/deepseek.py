"""DeepSeek R1, V3 and V3.1: <think> reasoning, calls between special markers.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>
    <｜tool▁call▁begin｜>...<｜tool▁calls▁end｜>

V3.1 has neither the word function nor the fence nor the new lines.
"""  # noqa: RUF002

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.json_text import read_value
from eyas.dialect.reasoning import ReasoningFormat, marker
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import MarkedCalls, arguments, one_of
from eyas.grammar import Concat, Literal, Marker, Node, Repeat

_FENCE = Marker("```json")
_LINE_END = Marker("\n")


class DeepSeekCalls(MarkedCalls):
    """Calls with fences (V3, R1) or without (V3.1)."""

    def __init__(self, tokenizer: Vocabulary, *, fences: bool) -> None:
        self.fences = fences
        self.begin: Marker = marker(tokenizer, "<｜tool▁calls▁begin｜>")
        self.end: Marker = marker(tokenizer, "<｜tool▁calls▁end｜>")
        self.call_begin: Marker = marker(tokenizer, "<｜tool▁call▁begin｜>")
        self.call_end: Marker = marker(tokenizer, "<｜tool▁call▁end｜>")
        self.separator: Marker = marker(tokenizer, "<｜tool▁sep｜>")

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = one_of([self._call(tool) for tool in tools])
        first = Concat((self.call_begin, call, self.call_end))
        if not several:
            return Concat((first, self.end))
        apart = Repeat(Literal("\n"), 0, 1) if self.fences else None
        following = first if apart is None else Concat((apart, first))
        return Concat((first, Repeat(following), self.end))

    def _call(self, tool: ToolSpec) -> Node:
        if not self.fences:
            return Concat((Literal(tool.name), self.separator, arguments(tool)))
        begin = Literal(f"{tool.name}\n```json\n")
        end = Literal("\n```")
        return Concat((Literal("function"), self.separator, begin, arguments(tool), end))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        while True:
            yield from reader.white()
            if (yield from reader.at(self.call_begin)) is None:
                break
            yield from self._read_call(reader, writer)
        yield from reader.at(self.end)

    def _read_call(self, reader: StreamReader, writer: Writer) -> Reading[None]:
        """Read a call after its first marker, through the marker that ends it."""
        ends = (self.call_end, self.end)
        name, found = yield from reader.collect(self.separator, *ends)
        if found == self.separator and self.fences:
            name, found = yield from reader.collect(_LINE_END, *ends)
        if found not in (self.separator, _LINE_END):
            return
        writer.call(name.strip())
        yield from reader.white()
        if self.fences and (yield from reader.at(_FENCE)) is not None:
            yield from reader.white()
        yield from read_value(reader, writer.arguments)
        yield from reader.until(ends, ignore)


def v31_reasoning(tokenizer: Vocabulary) -> ReasoningFormat:
    """Return the format of reasoning of V3.1, without a gap before the answer."""
    return ReasoningFormat.of(tokenizer, gap="")


def writes_fences(template_source: str) -> bool:
    """Whether a chat template writes calls as V3 and R1 do."""
    return "```json" in template_source
