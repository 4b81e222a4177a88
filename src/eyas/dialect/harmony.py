"""gpt-oss (Harmony): messages on channels, each with a header.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

The prompt ends with <|start|>assistant. The channel analysis is reasoning; final is content, and so is
commentary without a recipient (a preamble before a call). <|return|> and <|call|> end the output, so it
has at most one call. The recipient may also stand before the channel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

from eyas.core import field_error
from eyas.dialect.base import Dialect, Segmenter, ToolSpec, Vocabulary, Wanted
from eyas.dialect.compose import chosen_tools
from eyas.dialect.json_text import read_value
from eyas.dialect.reasoning import marker
from eyas.dialect.segment import WHITE, Reading, Sink, StreamReader, StreamSegmenter, Writer, ignore
from eyas.dialect.tools import arguments, one_of
from eyas.grammar import (
    Budget,
    Choice,
    Concat,
    FreeText,
    Literal,
    Marker,
    Node,
    OutputSpec,
    Regex,
    Repeat,
)

_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_SPACE = Repeat(Literal(" "), 0, 1)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The structure of one output. begins_in: the part of a message that the prompt leaves open."""

    begins_in: OneOf["header", "reasoning", "content"]
    must_call: bool
    answer: Node | None
    tools: tuple[ToolSpec, ...]
    limit: int | None


class Harmony(Dialect):
    """The dialect of gpt-oss."""

    name = "harmony"

    def __init__(self, tokenizer: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self.start = marker(tokenizer, "<|start|>")
        self.channel = marker(tokenizer, "<|channel|>")
        self.constrain = marker(tokenizer, "<|constrain|>")
        self.message = marker(tokenizer, "<|message|>")
        self.end = marker(tokenizer, "<|end|>")
        self.ends = (
            self.end,
            marker(tokenizer, "<|return|>"),
            marker(tokenizer, "<|call|>"),
        )
        enders = (*self.ends, self.start, self.channel)
        self._enders = tuple(ender for ender in enders if not ender.is_text)

    def output(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> OutputSpec | None:
        plan = self._plan(wanted, prompt_token_ids)
        is_limited = plan.limit is not None and plan.begins_in != "content"
        if plan.answer is None and not plan.tools and not is_limited:
            return None
        return OutputSpec(root=self._root(plan), budget=self._budget(plan))

    def segmenter(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> Segmenter:
        plan = self._plan(wanted, prompt_token_ids)
        return StreamSegmenter(lambda reader, writer: self._read(plan, reader, writer))

    def _plan(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> _Plan:
        tools, must_call = chosen_tools(wanted, self.name, has_calls=True)
        begins_in = self._begins_in(prompt_token_ids)
        if must_call and begins_in == "content":
            raise field_error(
                "tool_choice",
                "the prompt has begun the final answer, so no call can follow; end the "
                "prompt before it",
            )
        return _Plan(
            begins_in=begins_in,
            must_call=must_call,
            answer=None if must_call else wanted.answer,
            tools=() if begins_in == "content" else tools,
            limit=wanted.max_reasoning_tokens,
        )

    def _begins_in(
        self, prompt_token_ids: Sequence[int]
    ) -> OneOf["header", "reasoning", "content"]:
        """Return the part of a message that the prompt leaves open, by its last control token."""
        for place in range(len(prompt_token_ids) - 1, -1, -1):
            token = prompt_token_ids[place]
            if token == self.message.token_id:
                header = prompt_token_ids[max(0, place - 16) : place]
                text = self._tokenizer.decode(header, False, continues=True)
                channel = text.rpartition(self.channel.text)[2]
                return "reasoning" if channel.startswith("analysis") else "content"
            if token in self._tokenizer.control_ids:
                return "header"
        return "header"

    def _root(self, plan: _Plan) -> Node:
        again = Concat((self.start, Literal("assistant")))
        if plan.begins_in == "content":
            return plan.answer or FreeText()
        inside = FreeText(until=(self.end,))
        last = self._last(plan)
        preambles: list[Node] = []
        if plan.tools and plan.answer is None:
            preambles = [Concat((self._header("commentary"), inside, again))]
        if plan.begins_in == "reasoning":
            first: list[Node] = [inside, again]
        else:
            first = [self._header("analysis"), inside, again]
        if plan.limit is None:
            analysis = Concat((self._header("analysis"), inside, again))
            before = Repeat(one_of([analysis, *preambles]))
            return Concat((*(first if plan.begins_in == "reasoning" else ()), before, last))
        if plan.limit == 0 and plan.begins_in == "header":
            first = []
        return Concat((*first, *(Repeat(part) for part in preambles), last))

    def _last(self, plan: _Plan) -> Node:
        """Return the grammar of the last message, with its header."""
        options: list[Node] = []
        if not plan.must_call:
            body = plan.answer or FreeText()
            form = Concat((_SPACE, self.constrain, Regex("[A-Za-z_]{1,16}")))
            header = Concat((self.channel, Literal("final"), Repeat(form, 0, 1), self.message))
            options.append(Concat((header, body)))
        options += [self._call(tool) for tool in plan.tools]
        return one_of(options)

    def _call(self, tool: ToolSpec) -> Node:
        recipient = f" to=functions.{tool.name}"
        after = Concat((self.channel, Literal(f"commentary{recipient}")))
        before = Concat((Literal(recipient), self.channel, Literal("commentary")))
        constrained = Concat((_SPACE, self.constrain, Literal("json")))
        form = Repeat(Choice((constrained, Literal(" json"), Literal(" "))), 0, 1)
        return Concat((Choice((after, before)), form, self.message, arguments(tool)))

    def _header(self, channel: str) -> Node:
        return Concat((self.channel, Literal(channel), self.message))

    def _budget(self, plan: _Plan) -> Budget | None:
        """Return the limit on reasoning; `closing` ends the message and begins the next header."""
        if plan.limit is None or plan.begins_in == "content":
            return None
        closing = [self.end, self.start, "assistant", self.channel]
        closing += ["commentary"] if plan.must_call else ["final", self.message]
        limit = plan.limit
        if plan.begins_in == "header":
            if limit == 0:
                return None
            limit += len(self._tokens([self.channel, "analysis", self.message]))
        return Budget(limit, (self.end,), tuple(self._tokens(closing)))

    def _tokens(self, parts: Sequence[Marker | str]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, Marker) and part.token_id is not None:
                ids.append(part.token_id)
            else:
                text = part.text if isinstance(part, Marker) else part
                ids += self._tokenizer.encode_text(text, continues=True)
        return ids

    def _read(self, plan: _Plan, reader: StreamReader, writer: Writer) -> Reading[None]:
        found: Marker | None = None
        if plan.begins_in == "reasoning":
            found = yield from self._read_text(reader, writer.reasoning)
        elif plan.begins_in == "content":
            found = yield from self._read_content(reader, writer)
        while not reader.is_at_end:
            header = yield from self._read_header(reader, has_channel=found == self.channel)
            if header is None:
                return
            channel, recipient = header
            if recipient is not None and any(tool.name == recipient for tool in plan.tools):
                writer.call(recipient)
                found = yield from self._read_arguments(reader, writer)
            elif channel.startswith("analysis"):
                found = yield from self._read_text(reader, writer.reasoning)
            elif channel.startswith("commentary"):
                found = yield from self._read_text(reader, writer.content)
            else:
                found = yield from self._read_content(reader, writer)

    def _read_header(
        self, reader: StreamReader, *, has_channel: bool
    ) -> Reading[tuple[str, str | None] | None]:
        """Read a header: return the channel and the function it is for, or None at the end."""
        role, channel = "", ""
        has_form = False
        while True:
            text, found = yield from reader.collect(
                self.message, self.channel, self.constrain, self.start, *self.ends
            )
            if found is None:
                return None
            if found in (self.start, *self.ends):
                role, channel, has_channel, has_form = "", "", False, False
                continue
            if not has_channel:
                role += text
            elif not has_form:
                channel += text
            has_channel = has_channel or found == self.channel
            has_form = has_form or found == self.constrain
            if found == self.message:
                recipient = _RECIPIENT.search(channel) or _RECIPIENT.search(role)
                return channel.strip(), recipient.group(1) if recipient else None

    def _read_text(self, reader: StreamReader, sink: Sink) -> Reading[Marker | None]:
        """Read a message that another may follow. As text only <|end|> ends it."""
        return (yield from reader.until((self.end, *self._enders), sink))

    def _read_content(self, reader: StreamReader, writer: Writer) -> Reading[Marker | None]:
        """Read the last message, which only control tokens end."""
        return (yield from reader.until(self._enders, writer.content))

    def _read_arguments(self, reader: StreamReader, writer: Writer) -> Reading[Marker | None]:
        yield from reader.span(WHITE)
        yield from read_value(reader, writer.arguments)
        return (yield from self._read_text(reader, ignore))
