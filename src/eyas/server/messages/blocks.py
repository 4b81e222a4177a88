"""Writes the content blocks of a message, and the events that tell of them.

Promises: the deltas of a block add up to the block. Does not know: where the parts of a message come
from, HTTP.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from pydantic_core import from_json

from eyas.dialect import Event

_TYPES = {
    "reasoning": "thinking",
    "content": "text",
    "tool_call": "tool_use",
    "arguments": "tool_use",
}
"""The type of the block of each kind of event."""
_DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of the deltas of a block, and their field."""


class BlockWriter:
    """The content blocks of one message: thinking, text and tool_use, in order.

    blocks: those that are complete.
    """

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []

    def write(self, event: Event) -> list[dict[str, Any]]:
        """Add a part of the message. Return the events that tell of it."""
        events = []
        block_type = _TYPES[event.kind]
        is_next = event.kind == "tool_call"
        if self._open is None or self._open["type"] != block_type or is_next:
            events += self.finish()
            self._open = _new_block(block_type, event.name)
            events.append(self._event("start", content_block=self._open))
        if event.text:
            self._texts.append(event.text)
            delta_type, name = _DELTAS[block_type]
            events.append(self._event("delta", delta={"type": delta_type, name: event.text}))
        return events

    def finish(self) -> list[dict[str, Any]]:
        """End the last block."""
        if self._open is None:
            return []
        text, name = "".join(self._texts), self._open["type"]
        value = {"input": _input(text)} if name == "tool_use" else {name: text}
        events = [self._event("stop")]
        self.blocks.append({**self._open, **value})
        self._open, self._texts = None, []
        return events

    def _event(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"content_block_{name}", "index": len(self.blocks), **fields}


def _new_block(block_type: str, name: str) -> dict[str, Any]:
    """Return an empty block. Reasoning is not signed: its signature is empty."""
    if block_type == "text":
        return {"type": "text", "text": ""}
    if block_type == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": name, "input": {}}


def _input(text: str) -> Any:
    """Return the arguments of a call. Of arguments that were cut off, the members that are complete,
    as Anthropic's clients read a stream."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return msgspec.Raw(text.encode())
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        partial = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return partial if isinstance(partial, dict) else {}
