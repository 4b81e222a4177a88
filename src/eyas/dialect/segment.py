"""The engine under every segmenter: code that reads a stream as if it were all there.

A dialect says in straight code what it expects ("text up to this marker, then a JSON value"). Such code
is a generator: it pauses where the stream has not come further, and goes on with the next push.

Promises: what a `StreamReader` gives depends on what came, never on how it was cut, so whatever is
built on it obeys the stream law. Held back is only what cannot be decided yet: the beginning of a
marker, and white space that may be trimmed.
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
"""Code that yields where it needs more of the stream, and returns its result."""
Sink: TypeAlias = Callable[[str], None]

WHITE = " \t\r\n"


class Control(NamedTuple):
    """A control token in the stream and the text it shows as."""

    token_id: int
    text: str


class _Unfinished(NamedTuple):
    """A control token of whose shown text some characters are still to come."""

    token_id: int
    text: str
    num_missing: int


class StreamReader:
    """A stream of text and control tokens, of which some has come.

    Text that spells a marker is found only between control tokens, never across one.
    """

    def __init__(self) -> None:
        self._items: deque[str | Control] = deque()
        self._unfinished: _Unfinished | None = None
        self._has_ended = False
        self._record: list[str] | None = None

    def feed(self, text: str, marks: Sequence[Mark]) -> None:
        """More of the stream came."""
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
        """Nothing more will come."""
        if self._unfinished is not None:
            self._add_control(self._unfinished.token_id, self._unfinished.text, 0)
        self._has_ended = True

    @property
    def is_at_end(self) -> bool:
        """Has everything been read, and will nothing come?"""
        return self._has_ended and not self._items

    def peek(self) -> Reading[str | Control | None]:
        """What comes next, as much text of it as has come; None at the end."""
        while not self._items:
            if self._has_ended:
                return None
            yield
        return self._items[0]

    def take(self, num_chars: int) -> str:
        """Reads so many characters of the text that `peek` gave."""
        head = self._items.popleft()
        assert isinstance(head, str) and num_chars <= len(head)
        if num_chars < len(head):
            self._items.appendleft(head[num_chars:])
        self._note(head[:num_chars])
        return head[:num_chars]

    def unread(self, text: str) -> None:
        """Puts text back in front."""
        if not text:
            return
        if self._items and isinstance(self._items[0], str):
            self._items[0] = text + self._items[0]
        else:
            self._items.appendleft(text)

    def at(self, *markers: Marker) -> Reading[Marker | None]:
        """Reads the one of these markers that stands right here, if one does."""
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
        """Passes text on up to the first of these markers, and reads it; None where none came.

        trim: characters that are left out where they stand right before the marker.
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
        """The text up to the first of these markers, and which it was."""
        pieces: list[str] = []
        marker = yield from self.until(markers, pieces.append)
        return "".join(pieces), marker

    def span(self, characters: str) -> Reading[str]:
        """Reads as long as it is these characters."""
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
        """Reads white space."""
        return (yield from self.span(WHITE))

    def record(self) -> None:
        """From here on what is read is kept for `recorded`."""
        self._record = []

    def recorded(self) -> str:
        """What was read since `record`, which ends here."""
        text = "".join(self._record or ())
        self._record = None
        return text

    @property
    def _may_grow(self) -> bool:
        """May the text in front go on?"""
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
        self._note(item.text)

    def _note(self, text: str) -> None:
        if self._record is not None:
            self._record.append(text)


class Writer:
    """Where what was read goes: the events of one stream."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._events: list[Event] = []

    def reasoning(self, text: str) -> None:
        self._add("reasoning", text)

    def content(self, text: str) -> None:
        self._add("content", text)

    def call(self, name: str) -> None:
        """A call begins; `arguments` go to it from now on."""
        self._events.append(Event("tool_call", index=self.num_calls, name=name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        self._add("arguments", text, self.num_calls - 1)

    def drain(self) -> list[Event]:
        """The events since the last time, put together where they belong together."""
        events, self._events = merged(self._events), []
        return events

    def _add(self, kind: EventKind, text: str, index: int = 0) -> None:
        if text:
            self._events.append(Event(kind, text, index))


class StreamSegmenter(Segmenter):
    """A segmenter that is code which reads: `parse` is started with the first push."""

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
    """The same events with neighbours of one kind (and one call) put together."""
    result: list[Event] = []
    pieces: list[str] = []
    for event in events:
        last = result[-1] if result else None
        if last and event.kind != "tool_call" and _belong_together(last, event):
            pieces.append(event.text)
            continue
        _close(result, pieces)
        result.append(event)
        pieces = [event.text]
    _close(result, pieces)
    return result


def _belong_together(first: Event, second: Event) -> bool:
    return first.kind == second.kind and first.index == second.index


def _close(result: list[Event], pieces: list[str]) -> None:
    if len(pieces) > 1:
        result[-1] = Event(result[-1].kind, "".join(pieces), result[-1].index)


def _pass(sink: Sink, text: str) -> None:
    if text:
        sink(text)


def _marker_of(control: Control, markers: Sequence[Marker]) -> Marker | None:
    return next((marker for marker in markers if marker.token_id == control.token_id), None)


def _first_spelled(text: str, spelled: Sequence[Marker]) -> tuple[int, Marker | None]:
    """The first place where one of these markers is spelled."""
    places = [(text.find(marker.text), marker) for marker in spelled]
    found = [(place, marker) for place, marker in places if place >= 0]
    return min(found, key=lambda pair: pair[0], default=(len(text), None))


def _length_of_beginning(text: str, spelled: Sequence[Marker]) -> int:
    """How many of the last characters may be the beginning of one of these markers."""
    longest = max((len(marker.text) - 1 for marker in spelled), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.text.startswith(tail) for marker in spelled):
            return length
    return 0
