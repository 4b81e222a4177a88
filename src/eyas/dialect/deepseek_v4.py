"""DeepSeek-V4: <think> reasoning, calls in DeepSeek's markup (DSML).

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="k" string="true">text</｜DSML｜parameter>
    <｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

Strings are written without quotes, other values as JSON. ｜DSML｜ is one token of the vocabulary, but
not a special one: the tags are text. The segmenter turns parameters into one JSON object.
"""  # noqa: RUF002

from __future__ import annotations

from collections.abc import Sequence

from eyas.dialect.base import ToolSpec
from eyas.dialect.pairs import Pairs, read_pairs
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import MarkedCalls, one_of
from eyas.grammar import Concat, Literal, Marker, Node, Repeat

_CALL = Marker('<｜DSML｜invoke name="')
_NAME_END = Marker('">')
_CALL_END = Marker("</｜DSML｜invoke>")
_PARAMETER = Marker('<｜DSML｜parameter name="')
_TEXT = Marker('" string="true">')
_JSON = Marker('" string="false">')
_PARAMETER_END = Marker("</｜DSML｜parameter>")


class DsmlCalls(MarkedCalls):
    """Calls in markup: one block with all calls of a turn."""

    begin = Marker("<｜DSML｜tool_calls>")
    end = Marker("</｜DSML｜tool_calls>")

    def after_begin(self, tools: Sequence[ToolSpec], several: bool) -> Node:
        call = one_of([self._call(tool) for tool in tools])
        rest = (Repeat(call),) if several else ()
        return Concat((Literal("\n"), call, *rest, self.end))

    def _call(self, tool: ToolSpec) -> Node:
        pairs = Pairs.of(tool)
        parameters = pairs.grammar(_parameter, (_TEXT, _JSON), _PARAMETER_END)
        if not pairs.required:  # without parameters the model has seen an empty line
            parameters.append(Repeat(Literal("\n"), 0, 1))
        begin = Literal(f"{_CALL.text}{tool.name}{_NAME_END.text}\n")
        return Concat((begin, *parameters, Literal(f"{_CALL_END.text}\n")))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        while (yield from reader.until((_CALL, self.end), ignore)) == _CALL:
            name, found = yield from reader.collect(_NAME_END, _CALL_END, self.end)
            if found != _NAME_END:
                return
            writer.call(name.strip())
            found = yield from read_pairs(
                reader,
                writer,
                (_PARAMETER, (_TEXT, _JSON), _PARAMETER_END),
                (_CALL_END, self.end),
                lambda _, key_end: key_end == _TEXT,
            )
            if found != _CALL_END:
                return


def _parameter(key: Node, is_text: bool) -> Node:
    """Return the grammar of a parameter's tag."""
    return Concat((Literal(_PARAMETER.text), key, Literal((_TEXT if is_text else _JSON).text)))
