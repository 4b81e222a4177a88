"""The results of the offline API: choices collected from deltas.

Promises: a choice holds what its deltas carried.
Does not know: engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from eyas.core import Delta, FinishReason, TokenLogprob, TreeRecord, Usage
from eyas.dialect import Event

T = TypeVar("T")


@dataclass(slots=True)
class ToolCall:
    """A call of a function in an answer. arguments: JSON text."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One answer.

    text: as the model wrote it. For `chat` it is also split into reasoning, content and tool_calls;
    otherwise content is the text. finish_reason: stop, length, abort or error. error: its reason.
    draft_trees: of its steps, if `LLM` was asked to report them.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    seed: int | None = None
    usage: Usage = field(default_factory=Usage)
    draft_trees: list[TreeRecord] = field(default_factory=list)


@dataclass(slots=True)
class GenerationOutput:
    """The choices of one prompt."""

    prompt_token_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the first choice."""
        return self.choices[0].token_ids

    def absorb(self, delta: Delta, events: Sequence[Event] | None = None) -> None:
        """Append a delta to its choice. events: its text split by a segmenter; None if it is not
        split."""
        choice = self.choices[delta.index]
        choice.text += delta.text
        if events is None:
            choice.content += delta.text
        for event in events or ():
            match event.kind:
                case "reasoning":
                    choice.reasoning += event.text
                case "content":
                    choice.content += event.text
                case "tool_call":
                    choice.tool_calls.append(ToolCall(event.name))
                case "arguments":
                    choice.tool_calls[event.index].arguments += event.text
        choice.token_ids += delta.token_ids
        choice.draft_trees += delta.draft_trees
        if delta.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
            choice.error = delta.error
            choice.seed = delta.seed
            choice.usage = delta.usage or choice.usage


@dataclass(frozen=True, slots=True)
class PartialOutput(Generic[T]):
    """One element of a stream with an output type.

    delta: the new part. content: the answer so far, without reasoning. partial: the beginning of the
    answer as plain Python values, with the members of an object that have begun and an incomplete
    string as far as it goes; None if there is none yet. value: the whole answer, with the last delta
    of its choice.
    """

    delta: Delta
    content: str
    partial: Any
    value: T | None = None

    @property
    def text(self) -> str:
        """The new text, as the model wrote it."""
        return self.delta.text
