"""/v1/responses: converts a request to that of a chat, and adds the conversation that it continues.

Promises: a response is generated as the answer of the same chat is. Each field is honoured or refused
by its name in the body. Does not know: HTTP, how answers are formatted, how responses are stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from eyas.core import RequestError, field_error
from eyas.server.chat import PreparedChat
from eyas.server.converted_chat import (
    PlacedMessage,
    check_conversation,
    function_tool,
    named_choice,
    prepare_converted_chat,
)
from eyas.server.fields import refuse_fields
from eyas.server.http.codes import Code
from eyas.server.http.error_context import by_prefix
from eyas.server.http.errors import ApiError
from eyas.server.request_models import (
    AllowedToolChoice,
    AllowedTools,
    ChatBody,
    Message,
    ResponseFormat,
    SamplingFields,
    SchemaFormat,
    Tool,
)
from eyas.server.responses.input import placed_messages
from eyas.server.responses.models import AllowedResponseTools, ResponseBody, TextFormat
from eyas.server.text_processor import TextProcessor

LOGPROBS = "message.output_text.logprobs"
RESERVED_SHARE = 8
"""With truncation, 1 / RESERVED_SHARE of the context is left for the answer, or less if it may have
fewer tokens."""
_SAME_NAMES = (
    *SamplingFields.model_fields,
    *("seed", "min_tokens", "include_stop_str_in_output", "cache_salt", "chat_template_kwargs"),
    *("max_reasoning_tokens", "parallel_tool_calls", "top_logprobs", "return_draft_details"),
)
"""Fields that a chat has under the same name."""
_UNSUPPORTED = {
    "background": "responses are generated while the client waits; leave it out",
    "conversation": "conversations are not stored; send previous_response_id, or all items as input",
    "prompt": "prompt templates are not stored; send instructions and input",
    "context_management": 'is not supported; send truncation: "auto"',
    "moderation": "is not supported; leave it out",
}
_RENAMED = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    ("messages", "input"),
)
_TOOL_FUNCTION = re.compile(r"(tools\[[0-9]+\])\.function(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """A request as one of a chat, and the conversation that a next request may continue.

    conversation: the messages that the model reads, but for the instructions.
    """

    chat: PreparedChat
    conversation: list[Message]


def field_name(path: str) -> str:
    """Return the path in the body of a field of the chat that it was converted to."""
    if tool := _TOOL_FUNCTION.fullmatch(path):
        return tool[1] + tool[2]
    return by_prefix(path, _RENAMED)


def _check(body: ResponseBody) -> None:
    """Raise RequestError for fields that are known but not supported, or do not go together."""
    refuse_fields(body, _UNSUPPORTED)
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise field_error("top_logprobs", f"needs include: [{LOGPROBS!r}]")
    if body.stream_options is not None and not body.stream:
        raise field_error("stream_options", "is for stream: true only")
    if (text_format := body.text.format if body.text else None) is not None:
        _check_format(text_format)


def prepare_response(
    body: ResponseBody,
    processor: TextProcessor,
    request_id: str,
    cache_salt: str,
    history: bytes,
) -> PreparedResponse:
    """Convert the request. Slow, without side effects: run it in a thread.

    history: the conversation that the request continues, as `encode_conversation` wrote it; empty if
    there is none. ApiError names the field that cannot be honoured.
    """
    try:
        _check(body)
        conversation = [
            *(_earlier(message) for message in _decode_conversation(history)),
            *placed_messages(body.input, "input"),
        ]
        check_conversation(conversation, "input")
    except RequestError as error:
        raise ApiError.of(error) from error
    if body.truncation == "auto":
        return _truncated(body, processor, request_id, cache_salt, conversation)
    return _prepare(body, processor, request_id, cache_salt, conversation)


def encode_conversation(messages: Sequence[Message]) -> bytes:
    """Return messages as bytes, which a store can count."""
    return msgspec.json.encode([message.model_dump(exclude_none=True) for message in messages])


def _decode_conversation(history: bytes) -> list[Message]:
    return [Message.model_validate(value) for value in msgspec.json.decode(history or b"[]")]


def _earlier(message: Message) -> PlacedMessage:
    path = "previous_response_id"
    return PlacedMessage(message, path, path)


def _prepare(
    body: ResponseBody,
    processor: TextProcessor,
    request_id: str,
    cache_salt: str,
    conversation: list[PlacedMessage],
) -> PreparedResponse:
    messages = conversation
    if body.instructions:
        first = Message(role="system", content=body.instructions)
        messages = [PlacedMessage(first, "instructions", "instructions"), *conversation]
    chat = prepare_converted_chat(
        lambda: _chat_body(body, [placed.message for placed in messages]),
        messages,
        processor,
        request_id,
        cache_salt,
        field_name,
    )
    return PreparedResponse(chat, [placed.message for placed in conversation])


def _truncated(
    body: ResponseBody,
    processor: TextProcessor,
    request_id: str,
    cache_salt: str,
    conversation: list[PlacedMessage],
) -> PreparedResponse:
    """Leave out as few of the earliest turns as the context requires.

    A turn begins with a message of the user. System messages at the beginning stay. ApiError if the
    last turn alone does not fit.
    """
    roles = [placed.message.role for placed in conversation]
    num_kept = next(
        (place for place, role in enumerate(roles) if role not in ("system", "developer")),
        len(roles),
    )
    starts = [place for place, role in enumerate(roles) if role == "user" and place > num_kept]
    starts = [num_kept, *starts]
    reserved = processor.max_model_len // RESERVED_SHARE
    reserved = min(reserved, body.max_output_tokens or reserved)

    def attempt(num_turns: int) -> PreparedResponse | ApiError:
        rest = conversation[:num_kept] + conversation[starts[num_turns] :]
        try:
            return _prepare(body, processor, request_id, cache_salt, rest)
        except ApiError as error:
            if error.code is not Code.CONTEXT_LENGTH_EXCEEDED:
                raise
            return error

    def fits(result: PreparedResponse | ApiError) -> bool:
        if isinstance(result, ApiError):
            return False
        num_tokens = len(result.chat.request.prompt_token_ids)
        return num_tokens + reserved <= processor.max_model_len

    best = attempt(0)
    fewest, most = 1, len(starts) - 1  # turns to leave out
    if not fits(best) and most > 0:
        best = attempt(most)
        while fewest < most:
            middle = (fewest + most) // 2
            result = attempt(middle)
            if fits(result):
                best, most = result, middle
            else:
                fewest = middle + 1
    if isinstance(best, ApiError):
        raise best
    return best


def _chat_body(body: ResponseBody, messages: list[Message]) -> ChatBody:
    fields: dict[str, Any] = {name: getattr(body, name) for name in _SAME_NAMES}
    with_logprobs = LOGPROBS in (body.include or ())
    text, reasoning = body.text, body.reasoning
    return ChatBody(
        **fields | {"top_logprobs": body.top_logprobs if with_logprobs else None},
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=with_logprobs,
        response_format=_response_format(text.format if text else None),
        verbosity=text.verbosity if text else None,
        tools=_tools(body),
        tool_choice=_tool_choice(body.tool_choice),
        reasoning_effort=reasoning.effort if reasoning else None,
        stream=False,
    )


def _check_format(text_format: TextFormat) -> None:
    is_schema = text_format.type == "json_schema"
    for name in ("name", "schema_", "description", "strict"):
        param = f"text.format.{name.rstrip('_')}"
        is_given = getattr(text_format, name) is not None
        if is_given and not is_schema:
            raise field_error(param, f"does not go with type {text_format.type!r}")
        if is_schema and not is_given and name in ("name", "schema_"):
            code = Code.MISSING_REQUIRED_PARAMETER.word
            raise field_error(param, "is required for type 'json_schema'", code=code)


def _response_format(text_format: TextFormat | None) -> ResponseFormat | None:
    if text_format is None:
        return None
    if text_format.type != "json_schema":
        return ResponseFormat(type=text_format.type)
    assert text_format.name is not None
    assert text_format.schema_ is not None
    schema = SchemaFormat(
        name=text_format.name,
        description=text_format.description,
        schema=text_format.schema_,
        strict=text_format.strict,
    )
    return ResponseFormat(type="json_schema", json_schema=schema)


def _tools(body: ResponseBody) -> list[Tool] | None:
    if body.tools is None:
        return None
    return [
        function_tool(tool.name, tool.description, tool.parameters, tool.strict)
        for tool in body.tools
    ]


def _tool_choice(choice: Any) -> Any:
    """Return the choice in the form of a chat, as plain data, which `ChatBody` validates."""
    if choice is None or isinstance(choice, str):
        return choice
    if not isinstance(choice, AllowedResponseTools):
        return named_choice(choice.name).model_dump()
    tools = AllowedTools(mode=choice.mode, tools=[named_choice(tool.name) for tool in choice.tools])
    return AllowedToolChoice(type="allowed_tools", allowed_tools=tools).model_dump()
