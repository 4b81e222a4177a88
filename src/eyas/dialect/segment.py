"""The parts that all segmenters share: incremental parsing of a stream with generators.

A dialect parses a stream as if it were complete ("text up to this marker, then a JSON value"). The
parser is a generator: it yields where it needs more of the stream, and continues with the next push.

Promises: the results of a `StreamReader` depend on the stream, not on how it is cut, so every segmenter
obeys the stream law. Only undecided text is held back: the beginning of a marker, and white space that
may be trimmed.
Does not know: any format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from eyas.core import Mark
from eyas.dialect.base import Event, EventKind, Segmenter
from eyas.grammar import Marker

Result = TypeVar("Result")
Reading: TypeAlias = Generator[None, None, Result]
"""A parser that yields where it needs more of the stream, and returns its result."""
Sink: TypeAlias = Callable[[str], None]

WHITE = " \t\r\n"


class Control(NamedTuple):
    """A control token in the stream, and its text there."""

    token_id: int
    text: str


class _Unfinished(NamedTuple):
    """A control token with `num_missing` characters of its text not received yet."""

    token_id: int
    text: str
    num_missing: int


class StreamReader:
    """The received part of a stream of text and control tokens.

    Text that spells a marker is found between control tokens only, never across one.
    """

    def __init__(self) -> None:
        self._items: deque[str | Control] = deque()
        self._unfinished: _Unfinished | None = None
        self._has_ended = False
        self._record: list[str] | None = None

    def feed(self, text: str, marks: Sequence[Mark]) -> None:
        """Append a part of the stream."""
        begin = 0
        if self._unfinished is not None:
            token_id, shown, num_missing = self._unfinished
            begin = min(num_missing, len(text))
            self._add_control(token_id, shown + text[:begin], num_missing - begin)
        for mark in marks:
            self._add_text(text[begin : mark.offset])
            begin = max(begin, mark.offset)
            shown = text[begin : begin + mark.length]
            begin += len(shown)
            self._add_control(mark.token_id, shown, mark.length - len(shown))
        self._add_text(text[begin:])

    def end(self) -> None:
        """Mark the stream as complete."""
        if self._unfinished is not None:
            self._add_control(self._unfinished.token_id, self._unfinished.text, 0)
        self._has_ended = True

    @property
    def is_at_end(self) -> bool:
        """Whether the stream is complete and everything has been read."""
        return self._has_ended and not self._items

    def peek(self) -> Reading[str | Control | None]:
        """Return the next received text or control token without reading it; None at the end."""
        while not self._items:
            if self._has_ended:
                return None
            yield
        return self._items[0]

    def take(self, num_chars: int) -> str:
        """Read characters of the text that `peek` returned."""
        head = self._items.popleft()
        assert isinstance(head, str) and num_chars <= len(head)
        if num_chars < len(head):
            self._items.appendleft(head[num_chars:])
        self._record_text(head[:num_chars])
        return head[:num_chars]

    def unread(self, text: str) -> None:
        """Put text back to the front of the stream."""
        if not text:
            return
        if self._items and isinstance(self._items[0], str):
            self._items[0] = text + self._items[0]
        else:
            self._items.appendleft(text)

    def at(self, *markers: Marker) -> Reading[Marker | None]:
        """Read one of these markers if the stream continues with it; else return None."""
        while True:
            head = yield from self.peek()
            if head is None:
                return None
            if isinstance(head, Control):
                marker = _marker_of(head, markers)
                if marker is not None:
                    self._take_control()
                return marker
            spelled = [marker for marker in markers if marker.is_text]
            for marker in spelled:
                if head.startswith(marker.text):
                    self.take(len(marker.text))
                    return marker
            if not self._may_grow or not any(m.text.startswith(head) for m in spelled):
                return None
            yield

    def until(
        self, markers: Sequence[Marker], sink: Sink, *, trim: str = ""
    ) -> Reading[Marker | None]:
        """Pass the text before the first of these markers to `sink`, and read the marker; None if there
        is none up to the end.

        trim: characters to drop directly before the marker.
        """
        spelled = [marker for marker in markers if marker.is_text]
        held = ""
        while True:
            head = yield from self.peek()
            if head is None:
                _pass(sink, held)
                return None
            if isinstance(head, Control):
                self._take_control()
                marker = _marker_of(head, markers)
                if marker is not None:
                    return marker
                _pass(sink, held + head.text)
                held = ""
                continue
            place, marker = _first_spelled(head, spelled)
            if marker is not None:
                _pass(sink, head[:place].rstrip(trim))
                self.take(place + len(marker.text))
                return marker
            if self._may_grow:
                certain = head[: len(head) - _length_of_beginning(head, spelled)].rstrip(trim)
                if certain:
                    sink(self.take(len(certain)))
                yield
            else:
                certain = head.rstrip(trim)
                _pass(sink, certain)
                held = self.take(len(head))[len(certain) :]

    def collect(self, *markers: Marker) -> Reading[tuple[str, Marker | None]]:
        """Return the text before the first of these markers, and the marker."""
        pieces: list[str] = []
        marker = yield from self.until(markers, pieces.append)
        return "".join(pieces), marker

    def span(self, characters: str) -> Reading[str]:
        """Read and return a run of these characters."""
        pieces: list[str] = []
        while True:
            head = yield from self.peek()
            if not isinstance(head, str):
                break
            length = len(head) - len(head.lstrip(characters))
            pieces.append(self.take(length) if length else "")
            if length < len(head):
                break
        return "".join(pieces)

    def white(self) -> Reading[str]:
        """Read and return white space."""
        return (yield from self.span(WHITE))

    def record(self) -> None:
        """Start to record the text that is read."""
        self._record = []

    def recorded(self) -> str:
        """Stop recording, and return the text read since `record`."""
        text = "".join(self._record or ())
        self._record = None
        return text

    @property
    def _may_grow(self) -> bool:
        """Whether the first text may still grow."""
        return len(self._items) == 1 and not self._has_ended

    def _add_text(self, text: str) -> None:
        if not text:
            return
        if self._items and isinstance(self._items[-1], str):
            self._items[-1] += text
        else:
            self._items.append(text)

    def _add_control(self, token_id: int, shown: str, num_missing: int) -> None:
        if num_missing > 0:
            self._unfinished = _Unfinished(token_id, shown, num_missing)
        else:
            self._unfinished = None
            self._items.append(Control(token_id, shown))

    def _take_control(self) -> None:
        item = self._items.popleft()
        assert isinstance(item, Control)
        self._record_text(item.text)

    def _record_text(self, text: str) -> None:
        if self._record is not None:
            self._record.append(text)


class Writer:
    """Collects the events of one stream."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._events: list[Event] = []

    def reasoning(self, text: str) -> None:
        self._add("reasoning", text)

    def content(self, text: str) -> None:
        self._add("content", text)

    def call(self, name: str) -> None:
        """Begin a call; the following `arguments` belong to it."""
        self._events.append(Event("tool_call", index=self.num_calls, name=name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        self._add("arguments", text, self.num_calls - 1)

    def drain(self) -> list[Event]:
        """Return the merged events since the last call."""
        events, self._events = merged(self._events), []
        return events

    def _add(self, kind: EventKind, text: str, index: int = 0) -> None:
        if text:
            self._events.append(Event(kind, text, index))


class StreamSegmenter(Segmenter):
    """A segmenter that runs a parser, which the first push starts."""

    def __init__(self, parse: Callable[[StreamReader, Writer], Reading[None]]) -> None:
        self._reader = StreamReader()
        self._writer = Writer()
        self._parsing = parse(self._reader, self._writer)

    def push(self, text: str, marks: Sequence[Mark] = ()) -> list[Event]:
        self._reader.feed(text, marks)
        next(self._parsing, None)
        return self._writer.drain()

    def finish(self) -> list[Event]:
        self._reader.end()
        for _ in self._parsing:
            raise AssertionError("a parser waits for more of a stream that has ended")
        return self._writer.drain()


def merged(events: Iterable[Event]) -> list[Event]:
    """Return the events with neighbours of the same kind and call joined."""
    result: list[Event] = []
    pieces: list[str] = []
    for event in events:
        last = result[-1] if result else None
        if last and event.kind != "tool_call" and _are_joinable(last, event):
            pieces.append(event.text)
            continue
        _close(result, pieces)
        result.append(event)
        pieces = [event.text]
    _close(result, pieces)
    return result


def _are_joinable(first: Event, second: Event) -> bool:
    return first.kind == second.kind and first.index == second.index


def _close(result: list[Event], pieces: list[str]) -> None:
    if len(pieces) > 1:
        result[-1] = Event(result[-1].kind, "".join(pieces), result[-1].index)


def ignore(text: str) -> None:
    """A sink that drops text."""


def _pass(sink: Sink, text: str) -> None:
    if text:
        sink(text)


def _marker_of(control: Control, markers: Sequence[Marker]) -> Marker | None:
    return next((marker for marker in markers if marker.token_id == control.token_id), None)


def _first_spelled(text: str, spelled: Sequence[Marker]) -> tuple[int, Marker | None]:
    """Return the first position of one of these markers in the text, and the marker."""
    places = [(text.find(marker.text), marker) for marker in spelled]
    found = [(place, marker) for place, marker in places if place >= 0]
    return min(found, key=lambda pair: pair[0], default=(len(text), None))


def _length_of_beginning(text: str, spelled: Sequence[Marker]) -> int:
    """Return how many of the last characters may be the beginning of one of these markers."""
    longest = 0
    for marker in spelled:
        tail = text[-len(marker.text) :][1:] if len(text) >= len(marker.text) else text
        place = tail.find(marker.text[0])
        while place >= 0 and not marker.text.startswith(tail[place:]):
            place = tail.find(marker.text[0], place + 1)
        if place >= 0:
            longest = max(longest, len(tail) - place)
    return longest
