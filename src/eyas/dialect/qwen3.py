"""Qwen3, Qwen2.5, QwQ and the built-in model: <think> reasoning, Hermes calls.

    <think>
    ...
    </think>

    <tool_call>
    {"name": "f", "arguments": {...}}
    </tool_call>

Text may precede the first call; a line end separates calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from eyas.dialect.base import ToolSpec
from eyas.dialect.json_text import read_call
from eyas.dialect.segment import Reading, StreamReader, Writer, ignore
from eyas.dialect.tools import CallsInTags, arguments
from eyas.grammar import Concat, Literal, Node


class HermesCalls(CallsInTags):
    """Calls as JSON objects."""

    def call(self, tool: ToolSpec) -> Node:
        name = json.dumps(tool.name, ensure_ascii=False)
        begin = Literal(f'\n{{"name": {name}, "arguments": ')
        return Concat((begin, arguments(tool), Literal("}\n")))

    def read_after_begin(
        self, reader: StreamReader, writer: Writer, tools: Sequence[ToolSpec]
    ) -> Reading[None]:
        while True:
            num_calls = writer.num_calls
            yield from reader.white()
            yield from read_call(reader, writer)
            if writer.num_calls == num_calls:
                return
            if (yield from reader.until((self.end, self.begin), ignore)) != self.begin:
                return
