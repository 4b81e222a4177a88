"""Writes the output items of a response, and the events that tell of them.

Promises: the deltas of an item add up to its text, and the items in the last events are those of the
whole response. Does not know: where the parts of a message come from, HTTP.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from eyas.dialect import Event
from eyas.server.formats import new_call_id

Status = Literal["in_progress", "completed", "incomplete"]
_TYPES = {
    "reasoning": ("reasoning", "rs"),
    "content": ("message", "msg"),
    "tool_call": ("function_call", "fc"),
    "arguments": ("function_call", "fc"),
}
"""The type of the item of each kind of event, and how its id begins."""
_TEXT_EVENTS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


@dataclass(slots=True)
class _OpenItem:
    """The item that is being written. head: its fields but for status and text."""

    index: int
    head: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    logprobs: list[msgspec.Raw] = field(default_factory=list)

    @property
    def type(self) -> str:
        return self.head["type"]

    @property
    def place(self) -> dict[str, Any]:
        """Where an event about the text of the item is."""
        place = {"item_id": self.head["id"], "output_index": self.index}
        return place if self.type == "function_call" else {**place, "content_index": 0}

    def part(self) -> dict[str, Any]:
        """Return the one content part of the item."""
        text = "".join(self.texts)
        if self.type == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = list(self.logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: Status) -> dict[str, Any]:
        """Return the item. In progress it has no content yet."""
        item = {**self.head, "status": status}
        if self.type == "function_call":
            return {**item, "arguments": "".join(self.texts)}
        return {**item, "content": [] if status == "in_progress" else [self.part()]}


class ItemWriter:
    """The output items of one response: reasoning, messages and function calls, in order.

    items: those that are complete.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None

    def write(self, event: Event, logprobs: Sequence[msgspec.Raw]) -> list[dict[str, Any]]:
        """Add a part of the message. Return the events that tell of it. logprobs: those of the tokens
        of a text, encoded."""
        events = []
        item_type, _ = _TYPES[event.kind]
        is_next = event.kind == "tool_call"
        if self._open is None or self._open.type != item_type or is_next:
            events += self._close("completed")
            events += self._begin(event)
        assert self._open is not None
        is_text = self._open.type == "message"
        if event.text or (is_text and logprobs):
            self._open.texts.append(event.text)
            delta = {**self._open.place, "delta": event.text}
            if is_text:
                self._open.logprobs += logprobs
                delta["logprobs"] = list(logprobs)
            events.append({"type": f"{_TEXT_EVENTS[self._open.type]}.delta", **delta})
        return events

    def cut_off(self) -> list[dict[str, Any]]:
        """Return the items of a response that failed, the open one with what it has so far."""
        begun = [] if self._open is None else [self._open.item("incomplete")]
        return [*self.items, *begun]

    def finish(self, status: Status) -> list[dict[str, Any]]:
        """End the last item. A response that is complete has at least a message or a call."""
        events = self._close(status)
        if status == "completed" and not any(item["type"] != "reasoning" for item in self.items):
            events += [*self._begin(Event("content")), *self._close(status)]
        return events

    def _begin(self, event: Event) -> list[dict[str, Any]]:
        item_type, prefix = _TYPES[event.kind]
        head: dict[str, Any] = {"id": f"{prefix}_{secrets.token_hex(16)}", "type": item_type}
        if item_type == "message":
            head["role"] = "assistant"
        elif item_type == "reasoning":
            head |= {"summary": [], "encrypted_content": None}
        else:
            head |= {"call_id": new_call_id(), "name": event.name}
        self._open = _OpenItem(len(self.items), head)
        added = {"output_index": self._open.index, "item": self._open.item("in_progress")}
        events = [{"type": "response.output_item.added", **added}]
        if item_type != "function_call":
            part = {**self._open.place, "part": self._open.part()}
            events.append({"type": "response.content_part.added", **part})
        return events

    def _close(self, status: Status) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        closed, self._open = self._open, None
        done: dict[str, Any] = dict(closed.place)
        if closed.type == "function_call":
            done |= {"name": closed.head["name"], "arguments": "".join(closed.texts)}
        else:
            done["text"] = "".join(closed.texts)
        if closed.type == "message":
            done["logprobs"] = list(closed.logprobs)
        events = [{"type": f"{_TEXT_EVENTS[closed.type]}.done", **done}]
        if closed.type != "function_call":
            part = {**closed.place, "part": closed.part()}
            events.append({"type": "response.content_part.done", **part})
        item = closed.item(status)
        self.items.append(item)
        events.append(
            {"type": "response.output_item.done", "output_index": closed.index, "item": item}
        )
        return events
