"""A dialect: how one family of models writes reasoning, answers and tool calls.

It holds both sides of the format: the grammar of what may be generated, and the segmenter that splits
the stream into reasoning, content and tool calls. They stand in one file, so they cannot disagree.

Promises: the grammar covers the output from its first token to its last; any way of cutting the stream
gives the same events put together (the stream law); the pieces of a call's arguments concatenate to
exactly its final JSON.
Does not know: engines, HTTP, how masks are filled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from eyas.core import Mark
from eyas.grammar import Node, OutputSpec

EventKind = Literal["reasoning", "content", "tool_call", "arguments"]


class Vocabulary(Protocol):
    """What a dialect needs of a tokenizer (`eyas.text.Tokenizer` is one)."""

    @property
    def control_ids(self) -> frozenset[int]: ...

    def control_id(self, text: str) -> int | None:
        """The control token that is spelled so, if there is one."""
        ...

    def encode_text(self, text: str, *, continues: bool = False) -> list[int]:
        """Ordinary tokens that spell the text; continues: after other text."""
        ...

    def decode(
        self, ids: Iterable[int], skip_special: bool = True, *, continues: bool = False
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that may be called. parameters: its JSON schema, as `eyas.schemas.prepare` returns it,
    as an object. strict: keywords that cannot be enforced were refused."""

    name: str
    parameters: dict[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of the output.

    answer: what the content must be; None is free text. choice: "none", "auto", "required" or the
    name of one function. parallel: more than one call is allowed. max_reasoning_tokens: None is no
    limit.
    """

    answer: Node | None = None
    tools: tuple[ToolSpec, ...] = ()
    choice: str = "none"
    parallel: bool = True
    max_reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of the output. tool_call: a call begins, `name` is its function; arguments: a piece of
    the JSON of call number `index`."""

    kind: EventKind
    text: str = ""
    index: int = 0
    name: str = ""


class Segmenter(ABC):
    """Splits one choice's stream."""

    @abstractmethod
    def push(self, text: str, marks: Sequence[Mark] = ()) -> list[Event]:
        """What is certain now that this text came; marks as in `Delta.marks`."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """The rest: the stream ended here, perhaps in the middle of something."""


class Dialect(ABC):
    """One family's format, for one tokenizer."""

    name: str

    @abstractmethod
    def output(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> OutputSpec | None:
        """The grammar of an answer to this prompt (its end says whether reasoning is open, closed or
        up to the model); None where everything is allowed."""

    @abstractmethod
    def segmenter(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> Segmenter:
        """A fresh segmenter for an answer to this prompt."""
