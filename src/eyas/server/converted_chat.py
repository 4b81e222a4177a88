"""Prepares a request of another API as the request of a chat.

Promises: a message is traced to the place in the body from which it came, so that an error names the
field that was sent. Does not know: the other API, HTTP.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from eyas.core import RequestError, field_error
from eyas.server.chat import PreparedChat, prepare_chat
from eyas.server.http.codes import Code
from eyas.server.http.error_context import Rename, renamed
from eyas.server.http.errors import ApiError
from eyas.server.request_models import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatBody,
    Function,
    Message,
    NamedFunction,
    NamedToolChoice,
    Tool,
    ToolCall,
)
from eyas.server.text_processor import TextProcessor, num_chars

_MESSAGE_PATH = re.compile(r"messages\[([0-9]+)\](?:(\.content)((?:\[|\.).*)?)?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PlacedMessage:
    """A message, and the path in the body from which it came.

    content_path: the path of its content; the same as `path` if that is no object.
    """

    message: Message
    path: str
    content_path: str


def check_conversation(messages: Sequence[PlacedMessage], path: str) -> None:
    """Raise RequestError for a number of messages that a chat does not take.

    path: of the field that they came from. One message less than in a chat: instructions are another.
    """
    if not 0 < len(messages) < MAX_MESSAGES:
        raise field_error(
            path,
            f"makes a conversation of {len(messages)} messages; there must be at least 1 and "
            f"at most {MAX_MESSAGES - 1}",
        )


def checked_calls(calls: list[ToolCall], path: str) -> list[ToolCall] | None:
    """Return the calls of a message, or None if there are none. RequestError if they are more than a
    chat takes. path: of the message."""
    if len(calls) > MAX_TOOLS:
        raise field_error(
            path, f"makes a message with {len(calls)} tool calls; at most {MAX_TOOLS} are read"
        )
    return calls or None


def function_tool(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> Tool:
    """Return a function as a tool of a chat."""
    function = Function(name=name, description=description, parameters=parameters, strict=strict)
    return Tool(type="function", function=function)


def named_choice(name: str) -> NamedToolChoice:
    """Return the choice of one function, as a chat has it."""
    return NamedToolChoice(type="function", function=NamedFunction(name=name))


def prepare_converted_chat(
    new_body: Callable[[], ChatBody],
    messages: Sequence[PlacedMessage],
    processor: TextProcessor,
    request_id: str,
    cache_salt: str,
    rename: Rename,
) -> PreparedChat:
    """Return the chat that `new_body` makes, prepared. Slow: run it in a thread.

    messages: those of the chat, in order. rename: as in `renamed`, for fields other than messages.
    ApiError names the field that cannot be honoured as it was sent.
    """
    try:
        chat = prepare_chat(new_body(), processor, request_id, cache_salt)
    except (RequestError, ApiError) as error:
        if isinstance(error, ApiError) and error.code is Code.CONTEXT_LENGTH_EXCEEDED:
            raise renamed(error, lambda path: _longest_field(path, messages)) from error
        raise renamed(error, lambda path: rename(path_in_input(path, messages))) from error
    if (output := chat.request.output) is not None:
        param = None if output.param is None else rename(output.param)
        chat.request.output = msgspec.structs.replace(output, param=param)
    return chat


def _longest_field(path: str, messages: Sequence[PlacedMessage]) -> str:
    """Return the field of the body that is to be shortened where a chat's `path` is too long: of those
    that messages came from, the one with the most text."""
    if path != "messages":
        return path
    lengths: Counter[str] = Counter()
    for placed in messages:
        lengths[placed.path.partition("[")[0]] += num_chars(placed.message.model_dump())
    return max(lengths, key=lengths.__getitem__)


def path_in_input(path: str, messages: Sequence[PlacedMessage]) -> str:
    """Return the path in the body of a path that begins with messages[index]; others are unchanged."""
    found = _MESSAGE_PATH.fullmatch(path)
    if found is None or int(found[1]) >= len(messages):
        return path
    placed = messages[int(found[1])]
    if found[2] is None:
        return placed.path
    inner = (found[3] or "") if placed.content_path != placed.path else ""
    return placed.content_path + inner
