"""The bodies of /v1/messages and /v1/messages/count_tokens, as pydantic models.

Promises: as `eyas.server.request_models`. Blocks are accepted in the form in which answers contain
them, so that a client can send them back. Does not know: prompts, engines.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from eyas.core import MAX_STOP_STRINGS
from eyas.server.fields import (
    MAX_NAME_CHARS,
    Count,
    Name,
    Number,
    Seed,
    StrictModel,
    at_most,
    by_form,
    by_tag,
    by_type_field,
)
from eyas.server.request_models import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    AnswerFields,
    ConstraintFields,
    FunctionName,
)

MAX_KWARGS = 30
"""Two fewer than in a chat: `thinking` sets at most two."""
_CONTENT = "must be a string or a list of blocks"
_TEXT = 'must be a text block {"type": "text", "text": ...}; the model reads nothing else'
_USER = "must be a block of type text or tool_result; the model reads no images and no documents"
_ASSISTANT = "must be a block of type text, thinking or tool_use; the model reads nothing else"
_TURN = (
    'must be a message {"role": ..., "content": ...} with role "user" or "assistant", or "system" for '
    "instructions"
)
_TOOL = (
    'must be a tool {"name": ..., "input_schema": ...} that the client runs; tools that a server '
    "runs are not available here"
)


class _Block(StrictModel):
    """cache_control: not read, since every prefix is cached."""

    cache_control: dict[str, Any] | None = None


class TextBlock(_Block):
    """citations, parsed_output: as in an answer, not read."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(fail_fast=True)] | None = None
    parsed_output: Any = None


class ThinkingBlock(_Block):
    """Reasoning of an earlier answer. signature: not read."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(_Block):
    """A tool call of an earlier answer. caller: not read, it is always the model."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


_TextBlocks = Annotated[
    list[
        Annotated[
            Annotated[TextBlock, Tag("a text block")],
            by_type_field({"text": "a text block"}, _TEXT),
        ]
    ],
    Field(fail_fast=True, max_length=MAX_PARTS),
]
Text = Annotated[
    Annotated[str, Tag("a text")] | Annotated[_TextBlocks, Tag("a list")], by_form(_CONTENT)
]


class ToolResultBlock(_Block):
    """What a tool returned. is_error: not read, since no template has a place for it; the content says
    what went wrong."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: Text | None = None
    is_error: bool | None = None


UserBlock = Annotated[
    Annotated[TextBlock, Tag("a text block")] | Annotated[ToolResultBlock, Tag("a result block")],
    by_type_field({"text": "a text block", "tool_result": "a result block"}, _USER),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("a text block")]
    | Annotated[ThinkingBlock, Tag("a thinking block")]
    | Annotated[ToolUseBlock, Tag("a call block")],
    by_type_field(
        {"text": "a text block", "thinking": "a thinking block", "tool_use": "a call block"},
        _ASSISTANT,
    ),
]


class SystemTurn(StrictModel):
    role: Literal["system"]
    content: Text


class UserTurn(StrictModel):
    role: Literal["user"]
    content: Annotated[
        Annotated[str, Tag("a text")]
        | Annotated[
            list[UserBlock],
            Field(fail_fast=True, min_length=1, max_length=MAX_PARTS),
            Tag("a list"),
        ],
        by_form(_CONTENT),
    ]


class AssistantTurn(StrictModel):
    role: Literal["assistant"]
    content: Annotated[
        Annotated[str, Tag("a text")]
        | Annotated[
            list[AssistantBlock], Field(fail_fast=True, max_length=MAX_PARTS), Tag("a list")
        ],
        by_form(_CONTENT),
    ]


def _tag_of_turn(value: Any) -> str | None:
    role = value.get("role") if isinstance(value, dict) else None
    return _TURN_TAGS.get(role) if isinstance(role, str) else None


_TURN_TAGS = {"user": "a user turn", "assistant": "an assistant turn", "system": "a system turn"}
Turn = Annotated[
    Annotated[UserTurn, Tag("a user turn")]
    | Annotated[AssistantTurn, Tag("an assistant turn")]
    | Annotated[SystemTurn, Tag("a system turn")],
    by_tag(_tag_of_turn, _TURN),
]


class ClientTool(_Block):
    """A tool that the model may call. eager_input_streaming: not read, since arguments are always
    streamed as they are generated. input_examples: not read, since no template has a place for them."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    eager_input_streaming: bool | None = None
    input_examples: Annotated[list[Any], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


def _tag_of_tool(value: Any) -> str | None:
    """Return the tag of a tool; one without a type is run by the client."""
    is_custom = isinstance(value, dict) and value.get("type") in (None, "custom")
    return "a client tool" if is_custom else None


Tools = Annotated[
    list[
        Annotated[
            Annotated[ClientTool, Tag("a client tool")],
            by_tag(_tag_of_tool, _TOOL),
        ]
    ],
    Field(fail_fast=True, max_length=MAX_TOOLS),
]


class ToolChoice(StrictModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(StrictModel):
    """display: "summarized" is accepted, and no summary is made: the reasoning itself is in the
    answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictModel):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(StrictModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensBody(StrictModel):
    """The body of /v1/messages/count_tokens: what the prompt depends on."""

    model: Name | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    system: Text | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[dict[str, Any], at_most(MAX_KWARGS)] | None = None
    cache_control: dict[str, Any] | None = None

    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None


class MessagesBody(CountTokensBody, ConstraintFields, AnswerFields):
    """The body of /v1/messages: the fields of Anthropic's API, and those of constraints."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    stop_sequences: (
        Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOP_STRINGS)] | None
    ) = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    metadata: Annotated[dict[str, Any], at_most(16)] | None = None
    service_tier: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    inference_geo: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None

    seed: Seed | None = None
    min_tokens: Count | None = None
    return_draft_details: bool | None = None
