"""Read prompts and conversations from a JSON lines file, or from those of the built-in model.

Promises: an invalid line is a ValueError that names the file and the line, before work starts.
Does not know: tokens, models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas import builtin
from eyas.train.head.config import Thinking

_KNOWN_KEYS = frozenset({"messages", "tools", "enable_thinking", "prompt"})
_EXAMPLE = '{"messages": [{"role": "user", "content": "Hello"}]}'
BUILTIN = "builtin:"
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as plain text, or messages with tools.

    enable_thinking: passed to the chat template; None is the template's default.
    """

    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    enable_thinking: bool | None = None


def read_prompts(source: str, thinking: Thinking) -> list[Conversation]:
    """Return the conversations without their last answer, which the target will generate.

    source: a path, or `builtin:N`.
    """
    builtin_file = builtin.prompts_file()
    prompts = [_without_answer(conversation) for _, conversation in _read(source, builtin_file)]
    if thinking == "as-given":
        return prompts
    if thinking == "both":
        return [replace(c, enable_thinking=on) for c in prompts for on in (True, False)]
    return [replace(c, enable_thinking=thinking == "on") for c in prompts]


def read_conversations(source: str) -> list[Conversation]:
    """Return complete conversations; the last message of each is the answer to train on.

    source: a path, or `builtin:N`.
    """
    conversations = []
    for place, conversation in _read(source, builtin.conversations_file()):
        if not conversation.messages or conversation.messages[-1].get("role") != "assistant":
            raise ValueError(
                f"{place}: the conversation does not end in an assistant message; pass the file as "
                "--prompts, so that the model writes the answers"
            )
        conversations.append(conversation)
    return conversations


def check_source(source: str, setting: str) -> str:
    """Check every line of a source, and return the digest of its file; "" for a built-in source.

    setting: "prompts", or "conversations", which must have answers.
    ValueError: a line is invalid; the text names the setting.
    """
    path = Path(source)
    if not source.startswith(BUILTIN) and not path.is_file():
        raise ValueError(
            f"{setting}: {source} is not a file; give a JSONL file of messages, or {BUILTIN}N for N "
            "conversations of the built-in model"
        )
    try:
        read_conversations(source) if setting == "conversations" else read_prompts(
            source, "as-given"
        )
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
    if source.startswith(BUILTIN):
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(source: str, builtin_file: Path) -> Iterator[tuple[str, Conversation]]:
    """Yield (file and line, conversation). builtin_file: the file that `builtin:N` reads."""
    if not source.startswith(BUILTIN):
        yield from _lines(Path(source))
        return
    count = source.removeprefix(BUILTIN)
    if not count.isdecimal() or int(count) < 1:
        raise ValueError(f"{source}: write {BUILTIN}N, such as {BUILTIN}100")
    conversations = [(source, conversation) for _, conversation in _lines(builtin_file)]
    if int(count) > len(conversations):
        raise ValueError(
            f"{source}: there are {len(conversations)} built-in ones; write more to a file with "
            "`python -m builtin_model.conversations FILE N` in a checkout of eyas, and give that file"
        )
    yield from conversations[: int(count)]


def _lines(path: Path) -> Iterator[tuple[str, Conversation]]:
    empty = True
    with path.open("rb") as file:
        for number, line in enumerate(
            iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1
        ):
            place = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{place}: is longer than {MAX_LINE_BYTES >> 20} MiB; cut it")
            if line.strip():
                empty = False
                yield place, _conversation(_decoded(line, place), place)
    if empty:
        raise ValueError(
            f"{path}: contains no prompts; write one JSON object per line, such as {_EXAMPLE}"
        )


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place}: is not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None


def _conversation(line: str, place: str) -> Conversation:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place}: is not JSON ({error}); write one object per line, such as {_EXAMPLE}"
        ) from None
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
