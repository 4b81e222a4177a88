"""Converts the messages of a conversation to the form that one chat template reads.

Promises: no information of a message is lost; a field that is None is treated as absent; the
conversion is idempotent. Content becomes a string or a list of parts, arguments of calls become
objects or text, ids of calls get the required form, and reasoning becomes a field of its own, as the
template requires.
Does not know: rendering, tokens, HTTP.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.core import field_error
from eyas.text.guard import STRUCTURAL_VALUES
from eyas.text.template_analysis import REASONING_END, REASONING_KEYS, FieldUses

MAX_STRUCTURE = 200_000
"""Most brackets, braces and colons that a JSON text may have to be parsed, its strings included."""
_REASONING_BEGIN = "<think>"
_INSTEAD_OF_CONTENT = ("tool_calls", "refusal", *REASONING_KEYS)
_KIMI_ID = re.compile(r"functions\.[^:\s]+:[0-9]+")


def normalize_messages(
    messages: Sequence[Mapping[str, Any]], uses: FieldUses
) -> list[dict[str, Any]]:
    """Return the messages in the form described by `uses`. RequestError names a field that no template
    can read."""
    normal = [normalize_message(message, uses, index) for index, message in enumerate(messages)]
    return _with_named_calls(normal) if uses.call_ids_name_functions else normal


def _with_named_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with ids of calls as Kimi-K2 writes them, `functions.NAME:NUMBER`, with
    numbers that count on over the conversation, also where results refer to them."""
    named: dict[Any, str] = {}
    number = 0

    def renamed(call: Any) -> Any:
        nonlocal number
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return call
        given, number = call.get("id"), number + 1
        if isinstance(given, str) and _KIMI_ID.fullmatch(given):
            return call
        call_id = f"functions.{function['name']}:{number - 1}"
        if isinstance(given, str):
            named[given] = call_id
        return {**call, "id": call_id}

    found = []
    for message in messages:
        if isinstance(calls := message.get("tool_calls"), list):
            message = {**message, "tool_calls": [renamed(call) for call in calls]}
        if isinstance(given := message.get("tool_call_id"), str) and given in named:
            message = {**message, "tool_call_id": named[given]}
        found.append(message)
    return found


def normalize_message(message: Mapping[str, Any], uses: FieldUses, index: int) -> dict[str, Any]:
    """Return the message in the form described by `uses`.

    index: index of the message, for errors. RequestError names a field that no template can read.
    """
    if not isinstance(message, Mapping):
        raise field_error(
            f"messages[{index}]",
            f'must be a message such as {{"role": "user", "content": "..."}}, not '
            f"{type(message).__name__}",
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in STRUCTURAL_VALUES["role"]:
        roles = ", ".join(sorted(STRUCTURAL_VALUES["role"]))
        raise field_error(f"messages[{index}].role", f"must be one of {roles}")
    if role != "assistant":  # templates accept answers without content
        require_content(message, index)
    normal = _without_none(message)
    if isinstance(calls := normal.get("tool_calls"), (list, tuple)):
        normal["tool_calls"] = [_normalize_call(call, uses) for call in calls]
    if "tool_call_id" in normal:
        normal["tool_call_id"] = _call_id(normal["tool_call_id"], uses)
    if (content := normal.get("content")) is not None:
        texts = _content_texts(content, index)
        if role == "assistant" and uses.handles_reasoning:
            texts = _split_reasoning(texts, normal, uses)
        normal["content"] = _content(texts, uses)
    elif role == "assistant" and calls and uses.distinguishes_none:
        if "content" in message or not uses.distinguishes_absent:
            normal["content"] = None
    elif not uses.distinguishes_absent:
        normal["content"] = _content([""], uses)
    reasoning = next((normal[key] for key in REASONING_KEYS if normal.get(key)), None)
    if reasoning is not None:
        normal = {"thinking": reasoning, **normal, "reasoning_content": reasoning}
    return normal


def require_content(message: Mapping[str, Any], index: int) -> None:
    """Raise RequestError for a message without content, unless it is an assistant's that has tool
    calls, a refusal or reasoning."""
    is_assistant = message.get("role") == "assistant"
    if message.get("content") is not None or (
        is_assistant and any(message.get(key) for key in _INSTEAD_OF_CONTENT)
    ):
        return
    remedy = "give a text, or tool_calls" if is_assistant else "give a text"
    raise field_error(
        f"messages[{index}].content",
        f"is required of role {str(message.get('role'))[:32]!r}; {remedy}",
    )


def append_to_content(message: dict[str, Any], end: str, uses: FieldUses) -> dict[str, Any]:
    """Return the message with `end` appended to its content."""
    content = message.get("content") or _content([""], uses)
    if isinstance(content, str):
        return {**message, "content": content + end}
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last["text"] + end}]}


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _normalize_call(call: Any, uses: FieldUses) -> Any:
    if not isinstance(call, Mapping):
        return call
    normal = _without_none(call)
    if "id" in normal:
        normal["id"] = _call_id(normal["id"], uses)
    if isinstance(function := normal.get("function"), Mapping):
        return {**normal, "function": _normalize_call(function, uses)}
    if "arguments" in normal and uses.arguments != "given":
        convert = _arguments_text if uses.arguments == "text" else _arguments_object
        normal["arguments"] = convert(normal["arguments"])
    return normal


def _call_id(call_id: Any, uses: FieldUses) -> Any:
    """Return the id of a call as the template takes it: one of another length, or with other
    characters than letters and digits, becomes as many of its hash's digits."""
    length = uses.call_id_length
    if length is None or not isinstance(call_id, str):
        return call_id
    if len(call_id) == length and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:length]


def _content_texts(content: Any, index: int) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, (list, tuple)) else [content]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ]
    if len(texts) != len(parts):
        raise field_error(
            f"messages[{index}].content",
            'must be a string or a list of text parts {"type": "text", "text": ...}',
        )
    return texts


def _content(texts: list[str], uses: FieldUses) -> Any:
    if uses.wants_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _split_reasoning(texts: list[str], message: dict[str, Any], uses: FieldUses) -> list[str]:
    """Move reasoning out of the content, as templates do at the marker </think>.

    Templates cannot do it themselves, since control tokens in content are hidden from them.
    """
    if len(texts) > 1 and not uses.wants_parts:
        texts = ["\n".join(texts)]
    if len(texts) != 1 or REASONING_END not in texts[0]:
        return texts
    before, _, after = texts[0].partition(REASONING_END)
    if not any(message.get(key) for key in REASONING_KEYS):
        message["reasoning_content"] = before.split(_REASONING_BEGIN)[-1].strip("\n")
    answer = after.split(REASONING_END)[-1]
    return [answer.lstrip("\n") if uses.strips_after_reasoning else answer]


def _arguments_object(arguments: Any) -> Any:
    """Return the object that a JSON string holds. What is no JSON object, or is too large, is
    returned unchanged."""
    if not isinstance(arguments, str) or sum(map(arguments.count, "[{:")) > MAX_STRUCTURE:
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _arguments_text(arguments: Any) -> Any:
    """Return an object as a JSON string, as OpenAI's API has it; anything else unchanged."""
    try:
        return (
            json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
        )
    except (TypeError, ValueError, RecursionError):
        return arguments
