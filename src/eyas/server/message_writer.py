"""Converts the deltas of one choice to the parts of a message: reasoning, content and tool calls.

Promises: the parts add up to the whole message, and no log-probability is lost, however the stream is
cut into deltas. Does not know: the shape in which an API writes a message, HTTP.
"""

from __future__ import annotations

from typing import NamedTuple

from eyas.core import Delta, TokenLogprob
from eyas.dialect import Event
from eyas.server.chat import PreparedChat
from eyas.server.choice_segmenter import ChoiceSegmenter, merge_adjacent
from eyas.server.token_texts import TokenTexts
from eyas.text import Tokenizer


class MessagePart(NamedTuple):
    """A part of a message, and the log-probabilities of its tokens. event: None for tokens without
    visible text."""

    event: Event | None
    entries: list[TokenLogprob]


class MessageWriter:
    """The message of one choice.

    text parts are "content" where the request leaves the text as the model wrote it.
    """

    def __init__(self, chat: PreparedChat, tokenizer: Tokenizer) -> None:
        self._chat = chat
        self._segmenter = None
        if chat.new_segmenter is not None:
            skips = chat.request.params.skip_special_tokens
            texts = TokenTexts(tokenizer, skip_special=skips)
            self._segmenter = ChoiceSegmenter(chat.new_segmenter(), texts)
        self._unsent_logprobs: list[TokenLogprob] = []
        self._held_text = ""
        self._held_entries: list[TokenLogprob] = []
        self._held_invisible_entries: list[TokenLogprob] = []
        """Log-probabilities of tokens without visible text after those in `_held_entries`."""

    @property
    def num_calls(self) -> int:
        return 0 if self._segmenter is None else self._segmenter.num_calls

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._segmenter is None else self._segmenter.num_reasoning_tokens

    def take_logprobs(self, num_tokens: int | None) -> list[TokenLogprob]:
        """Remove and return the log-probabilities of the next tokens that are in no part yet; None:
        of all."""
        entries = self._unsent_logprobs[:num_tokens]
        del self._unsent_logprobs[:num_tokens]
        return entries

    def parts(self, delta: Delta) -> list[MessagePart]:
        """Add a delta and return the parts of the message that are now complete."""
        self._unsent_logprobs += delta.logprobs or ()
        if self._segmenter is None:
            if not (delta.text or delta.logprobs):
                return []
            return [MessagePart(Event("content", delta.text), self.take_logprobs(None))]
        events = self._segmenter.push(delta.text, delta.token_ids, delta.marks)
        if delta.finish_reason is not None:
            events += self._segmenter.finish()
        if self._chat.request.params.logprobs is None:
            events = [counted for counted in events if counted.event is not None]
        result: list[MessagePart] = []
        for event, num_tokens in merge_adjacent(events):
            entries = self.take_logprobs(num_tokens)
            is_reasoning = event is not None and event.kind == "reasoning"
            if event is None or (is_reasoning and not self._chat.shows_reasoning):
                if self._held_text:
                    self._held_invisible_entries += entries
                elif entries:
                    result.append(MessagePart(None, entries))
            elif is_reasoning and not self._chat.streams_reasoning:
                self._held_text += event.text
                self._held_entries += [*self._held_invisible_entries, *entries]
                self._held_invisible_entries = []
            else:
                result += [*self._release_held(), MessagePart(event, entries)]
        return result + self._release_held() if delta.finish_reason is not None else result

    def _release_held(self) -> list[MessagePart]:
        """Return the reasoning that was held back, which is now complete."""
        if not self._held_text:
            return []
        held = [MessagePart(Event("reasoning", self._held_text), self._held_entries)]
        if self._held_invisible_entries:
            held.append(MessagePart(None, self._held_invisible_entries))
        self._held_text, self._held_entries, self._held_invisible_entries = "", [], []
        return held
