"""Converts the turns of /v1/messages to the messages of a chat.

Promises: every text of a block reaches the messages, in order; a result of a tool becomes a message of
its own. Does not know: templates, sampling, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from eyas.server.converted_chat import PlacedMessage, checked_calls
from eyas.server.messages.models import (
    AssistantBlock,
    AssistantTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    UserTurn,
)
from eyas.server.request_models import FunctionCall, Message, ToolCall


def placed_turns(turns: Sequence[Turn]) -> list[PlacedMessage]:
    """Return the messages of the turns. RequestError names a turn that cannot be read."""
    messages: list[PlacedMessage] = []
    for index, turn in enumerate(turns):
        path = f"messages[{index}]"
        if isinstance(turn, UserTurn):
            messages += _of_user(turn, path)
        elif isinstance(turn, AssistantTurn):
            messages += _of_assistant(turn, path)
        else:
            messages.append(placed_text(turn.role, turn.content, path, f"{path}.content"))
    return messages


def placed_text(
    role: Any, text: str | Sequence[Any], path: str, content_path: str
) -> PlacedMessage:
    """Return the message of a text. path, content_path: as in `PlacedMessage`."""
    return PlacedMessage(Message(role=role, content=_content(text)), path, content_path)


def _of_user(turn: UserTurn, path: str) -> list[PlacedMessage]:
    content_path = f"{path}.content"
    if isinstance(turn.content, str):
        return [placed_text(turn.role, turn.content, path, content_path)]
    messages = []
    numbered = enumerate(turn.content)
    for is_result, group in groupby(numbered, lambda item: isinstance(item[1], ToolResultBlock)):
        if is_result:
            messages += [_of_result(block, f"{content_path}[{place}]") for place, block in group]
        else:
            texts = [block for _, block in group]
            messages.append(placed_text(turn.role, texts, path, content_path))
    return messages


def _of_result(block: Any, path: str) -> PlacedMessage:
    content = _content(block.content or "")
    message = Message(role="tool", tool_call_id=block.tool_use_id, content=content)
    return PlacedMessage(message, path, f"{path}.content")


def _of_assistant(turn: AssistantTurn, path: str) -> list[PlacedMessage]:
    """Return one message for each reasoning, text and calls in this order; each may be missing."""
    content_path = f"{path}.content"
    if isinstance(turn.content, str):
        return [placed_text(turn.role, turn.content, path, content_path)]
    parts: list[list[AssistantBlock]] = [[]]
    for block in turn.content:
        if parts[-1] and _order(block) < _order(parts[-1][-1]):
            parts.append([])
        parts[-1].append(block)
    messages = [_answer(blocks, content_path) for blocks in parts]
    return [PlacedMessage(message, path, content_path) for message in messages if message]


def _order(block: AssistantBlock) -> int:
    return [ThinkingBlock, TextBlock, ToolUseBlock].index(type(block))


def _answer(blocks: Sequence[AssistantBlock], path: str) -> Message | None:
    reasoning = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    calls = [
        ToolCall(
            id=block.id,
            function=FunctionCall(
                name=block.name, arguments=msgspec.json.encode(block.input).decode()
            ),
        )
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if not (any(reasoning) or texts or calls):
        return None
    return Message(
        role="assistant",
        content=_content(texts) if texts else None,
        tool_calls=checked_calls(calls, path),
        reasoning_content="\n".join(reasoning) or None,
    )


def _content(text: str | Sequence[Any]) -> Any:
    """Return content as plain data, which `Message` validates."""
    if isinstance(text, str):
        return text
    return [{"type": "text", "text": block.text} for block in text]
