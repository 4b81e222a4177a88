"""One choice's stream as reasoning, content and tool calls, with its tokens counted.

Promises: the events do not depend on how the stream was cut into deltas, the count of reasoning tokens
neither. Does not know: how any model writes these, JSON, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from eyas.core import Mark
from eyas.dialect import Event, Segmenter
from eyas.text import Detokenizer


class Piece(NamedTuple):
    """An event and how many tokens spell it; None: tokens that show as nothing, such as markers."""

    event: Event | None
    num_tokens: int


class Segments:
    """Splits one choice, its text cut at its tokens.

    num_reasoning_tokens: a token counts with the text that comes out next, so the marker that opens
    reasoning counts as reasoning and the one that closes it does not.
    """

    def __init__(self, segmenter: Segmenter, detokenizer: Detokenizer) -> None:
        """detokenizer: as new, with the choice's own way to treat special tokens."""
        self._segmenter = segmenter
        self._detokenizer = detokenizer
        self._num_silent = 0
        self._lengths: list[int] = []
        self.num_reasoning_tokens = 0
        self.num_calls = 0

    def push(self, text: str, token_ids: Sequence[int], marks: Sequence[Mark]) -> list[Piece]:
        """A delta's pieces, in order."""
        pieces: list[Piece] = []
        for part, own_marks, num_tokens in self._parts(text, token_ids, marks):
            if num_tokens:
                self._lengths.append(len(part))
            events = self._segmenter.push(part, own_marks)
            self._count(events, num_tokens)
            pieces += self._placed(events)
        return pieces

    def finish(self) -> list[Piece]:
        """The rest, at the end of the stream."""
        events = self._segmenter.finish()
        self._count(events, 0)
        return self._placed(events)

    def _placed(self, events: list[Event]) -> list[Piece]:
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
        silent = [Piece(None, num_silent)] if num_silent else []
        return [*silent, Piece(events[0], num_tokens), *(Piece(e, 0) for e in events[1:])]

    def _count(self, events: list[Event], num_tokens: int) -> None:
        self._num_silent += num_tokens
        if events:
            if any(event.kind == "reasoning" for event in events):
                self.num_reasoning_tokens += self._num_silent
            self._num_silent = 0
        self.num_calls += sum(event.kind == "tool_call" for event in events)

    def _parts(
        self, text: str, token_ids: Sequence[int], marks: Sequence[Mark]
    ) -> Iterator[tuple[str, list[Mark], int]]:
        """The text and marks of each token; together all of both, whatever the tokens are."""
        begin, place = 0, 0
        for token_id in token_ids[:-1]:
            end = min(len(text), begin + len(self._detokenizer.push(token_id)))
            own = []
            if place < len(marks):
                mark = marks[place]
                end = min(end, mark.offset)
                if mark.token_id == token_id:
                    end = mark.offset + mark.length
                    own = [Mark(mark.offset - begin, token_id, mark.length)]
                    place += 1
            yield text[begin:end], own, 1
            begin = end
        rest = [Mark(mark.offset - begin, mark.token_id, mark.length) for mark in marks[place:]]
        for token_id in token_ids[-1:]:
            self._detokenizer.push(token_id)
        if text[begin:] or rest or token_ids:
            yield text[begin:], rest, min(1, len(token_ids))


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbours of one kind (and one call) put together."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if last is not None and _belong_together(last.event, piece.event):
            event = last.event
            if event is not None and piece.event is not None:
                event = replace(event, text=event.text + piece.event.text)
            result[-1] = Piece(event, last.num_tokens + piece.num_tokens)
        else:
            result.append(piece)
    return result


def _belong_together(first: Event | None, second: Event | None) -> bool:
    if first is None or second is None:
        return first is second
    is_start = second.kind == "tool_call"
    return not is_start and (first.kind, first.index) == (second.kind, second.index)
