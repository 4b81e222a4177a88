"""Reasoning between two markers, and its state at the end of a prompt.

Promises: control tokens of earlier turns, and text that spells a marker, do not count for this turn.
Does not know: answers and tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.dialect.base import Vocabulary
from eyas.dialect.segment import WHITE, Reading, StreamReader, Writer
from eyas.grammar import Concat, FreeText, Marker, Node

_NUM_LAST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning from `open` to `close`.

    gap: the text between the end of reasoning and the answer. leads: the gap is also at the beginning
    of the output if the prompt opened no reasoning. may_open: the model may open reasoning itself.
    """

    open: Marker
    close: Marker
    gap: str = "\n\n"
    leads: bool = False
    may_open: bool = True

    @classmethod
    def of(
        cls,
        tokenizer: Vocabulary,
        gap: str = "\n\n",
        *,
        leads: bool = False,
        may_open: bool = True,
        tags: tuple[str, str] = ("<think>", "</think>"),
    ) -> ReasoningFormat:
        """Return the format between two tags; ordinary tokens may spell the latter too."""
        opening, close = tags
        return cls(
            open=marker(tokenizer, opening),
            close=Marker(close, tokenizer.control_id(close), spelled=True),
            gap=gap,
            leads=leads,
            may_open=may_open,
        )

    def inside(self) -> Node:
        """Return the grammar after the opening marker, through the closing one."""
        return FreeText(until=(self.close,))

    def whole(self) -> Node:
        return Concat((self.open, self.inside()))

    def read(self, reader: StreamReader, writer: Writer, *, trims: bool = True) -> Reading[None]:
        """Read what `inside` allows. trims: drop new lines at the beginning."""
        if trims:
            yield from reader.span("\r\n")
        yield from reader.until((self.close,), writer.reasoning, trim="\r\n")

    def closing(self, tokenizer: Vocabulary) -> tuple[int, ...]:
        """Return the tokens that end reasoning at any point."""
        if self.close.token_id is None:
            return tuple(tokenizer.encode_text(self.close.text + self.gap, continues=True))
        return (self.close.token_id, *tokenizer.encode_text(self.gap, continues=True))

    def num_opening_tokens(self, tokenizer: Vocabulary) -> int:
        """Return the number of tokens before the text of reasoning that the output opens."""
        lead = len(tokenizer.encode_text(self.gap, continues=True)) if self.leads else 0
        if self.open.token_id is None:
            return lead + len(tokenizer.encode_text(self.open.text, continues=True))
        return lead + 1


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """The state of reasoning at the end of a prompt. after: the text after the last marker."""

    reasoning: Literal["none", "opened", "closed"]
    after: str = ""


def prompt_end(
    tokenizer: Vocabulary, reasoning: ReasoningFormat, prompt_token_ids: Sequence[int]
) -> PromptEnd:
    """Read the end of a prompt, back to the control token that begins the answer's turn.

    A marker that is no control token counts only at the very end of the prompt, since elsewhere it may
    be a user's text.
    """
    open_id, close_id = reasoning.open.token_id, reasoning.close.token_id
    if open_id is not None or close_id is not None:
        for place in range(len(prompt_token_ids) - 1, -1, -1):
            token = prompt_token_ids[place]
            if token in (open_id, close_id):
                after = tokenizer.decode(prompt_token_ids[place + 1 :], False, continues=True)
                return PromptEnd("opened" if token == open_id else "closed", after)
            if token in tokenizer.control_ids:
                return PromptEnd("none")
        return PromptEnd("none")
    tail = tokenizer.decode(prompt_token_ids[-_NUM_LAST_TOKENS:], False, continues=True)
    text = tail.rstrip(WHITE)
    after = tail[len(text) :]
    if text.endswith(reasoning.open.text):
        return PromptEnd("opened", after)
    if text.endswith(reasoning.close.text):
        return PromptEnd("closed", after)
    return PromptEnd("none")


def marker(tokenizer: Vocabulary, text: str) -> Marker:
    """Return the marker of the control token with this text, or of the text if there is none."""
    token_id = tokenizer.control_id(text)
    return Marker(text, token_id, spelled=token_id is None)
