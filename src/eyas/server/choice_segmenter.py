"""One choice's stream as reasoning, content and tool calls, with its tokens counted.

Promises: events, the tokens of each and the count of reasoning tokens are a function of all tokens and
their text, so they do not depend on how the stream was cut into deltas. Does not know: how any model
writes these, JSON, HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from eyas.core import Mark
from eyas.dialect import Event, Segmenter
from eyas.text import Detokenizer


class CountedEvent(NamedTuple):
    """An event and how many tokens spell it; None: tokens that show as nothing, such as markers."""

    event: Event | None
    num_tokens: int


class ChoiceSegmenter:
    """Splits one choice, token by token: text that came before its token waits for it, as it does where
    the token's other end may begin a stop string.

    num_reasoning_tokens: a token counts with the text that comes out next, so the marker that opens
    reasoning counts as reasoning and the one that closes it does not.
    """

    def __init__(self, segmenter: Segmenter, detokenizer: Detokenizer) -> None:
        """detokenizer: as new, like the one that the text comes from."""
        self._segmenter = segmenter
        self._detokenizer = detokenizer
        self._text = ""
        self._marks: deque[Mark] = deque()
        self._num_silent = 0
        self._lengths: list[int] = []
        self.num_reasoning_tokens = 0
        self.num_calls = 0

    def push(
        self, text: str, token_ids: Sequence[int], marks: Sequence[Mark]
    ) -> list[CountedEvent]:
        """The pieces that are complete with a delta, in order."""
        self._text += text
        self._marks.extend(marks)
        pieces: list[CountedEvent] = []
        begin = 0
        for token_id in token_ids:
            end = begin + len(self._detokenizer.push(token_id))
            part = self._text[begin:end]  # shorter where a stop string has cut the text off
            own: list[Mark] = []
            if self._marks and self._marks[0].token_id == token_id:
                own.append(Mark(0, token_id, self._marks.popleft().length))
            begin += len(part)
            self._lengths.append(len(part))
            pieces += self._noted(self._segmenter.push(part, own), 1)
        self._text = self._text[begin:]
        return pieces

    def finish(self) -> list[CountedEvent]:
        """The rest, at the end of the stream, with text that is no token's: half a character."""
        events = self._segmenter.push(self._text) + self._segmenter.finish()
        self._text = ""
        return self._noted(events, 0)

    def _noted(self, events: list[Event], num_tokens: int) -> list[CountedEvent]:
        self._count(events, num_tokens)
        return self._placed(events)

    def _placed(self, events: list[Event]) -> list[CountedEvent]:
        """The events with their tokens: the last ones, as many as it takes to spell them."""
        if not events:
            return []
        num_chars = sum(len(event.text) for event in events)
        num_tokens = 0
        while num_chars > 0 and num_tokens < len(self._lengths):
            num_tokens += 1
            num_chars -= self._lengths[-num_tokens]
        num_silent = len(self._lengths) - num_tokens
        self._lengths.clear()
        silent = [CountedEvent(None, num_silent)] if num_silent else []
        return [
            *silent,
            CountedEvent(events[0], num_tokens),
            *(CountedEvent(e, 0) for e in events[1:]),
        ]

    def _count(self, events: list[Event], num_tokens: int) -> None:
        self._num_silent += num_tokens
        if events:
            if any(event.kind == "reasoning" for event in events):
                self.num_reasoning_tokens += self._num_silent
            self._num_silent = 0
        self.num_calls += sum(event.kind == "tool_call" for event in events)


def merge_adjacent(pieces: Sequence[CountedEvent]) -> list[CountedEvent]:
    """The same with neighbours of one kind (and one call) put together."""
    result: list[CountedEvent] = []
    for piece in pieces:
        last = result[-1] if result else None
        if last is not None and _belong_together(last.event, piece.event):
            event = last.event
            if event is not None and piece.event is not None:
                event = replace(event, text=event.text + piece.event.text)
            result[-1] = CountedEvent(event, last.num_tokens + piece.num_tokens)
        else:
            result.append(piece)
    return result


def _belong_together(first: Event | None, second: Event | None) -> bool:
    if first is None or second is None:
        return first is second
    is_start = second.kind == "tool_call"
    return not is_start and (first.kind, first.index) == (second.kind, second.index)
