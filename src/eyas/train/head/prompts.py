"""Where conversations come from: a JSONL file, or the generator of the built-in model.

Promises: a line that cannot be used is a ValueError that names the file and the line. Does not know:
tokens, models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas.builtin.families import mixture
from eyas.train.head.config import Thinking

_KNOWN_KEYS = frozenset({"messages", "tools", "enable_thinking", "prompt"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Either a plain text, or messages with the tools on offer. enable_thinking None is the
    template's own default."""

    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    enable_thinking: bool | None = None


def read_prompts(source: str, thinking: Thinking) -> list[Conversation]:
    """Conversations up to the answer that the target is to write."""
    found = [_without_answer(conversation) for conversation in _read(source)]
    if thinking == "as-given":
        return found
    if thinking == "both":
        return [replace(c, enable_thinking=on) for c in found for on in (True, False)]
    return [replace(c, enable_thinking=thinking == "on") for c in found]


def read_conversations(source: str) -> list[Conversation]:
    """Complete conversations; the last message of each is the answer to learn from."""
    found = list(_read(source))
    for place, conversation in enumerate(found, start=1):
        if not conversation.messages or conversation.messages[-1].get("role") != "assistant":
            raise ValueError(
                f"{source}: conversation {place} does not end in an assistant message; pass it as "
                "--prompts, so that the model writes the answer"
            )
    return found


def check_source(source: str, setting: str) -> None:
    """ValueError unless `read_...` can start on this source."""
    if source.startswith("builtin:"):
        _builtin_parts(source)
    elif not Path(source).is_file():
        raise ValueError(
            f"{setting}: {source} is no file; give a JSONL file of messages, or builtin:N for N "
            "conversations of the built-in generator"
        )


def _read(source: str) -> Iterator[Conversation]:
    if source.startswith("builtin:"):
        count, seed = _builtin_parts(source)
        for example in mixture(f"head/{seed}", "train", count):
            yield Conversation(None, example.messages, example.tools, example.enable_thinking)
        return
    path = Path(source)
    empty = True
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                empty = False
                yield _conversation(line, f"{path}:{number}")
    if empty:
        raise ValueError(f"{path}: holds no prompts; write one JSON object a line")


def _builtin_parts(source: str) -> tuple[int, str]:
    """`builtin:N[:seed]`."""
    parts = source.split(":")
    if len(parts) not in (2, 3) or not parts[1].isdigit() or int(parts[1]) < 1:
        raise ValueError(f"{source}: write builtin:N or builtin:N:seed, such as builtin:20000")
    return int(parts[1]), parts[2] if len(parts) > 2 else "0"


def _conversation(line: str, place: str) -> Conversation:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: is no JSON ({error}); write one object a line") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: must be an object with 'messages' or 'prompt'")
    if unknown := sorted(set(value) - _KNOWN_KEYS):
        raise ValueError(
            f"{place}: {unknown[0]!r} is unknown; known are {', '.join(sorted(_KNOWN_KEYS))}"
        )
    if ("messages" in value) == ("prompt" in value):
        raise ValueError(f"{place}: give either 'messages' or 'prompt'")
    if "prompt" in value:
        if not isinstance(value["prompt"], str) or not value["prompt"]:
            raise ValueError(f"{place}: 'prompt' must be a text that is not empty")
        if len(value) > 1:
            raise ValueError(f"{place}: 'tools' and 'enable_thinking' need 'messages'")
        return Conversation(value["prompt"])
    messages = _objects(value["messages"], place, "messages")
    if not messages:
        raise ValueError(f"{place}: 'messages' is empty")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise ValueError(f"{place}: every message needs a 'role'")
    thinks = value.get("enable_thinking")
    if thinks is not None and not isinstance(thinks, bool):
        raise ValueError(f"{place}: 'enable_thinking' must be true or false")
    tools = _objects(value.get("tools") or [], place, "tools")
    return Conversation(None, messages, tools, thinks)


def _objects(value: Any, place: str, name: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{place}: {name!r} must be a list of objects")
    return tuple(value)


def _without_answer(conversation: Conversation) -> Conversation:
    messages = conversation.messages
    if messages and messages[-1].get("role") == "assistant":
        return replace(conversation, messages=messages[:-1])
    return conversation
