"""The interface of a dialect: the format of reasoning, answers and tool calls of a family of models.

A dialect has both directions of the format in one file: the grammar of the output, and the segmenter
that splits the stream into reasoning, content and tool calls.

Promises: the grammar covers the output from its first token to its last. The merged events do not
depend on how the stream is cut (the stream law). The pieces of a call's arguments concatenate to its
final JSON.
Does not know: engines, HTTP, how masks are filled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from eyas.core import Mark
from eyas.grammar import Node, OutputSpec

EventKind = Literal["reasoning", "content", "tool_call", "arguments"]


class Vocabulary(Protocol):
    """The methods of a tokenizer that dialects use (`eyas.text.Tokenizer` has them)."""

    @property
    def control_ids(self) -> frozenset[int]: ...

    def control_id(self, text: str) -> int | None:
        """Return the id of the control token with this text, or None."""
        ...

    def encode_text(self, text: str, *, continues: bool = False) -> list[int]:
        """Return ordinary tokens that spell the text. continues: it follows other text."""
        ...

    def decode(
        self, ids: Iterable[int], skip_special: bool = True, *, continues: bool = False
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call. parameters: its JSON schema, parsed from the result of
    `eyas.schemas.prepare`. strict: keywords that cannot be enforced were refused."""

    name: str
    parameters: dict[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requirements of a request on the output.

    answer: the grammar of the content; None for free text. choice: "none", "auto", "required" or the
    name of a function. parallel: whether several calls are allowed. max_reasoning_tokens: None for no
    limit.
    """

    answer: Node | None = None
    tools: tuple[ToolSpec, ...] = ()
    choice: str = "none"
    parallel: bool = True
    max_reasoning_tokens: int | None = None


class Event(NamedTuple):
    """A piece of the output. kind "tool_call": the beginning of call number `index` of the function
    `name`; kind "arguments": a piece of that call's JSON."""

    kind: EventKind
    text: str = ""
    index: int = 0
    name: str = ""


class Segmenter(ABC):
    """Splits the stream of one choice into events."""

    @abstractmethod
    def push(self, text: str, marks: Sequence[Mark] = ()) -> list[Event]:
        """Add text and return the events that are certain now. marks: as in `Delta.marks`."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """Return the remaining events. The stream may end anywhere in the format."""


class Dialect(ABC):
    """The format of one family, for one tokenizer."""

    name: str

    @abstractmethod
    def output(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> OutputSpec | None:
        """Return the grammar of an output after this prompt, or None if everything is allowed.

        The end of the prompt determines whether reasoning is open, closed or optional.
        """

    @abstractmethod
    def segmenter(self, wanted: Wanted, prompt_token_ids: Sequence[int]) -> Segmenter:
        """Return a new segmenter for an output after this prompt."""
