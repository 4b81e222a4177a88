"""Streams for tests: a tokenizer of single characters, units of text and control tokens, cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from eyas.core import Mark
from eyas.dialect.base import Event, Segmenter
from eyas.dialect.segment import merged

FIRST_CONTROL = 0x110000


class Letters:
    """A tokenizer whose ordinary tokens are characters; `shown` control tokens appear in text."""

    def __init__(self, *control: str, hidden: Iterable[str] = ()) -> None:
        self._texts = dict(enumerate((*control, *hidden), FIRST_CONTROL))
        self._ids = {text: token for token, text in self._texts.items()}
        self.hidden = {self._ids[text] for text in hidden}
        self.control_ids = frozenset(self._texts)

    def control_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def encode_text(self, text: str, *, continues: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def decode(
        self, ids: Iterable[int], skip_special: bool = True, *, continues: bool = False
    ) -> str:
        return "".join(
            self._texts[i] if i in self._texts else chr(i)
            for i in ids
            if not (skip_special and i in self.hidden)
        )

    def tokens(self, text: str) -> list[int]:
        """The text's tokens with every marker a control token, as a template encodes."""
        ids: list[int] = []
        while text:
            token = next((t for s, t in self._ids.items() if text.startswith(s)), None)
            ids.append(ord(text[0]) if token is None else token)
            text = text[1 if token is None else len(self._texts[token]) :]
        return ids

    def stream(self, ids: Iterable[int]) -> Stream:
        """What a delta shows of these tokens."""
        text, marks = "", []
        for token in ids:
            shown = self.decode([token])
            if token in self.control_ids:
                marks.append(Mark(len(text), token, len(shown)))
            text += shown
        return Stream(text, tuple(marks))


@dataclass(frozen=True)
class Stream:
    text: str
    marks: tuple[Mark, ...]

    def cut(self, places: Sequence[int], splits: Sequence[int] = ()) -> list[Stream]:
        """Pieces that begin at these places; a hidden mark at a place goes to the piece before it
        where `splits` holds its number."""
        borders = sorted({0, *(place for place in places if place < len(self.text))})
        pieces = []
        for number, begin in enumerate(borders):
            end = borders[number + 1] if number + 1 < len(borders) else len(self.text)
            pieces.append((begin, end))
        marks: list[list[Mark]] = [[] for _ in pieces]
        latest = 0
        for number, mark in enumerate(self.marks):
            owner = max(i for i, (begin, _) in enumerate(pieces) if begin <= mark.offset)
            if mark.offset == pieces[owner][0] and owner > 0 and mark.length == 0:
                if number in splits:
                    owner -= 1
            latest = owner = max(owner, latest)
            marks[owner].append(Mark(mark.offset - pieces[owner][0], mark.token_id, mark.length))
        return [
            Stream(self.text[begin:end], tuple(found))
            for (begin, end), found in zip(pieces, marks, strict=True)
        ]

    def at_once(self, segmenter: Segmenter) -> list[Event]:
        return merged([*segmenter.push(self.text, self.marks), *segmenter.finish()])


def pushed(segmenter: Segmenter, pieces: Iterable[Stream]) -> list[Event]:
    """The events of these pushes, without the end."""
    events: list[Event] = []
    for piece in pieces:
        events += segmenter.push(piece.text, piece.marks)
    return events


@dataclass(frozen=True)
class Outcome:
    """What a client ends up with."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, events: Iterable[Event]) -> Outcome:
        reasoning, content, calls = "", "", []
        for event in events:
            match event.kind:
                case "reasoning":
                    reasoning += event.text
                case "content":
                    content += event.text
                case "tool_call":
                    assert event.index == len(calls)
                    calls.append((event.name, ""))
                case "arguments":
                    name, arguments = calls[event.index]
                    calls[event.index] = (name, arguments + event.text)
        return cls(reasoning, content, tuple(calls))

    def begins(self, other: Outcome) -> bool:
        """Is this what `other` was before it was complete?"""
        if not other.reasoning.startswith(self.reasoning):
            return False
        if not other.content.startswith(self.content) or len(self.calls) > len(other.calls):
            return False
        return all(
            mine[0] == theirs[0] and theirs[1].startswith(mine[1])
            for mine, theirs in zip(self.calls, other.calls, strict=False)
        )


def outputs(tokenizer: Letters, pieces: Sequence[str]) -> st.SearchStrategy[list[int]]:
    """Tokens of anything: markers as control tokens and spelled, their beginnings, doubled, text."""
    beginnings = [piece[:length] for piece in pieces for length in range(1, len(piece))]
    spelled = st.sampled_from([*pieces, *beginnings]).map(tokenizer.encode_text)
    control = st.sampled_from(sorted(tokenizer.control_ids) or [ord("x")]).map(lambda i: [i])
    whole = st.sampled_from(list(pieces)).map(tokenizer.tokens)
    text = st.text(st.sampled_from('ab \n{}[]":,;\\<>|/é0'), max_size=6).map(tokenizer.encode_text)
    return st.lists(st.one_of(whole, spelled, control, text), max_size=14).map(
        lambda parts: [token for part in parts for token in part]
    )
