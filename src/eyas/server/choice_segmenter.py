"""Splits the stream of one choice into reasoning, content and tool calls, and counts their tokens.

Promises: the events, the number of tokens of each event and the number of reasoning tokens depend
only on all tokens and their text, not on how the stream is cut into deltas. Does not know: how a
model writes reasoning and tool calls, JSON, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eyas.core import Mark
from eyas.dialect import Event, Segmenter
from eyas.server.token_texts import TokenTexts


class CountedEvent(NamedTuple):
    """An event and the number of its tokens. event: None for tokens without visible text, such as
    markers."""

    event: Event | None
    num_tokens: int


class ChoiceSegmenter:
    """Splits one choice, token by token.

    num_reasoning_tokens: a token counts as reasoning if the next event is reasoning. So the marker that
    opens reasoning counts, and the marker that closes it does not.
    """

    def __init__(self, segmenter: Segmenter, texts: TokenTexts) -> None:
        self._segmenter = segmenter
        self._texts = texts
        self._lengths: list[int] = []
        """Characters of each token since the last event."""
        self.num_reasoning_tokens = 0
        self.num_calls = 0

    def push(
        self, text: str, token_ids: Sequence[int], marks: Sequence[Mark]
    ) -> list[CountedEvent]:
        """Add a delta. Return the events that are now complete, in order."""
        counted: list[CountedEvent] = []
        for token in self._texts.push(text, token_ids, marks):
            self._lengths.append(len(token.text))
            counted += self._with_token_counts(self._segmenter.push(token.text, token.marks))
        return counted

    def finish(self) -> list[CountedEvent]:
        """Return the remaining events at the end of the stream, with the text of an incomplete
        character."""
        events = self._segmenter.push(self._texts.finish()) + self._segmenter.finish()
        return self._with_token_counts(events)

    def _with_token_counts(self, events: list[Event]) -> list[CountedEvent]:
        """Return the events with the number of their tokens, and count reasoning tokens and calls.

        The tokens are those since the last event. The first event has the last ones, as many as have
        the text of all events together. The tokens before them have no visible text.
        """
        if not events:
            return []
        kinds = [event.kind for event in events]
        if "reasoning" in kinds:
            self.num_reasoning_tokens += len(self._lengths)
        self.num_calls += kinds.count("tool_call")
        num_chars = sum([len(event.text) for event in events])
        num_tokens = 0
        while num_chars > 0 and num_tokens < len(self._lengths):
            num_tokens += 1
            num_chars -= self._lengths[-num_tokens]
        num_invisible = len(self._lengths) - num_tokens
        self._lengths.clear()
        invisible = [CountedEvent(None, num_invisible)] if num_invisible else []
        others = [CountedEvent(event, 0) for event in events[1:]]
        return [*invisible, CountedEvent(events[0], num_tokens), *others]


def merge_adjacent(events: Sequence[CountedEvent]) -> list[CountedEvent]:
    """Return the events with adjacent ones of the same kind (and the same call) merged."""
    result: list[CountedEvent] = []
    for counted in events:
        last = result[-1] if result else None
        if last is not None and _can_merge(last.event, counted.event):
            event = last.event
            if event is not None and counted.event is not None:
                event = event._replace(text=event.text + counted.event.text)
            result[-1] = CountedEvent(event, last.num_tokens + counted.num_tokens)
        else:
            result.append(counted)
    return result


def _can_merge(first: Event | None, second: Event | None) -> bool:
    if first is None or second is None:
        return first is second
    is_start = second.kind == "tool_call"
    return not is_start and (first.kind, first.index) == (second.kind, second.index)
