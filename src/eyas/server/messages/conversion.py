"""/v1/messages: converts a request to that of a chat.

Promises: a message is generated as the answer of the same chat is. Each field is honoured or refused by
its name in the body. Does not know: HTTP, how answers are formatted.
"""

from __future__ import annotations

import re
from typing import Any

from eyas.core import field_error
from eyas.server.chat import PreparedChat
from eyas.server.converted_chat import (
    PlacedMessage,
    check_conversation,
    function_tool,
    named_choice,
    prepare_converted_chat,
)
from eyas.server.fields import refuse_fields
from eyas.server.http.error_context import by_prefix
from eyas.server.messages.input import placed_text, placed_turns
from eyas.server.messages.models import CountTokensBody, MessagesBody, Thinking, ToolChoice
from eyas.server.request_models import (
    ChatBody,
    ConstraintFields,
    ResponseFormat,
    SchemaFormat,
    Tool,
)
from eyas.server.template_inputs import thinking_switches
from eyas.server.text_processor import TextProcessor

_SAME_NAMES = (
    *ConstraintFields.model_fields,
    *("max_tokens", "temperature", "top_p", "top_k", "seed", "min_tokens", "cache_salt"),
)
"""Fields of a message that a chat has under the same name."""
_UNSUPPORTED = {
    "container": "containers are not available here; leave it out",
    "context_management": "is not supported; send the messages that the model is to read",
    "mcp_servers": "the server calls no tools; send tools, and their results as tool_result",
}
_RENAMED = (
    ("response_format.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
    ("max_completion_tokens", "max_tokens"),
    ("reasoning_effort", "output_config.effort"),
    ("max_reasoning_tokens", "thinking.budget_tokens"),
    ("stop", "stop_sequences"),
)
_TOOL_FUNCTION = re.compile(
    r"(tools\[[0-9]+\])\.function(?:(\.parameters)(?![^.\[]))?(.*)", re.DOTALL
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SCHEMA_NAME = "output"


def field_name(path: str) -> str:
    """Return the path in the body of a field of the chat that it was converted to."""
    if tool := _TOOL_FUNCTION.fullmatch(path):
        return tool[1] + (".input_schema" if tool[2] else "") + tool[3]
    return by_prefix(path, _RENAMED)


def prepare_messages(
    body: CountTokensBody, processor: TextProcessor, request_id: str, cache_salt: str
) -> PreparedChat:
    """Convert the request. Slow, without side effects: run it in a thread.

    RequestError or ApiError names the field that cannot be honoured.
    """
    _check(body)
    messages = placed_turns(body.messages)
    check_conversation(messages, "messages")
    if messages[-1].message.tool_calls:
        path = messages[-1].path
        raise field_error(
            path, "the last message calls tools; add a message of the user with their results"
        )
    if body.system:
        messages = [placed_text("system", body.system, "system", "system"), *messages]
    return prepare_converted_chat(
        lambda: _chat_body(body, messages, processor),
        messages,
        processor,
        request_id,
        cache_salt,
        field_name,
    )


def _check(body: CountTokensBody) -> None:
    """Raise RequestError for fields that are known but not supported, or do not go together."""
    refuse_fields(body, _UNSUPPORTED)
    choice, thinking = body.tool_choice, body.thinking
    if choice is not None and (choice.name is None) == (choice.type == "tool"):
        raise field_error(
            "tool_choice.name", "is required for type 'tool', and does not go with other types"
        )
    if thinking is not None and thinking.budget_tokens and thinking.type != "enabled":
        raise field_error(
            "thinking.budget_tokens", f"does not go with type {thinking.type!r}; send 'enabled'"
        )


def _chat_body(
    body: CountTokensBody, messages: list[PlacedMessage], processor: TextProcessor
) -> ChatBody:
    config, choice, thinking = body.output_config, body.tool_choice, body.thinking
    fields: dict[str, Any] = {}
    if isinstance(body, MessagesBody):
        fields = {name: getattr(body, name) for name in _SAME_NAMES}
        fields["stop"] = body.stop_sequences
    kwargs = dict(body.chat_template_kwargs or {})
    if thinking is not None:
        fields |= _thinking(thinking)
        for switch in thinking_switches(processor):
            kwargs.setdefault(switch, thinking.type != "disabled")
    if config is not None and config.format is not None:
        schema = SchemaFormat(name=_SCHEMA_NAME, schema=config.format.schema_)
        fields["response_format"] = ResponseFormat(type="json_schema", json_schema=schema)
    return ChatBody(
        **fields,
        messages=[placed.message for placed in messages],
        continue_final_message=messages[-1].message.role == "assistant",
        tools=_tools(body),
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning_effort=config.effort if config else None,
        chat_template_kwargs=kwargs or None,
    )


def _thinking(thinking: Thinking) -> dict[str, Any]:
    is_off = thinking.type == "disabled"
    return {
        "max_reasoning_tokens": 0 if is_off else thinking.budget_tokens,
        "include_reasoning": thinking.display != "omitted",
    }


def _tools(body: CountTokensBody) -> list[Tool] | None:
    if body.tools is None:
        return None
    return [
        function_tool(tool.name, tool.description, tool.input_schema, tool.strict)
        for tool in body.tools
    ]


def _tool_choice(choice: ToolChoice) -> Any:
    """Return the choice in the form of a chat, as plain data, which `ChatBody` validates."""
    if choice.name is None:
        return _CHOICES[choice.type]
    return named_choice(choice.name).model_dump()
