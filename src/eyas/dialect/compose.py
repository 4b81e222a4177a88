"""A dialect composed of a format of reasoning and a format of tool calls.

Promises: the grammar and the segmenter follow the same decisions (`OutputPlan`).
Does not know: the markers of a family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

from eyas.core import GrammarError, field_error
from eyas.dialect.base import Dialect, Segmenter, ToolSpec, Vocabulary, Wanted
from eyas.dialect.beginning import may_begin_with, may_begin_with_white
from eyas.dialect.reasoning import PromptEnd, ReasoningFormat, prompt_end
from eyas.dialect.segment import Reading, StreamReader, StreamSegmenter, Writer
from eyas.dialect.tools import ToolFormat
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

ReasoningState = OneOf["none", "opened", "optional", "required", "refused"]

_WHITE_GAP = Regex(r"[ \t\r\n]{0,8}")


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The structure of one output.

    reasoning: "none"; continued from the prompt ("opened"); the model may ("optional"), must
    ("required") or must not ("refused") open it. trims: new lines at the beginning of reasoning are
    dropped, because the prompt has no reasoning text yet. has_lead: the gap is also at the beginning
    of the output. is_gap_exact: the gap is exactly the family's, because the answer may begin with
    white space. must_call: only calls are allowed. answer: the alternative to calls; None for free
    text. several: several calls are allowed.
    """

    reasoning: ReasoningState
    trims: bool
    has_lead: bool
    is_gap_exact: bool
    must_call: bool
    answer: Node | None
    tools: tuple[ToolSpec, ...]
    several: bool

    @property
    def is_free(self) -> bool:
        """Whether any text is allowed."""
        return self.answer is None and not self.must_call


class ComposedDialect(Dialect):
    """Reasoning between markers, then text, an answer or calls."""

    def __init__(
        self,
        name: str,
        tokenizer: Vocabulary,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
    ) -> None:
        self.name = name
        self.reasoning = reasoning
        self.tools = tools
        self._tokenizer = tokenizer

    def output(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> OutputSpec | None:
        plan = self._plan(wanted, prompt_token_ids)
        budget = self._budget(plan, wanted.max_reasoning_tokens)
        has_limit = budget is not None or plan.reasoning == "refused"
        if plan.is_free and not plan.tools and not has_limit:
            return None
        return OutputSpec(root=_concat(self._parts(plan)), budget=budget)

    def segmenter(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> Segmenter:
        plan = self._plan(wanted, prompt_token_ids)
        return StreamSegmenter(lambda reader, writer: self._read(plan, reader, writer))

    def _plan(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> OutputPlan:
        tools, must_call = chosen_tools(wanted, self.name, self.tools is not None)
        answer = None if must_call else wanted.answer
        end = PromptEnd("none")
        if self.reasoning is not None:
            end = prompt_end(self._tokenizer, self.reasoning, prompt_token_ids)
        if tools and answer is not None:
            self._check_distinct(answer)
        return OutputPlan(
            reasoning=self._reasoning_state(end, answer, wanted.max_reasoning_tokens),
            trims=not end.after.strip(),
            has_lead=self._has_lead(end),
            is_gap_exact=answer is not None and may_begin_with_white(answer),
            must_call=must_call,
            answer=answer,
            tools=tools,
            several=wanted.parallel and wanted.choice in ("auto", "required"),
        )

    def _reasoning_state(
        self, end: PromptEnd, answer: Node | None, limit: int | None
    ) -> ReasoningState:
        if self.reasoning is None or end.reasoning == "closed":
            return "none"
        if end.reasoning == "opened":
            return "opened"
        if not self.reasoning.may_open:
            return "none"
        if limit is not None:
            return "required" if limit > 0 else "refused"
        opening = self.reasoning.open
        if opening.is_text and answer is not None and may_begin_with(answer, opening.text):
            return "none"
        return "optional"

    def _has_lead(self, end: PromptEnd) -> bool:
        if self.reasoning is None:
            return False
        if end.reasoning == "closed":
            return not end.after
        return end.reasoning == "none" and self.reasoning.leads

    def _check_distinct(self, answer: Node) -> None:
        """Raise GrammarError if the beginning of an answer may look like that of a call."""
        assert self.tools is not None
        for opening in self.tools.openings:
            if opening.is_text and may_begin_with(answer, opening.text):
                raise GrammarError(
                    f"tool_choice: with 'auto', an answer that may begin with {opening.text!r} "
                    "cannot be distinguished from a call of this model; use 'required' or 'none', "
                    "or a JSON schema",
                    "unsupported",
                    param="tool_choice",
                )

    def _budget(self, plan: OutputPlan, limit: int | None) -> Budget | None:
        if limit is None or self.reasoning is None:
            return None
        if plan.reasoning not in ("opened", "required"):
            return None
        if plan.reasoning == "required":
            limit += self.reasoning.num_opening_tokens(self._tokenizer)
        return Budget(limit, (self.reasoning.close,), self.reasoning.closing(self._tokenizer))

    def _parts(self, plan: OutputPlan) -> list[Node]:
        body = self._body(plan)
        if self.reasoning is None:
            return [body]
        gap = [] if plan.is_free else self._gap(plan)
        lead = gap if plan.has_lead else []
        if plan.is_free and plan.has_lead and self.reasoning.gap:
            lead = [Repeat(Literal(self.reasoning.gap), 0, 1)]
        match plan.reasoning:
            case "none" | "refused":
                return [*(gap if plan.has_lead else []), body]
            case "opened":
                return [self.reasoning.inside(), *gap, body]
            case "required":
                return [*lead, self.reasoning.whole(), *gap, body]
        if plan.is_free:
            return [Repeat(_concat([*lead, self.reasoning.whole()]), 0, 1), body]
        return [*lead, Repeat(_concat([self.reasoning.whole(), *gap]), 0, 1), body]

    def _body(self, plan: OutputPlan) -> Node:
        """Return the grammar after reasoning and the gap."""
        if plan.must_call:
            assert self.tools is not None
            return self.tools.only_calls(plan.tools, plan.several)
        if plan.answer is not None:
            if not plan.tools:
                return plan.answer
            assert self.tools is not None
            return Choice((plan.answer, self.tools.calls(plan.tools, plan.several)))
        without: tuple[Marker, ...] = ()
        if self.reasoning is not None and plan.reasoning in ("optional", "refused"):
            without = (self.reasoning.open,) if self.reasoning.open.is_text else ()
        if not plan.tools:
            return FreeText(without=without)
        assert self.tools is not None
        gap = self.reasoning.gap if self.reasoning is not None else ""
        return self.tools.text_or_calls(plan.tools, plan.several, without, gap)

    def _gap(self, plan: OutputPlan) -> list[Node]:
        assert self.reasoning is not None
        if not plan.is_gap_exact:
            return [_WHITE_GAP]
        return [Literal(self.reasoning.gap)] if self.reasoning.gap else []

    def _read(self, plan: OutputPlan, reader: StreamReader, writer: Writer) -> Reading[None]:
        reasoning = self.reasoning
        if reasoning is not None:
            has_reasoned = plan.reasoning == "opened"
            white = ""
            if plan.has_lead:
                yield from self._read_gap(plan, reader)
            elif plan.reasoning in ("optional", "required"):
                white = yield from reader.white()
            if plan.reasoning in ("optional", "required"):
                has_reasoned = (yield from reader.at(reasoning.open)) is not None
                if not has_reasoned:
                    reader.unread(white)
            if has_reasoned:
                yield from reasoning.read(reader, writer, trims=plan.trims)
                yield from self._read_gap(plan, reader)
        if not plan.tools:
            yield from reader.until((), writer.content)
            return
        assert self.tools is not None
        yield from self.tools.read(reader, writer, plan.tools, answers=plan.answer is not None)

    def _read_gap(self, plan: OutputPlan, reader: StreamReader) -> Reading[None]:
        if not plan.is_gap_exact:
            yield from reader.white()
        elif self.reasoning is not None and self.reasoning.gap:
            yield from reader.at(Marker(self.reasoning.gap))


def chosen_tools(wanted: Wanted, name: str, has_calls: bool) -> tuple[tuple[ToolSpec, ...], bool]:
    """Return the functions that may be called, and whether a call is required. RequestError if the
    choice does not fit the tools."""
    if wanted.choice == "none" or not wanted.tools:
        if wanted.choice not in ("none", "auto"):
            raise field_error(
                "tool_choice", f"{wanted.choice!r} needs functions to call; give tools"
            )
        return (), False
    if not has_calls:
        raise field_error(
            "tools",
            f"the dialect {name!r} has no tool calls; start the server with --tool-call-parser",
        )
    if wanted.choice in ("auto", "required"):
        return wanted.tools, wanted.choice == "required"
    named = tuple(tool for tool in wanted.tools if tool.name == wanted.choice)
    if not named:
        raise field_error(
            "tool_choice",
            f"names {wanted.choice!r}, which is not among the tools; name one of "
            + ", ".join(tool.name for tool in wanted.tools),
        )
    return named[:1], True


def _concat(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Concat(tuple(parts))
