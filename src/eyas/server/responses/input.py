"""Converts the items of /v1/responses to the messages of a chat.

Promises: every text of an item reaches the messages, in order; the reasoning, the text and the calls of
one answer become one message, as the model wrote them. Does not know: templates, sampling, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eyas.core import field_error
from eyas.server.converted_chat import PlacedMessage, checked_calls
from eyas.server.request_models import FunctionCall, Message, RefusalPart, ToolCall
from eyas.server.responses.models import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputContent,
    InputItem,
    MessageItem,
    ReasoningItem,
)


def placed_messages(items: str | Sequence[InputItem], path: str) -> list[PlacedMessage]:
    """Return the messages of an input. path: that of the input. RequestError names an item that cannot
    be read."""
    if isinstance(items, str):
        return [PlacedMessage(Message(role="user", content=items), path, path)]
    messages: list[PlacedMessage] = []
    answer: _Answer | None = None
    for index, item in enumerate(items):
        place = f"{path}[{index}]"
        if isinstance(item, FunctionCallOutputItem) or (
            isinstance(item, MessageItem) and item.role != "assistant"
        ):
            messages += answer.placed() if answer else []
            answer = None
            messages.append(_other_message(item, place))
        else:
            if answer is None or not answer.can_have(item):
                messages += answer.placed() if answer else []
                answer = _Answer(place)
            answer.add(item, place)
    return messages + (answer.placed() if answer else [])


class _Answer:
    """The items of one answer: reasoning, then a text, then calls; each of them may be missing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._content_path = path
        self._reasoning: list[str] = []
        self._content: Any = None
        self._calls: list[ToolCall] = []

    def can_have(self, item: MessageItem | FunctionCallItem | ReasoningItem) -> bool:
        """Whether the item may follow those that the answer has."""
        if isinstance(item, FunctionCallItem):
            return True
        return self._content is None and not self._calls

    def add(self, item: MessageItem | FunctionCallItem | ReasoningItem, path: str) -> None:
        if isinstance(item, ReasoningItem):
            parts = item.content or item.summary or ()
            if item.encrypted_content and not parts:
                raise field_error(
                    f"{path}.encrypted_content",
                    "reasoning of another server cannot be read; leave "
                    "out the item, or send its content",
                )
            self._reasoning += [part.text for part in parts]
        elif isinstance(item, FunctionCallItem):
            function = FunctionCall(name=item.name, arguments=item.arguments)
            self._calls.append(ToolCall(id=item.call_id, function=function))
        else:
            self._content = _content(item.content)
            self._content_path = f"{path}.content"

    def placed(self) -> list[PlacedMessage]:
        reasoning = "\n".join(self._reasoning) or None
        if reasoning is None and self._content is None and not self._calls:
            return []
        message = Message(
            role="assistant",
            content=self._content,
            tool_calls=checked_calls(self._calls, self._path),
            reasoning_content=reasoning,
        )
        return [PlacedMessage(message, self._path, self._content_path)]


def _other_message(item: MessageItem | FunctionCallOutputItem, path: str) -> PlacedMessage:
    if isinstance(item, MessageItem):
        message = Message(role=item.role, content=_content(item.content))
        return PlacedMessage(message, path, f"{path}.content")
    message = Message(role="tool", tool_call_id=item.call_id, content=_content(item.output))
    return PlacedMessage(message, path, f"{path}.output")


def _content(content: InputContent) -> Any:
    """Return content as plain data, which `Message` validates."""
    if isinstance(content, str):
        return content
    return [
        {"type": "refusal", "refusal": part.refusal}
        if isinstance(part, RefusalPart)
        else {"type": "text", "text": part.text}
        for part in content
    ]
