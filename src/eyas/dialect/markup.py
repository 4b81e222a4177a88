"""Calls in markup with the names of functions and parameters in attributes: DeepSeek-V4 (DSML) and
MiniMax-M2.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="k" string="true">text</｜DSML｜parameter>
    <｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

MiniMax-M2 writes <minimax:tool_call>, <invoke name="NAME"> and <parameter name="k">, without telling
strings from others. Strings are written without quotes, other values as JSON. ｜DSML｜ is one token of
the vocabulary, but not a special one: the tags are text. The segmenter turns parameters into one JSON
object.
"""  # noqa: RUF002

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec, Vocabulary
from eyas.dialect.pairs import Pairs, read_pairs, texts_of
from eyas.dialect.reasoning import marker
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import MarkedCalls, one_of
from eyas.grammar import Concat, Literal, Marker, Node, Repeat

_NAME_END = Marker('">')


class MarkupCalls(MarkedCalls):
    """One block with all calls of a turn. block: its tags. call, call_end: around a call. parameter,
    value_end: around a parameter. text, json: what follows the key of a string and of another value."""

    block: tuple[str, str]
    call: Marker
    call_end: Marker
    parameter: Marker
    value_end: Marker
    text: Marker
    json: Marker

    def __init__(self, tokenizer: Vocabulary) -> None:
        begin, end = self.block
        self.begin: Marker = marker(tokenizer, begin)
        self.end: Marker = marker(tokenizer, end)
        self._key_ends = tuple(dict.fromkeys((self.text, self.json)))

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = one_of([self._call(tool) for tool in tools])
        rest = (Repeat(call),) if several else ()
        return Concat((Literal("\n"), call, *rest, self.end))

    def _call(self, tool: ToolSpec) -> Node:
        pairs = Pairs.of(tool)
        parameters = pairs.grammar(self._parameter, self._key_ends, self.value_end)
        if not pairs.required:  # without parameters the model has seen an empty line
            parameters.append(Repeat(Literal("\n"), 0, 1))
        begin = Literal(f"{self.call.text}{tool.name}{_NAME_END.text}\n")
        return Concat((begin, *parameters, Literal(f"{self.call_end.text}\n")))

    def _parameter(self, key: Node, is_text: bool) -> Node:
        """Return the grammar of a parameter's tag."""
        key_end = self.text if is_text else self.json
        return Concat((Literal(self.parameter.text), key, Literal(key_end.text)))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        while (yield from reader.until((self.call, self.end), ignore)) == self.call:
            name, found = yield from reader.collect(_NAME_END, self.call_end, self.end)
            if found != _NAME_END:
                return
            name = name.strip()
            is_text = texts_of(tools, name)
            writer.call(name)
            found = yield from read_pairs(
                reader,
                writer,
                (self.parameter, self._key_ends, self.value_end),
                (self.call_end, self.end),
                lambda key, key_end, is_text=is_text: (
                    key_end == self.text if self.text != self.json else is_text(key)
                ),
            )
            if found != self.call_end:
                return


class DsmlCalls(MarkupCalls):
    """The calls of DeepSeek-V4."""

    block = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    call = Marker('<｜DSML｜invoke name="')
    call_end = Marker("</｜DSML｜invoke>")
    parameter = Marker('<｜DSML｜parameter name="')
    value_end = Marker("</｜DSML｜parameter>")
    text = Marker('" string="true">')
    json = Marker('" string="false">')


class MiniMaxCalls(MarkupCalls):
    """The calls of MiniMax-M2."""

    block = ("<minimax:tool_call>", "</minimax:tool_call>")
    call = Marker('<invoke name="')
    call_end = Marker("</invoke>")
    parameter = Marker('<parameter name="')
    value_end = Marker("</parameter>")
    text = json = _NAME_END
