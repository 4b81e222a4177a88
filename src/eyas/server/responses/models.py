"""The body of /v1/responses, as pydantic models.

Promises: as `eyas.server.request_models`. Items are accepted in the form in which answers contain them,
so that a client can send them back. Does not know: prompts, engines.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag, ValidationError

from eyas.core import MAX_LOGPROBS
from eyas.server.fields import (
    MAX_NAME_CHARS,
    Count,
    Name,
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
    Effort,
    FunctionName,
    RefusalPart,
    SamplingFields,
    Verbosity,
)

MAX_METADATA = 16
MAX_SUMMARY_PARTS = 256
_INPUT = "must be a string or a list of items"
_PART = (
    'must be a text part {"type": "input_text", "text": ...}, or one of an answer with type '
    '"output_text" or "refusal"; the model reads nothing else'
)
_ITEM = (
    "must be a message, or an item of type function_call, function_call_output or reasoning; the model "
    "reads nothing else"
)
INCLUDABLE = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
]
"""What an answer may include. Only the first has an effect: the others are about items that no answer
has, and about reasoning, which is never encrypted here."""


class InputTextPart(StrictModel):
    """A text part. annotations, logprobs: as in an answer, not read."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(fail_fast=True)] | None = None
    logprobs: Annotated[list[Any], Field(fail_fast=True)] | None = None
    parsed: Any = None


InputPart = Annotated[
    Annotated[InputTextPart, Tag("a text part")] | Annotated[RefusalPart, Tag("a refusal")],
    by_type_field(
        {
            **dict.fromkeys(("input_text", "output_text", "text"), "a text part"),
            "refusal": "a refusal",
        },
        _PART,
    ),
]
InputContent = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[InputPart], Field(fail_fast=True, max_length=MAX_PARTS), Tag("a list")],
    by_form("must be a string or a list of text parts"),
]


class _Item(StrictModel):
    """Fields that items of answers have and that are not read."""

    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(_Item):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: str
    parsed_arguments: Any = None


class FunctionCallOutputItem(_Item):
    type: Literal["function_call_output"]
    call_id: Name
    output: InputContent


class ReasoningPart(StrictModel):
    type: Literal["reasoning_text", "summary_text"]
    text: str


ReasoningParts = Annotated[list[ReasoningPart], Field(fail_fast=True, max_length=MAX_SUMMARY_PARTS)]


class ReasoningItem(_Item):
    """Reasoning of an earlier answer. summary: read if there is no content."""

    type: Literal["reasoning"]
    summary: ReasoningParts | None = None
    content: ReasoningParts | None = None
    encrypted_content: str | None = None


def _tag_of_item(value: Any) -> str | None:
    """Return the tag of an item by its type; one without a type is a message."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type", "message")
    return _ITEM_TAGS.get(kind) if isinstance(kind, str) else None


_ITEM_TAGS = {
    "message": "a message item",
    "function_call": "a call item",
    "function_call_output": "a result item",
    "reasoning": "a reasoning item",
}
InputItem = Annotated[
    Annotated[MessageItem, Tag("a message item")]
    | Annotated[FunctionCallItem, Tag("a call item")]
    | Annotated[FunctionCallOutputItem, Tag("a result item")]
    | Annotated[ReasoningItem, Tag("a reasoning item")],
    by_tag(_tag_of_item, _ITEM),
]
Input = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[
        list[InputItem],
        Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES),
        Tag("a list"),
    ],
    by_form(_INPUT),
]


class ResponseTool(StrictModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None


ResponseTools = Annotated[
    list[
        Annotated[
            Annotated[ResponseTool, Tag("a function tool")],
            by_type_field(
                {"function": "a function tool"},
                'must be a function {"type": "function", "name": ..., "parameters": ...}; tools that '
                "a server runs are not available here",
            ),
        ]
    ],
    Field(fail_fast=True, max_length=MAX_TOOLS),
]


class NamedResponseTool(StrictModel):
    type: Literal["function"]
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class AllowedResponseTools(StrictModel):
    """The subset of the tools that may be called. The prompt shows all tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[NamedResponseTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)
    ]


def _parse_tool_choice(value: Any) -> Any:
    """Validate tool_choice by hand, for one error that names all its forms."""
    if value in (None, "none", "auto", "required"):
        return value
    is_list = isinstance(value, dict) and value.get("type") == "allowed_tools"
    try:
        return (AllowedResponseTools if is_list else NamedResponseTool).model_validate(value)
    except ValidationError as error:
        raise ValueError(
            "must be 'none', 'auto', 'required', "
            '{"type": "function", "name": "..."} or {"type": "allowed_tools", '
            '"mode": "auto" or "required", "tools": [the form before, ...]}'
        ) from error


class TextFormat(StrictModel):
    """The format of the answer's text. strict: as in `eyas.server.request_models.SchemaFormat`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextSettings(StrictModel):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningSettings(StrictModel):
    """effort: as reasoning_effort of a chat. summary: "auto" is accepted, and no summary is made: the
    reasoning itself is in the answer."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponseStreamOptions(StrictModel):
    """include_obfuscation: accepted, and nothing is padded."""

    include_obfuscation: bool | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    at_most(MAX_METADATA),
]


class ResponseBody(SamplingFields, AnswerFields):
    """The body of /v1/responses: the fields of OpenAI's API, and those of sampling and constraints that
    all routes share."""

    n: Annotated[int, Field(ge=1, le=1)] | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    include: Annotated[list[INCLUDABLE], Field(fail_fast=True, max_length=16)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: ResponseTools | None = None
    tool_choice: Annotated[Any, AfterValidator(_parse_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream_options: ResponseStreamOptions | None = None
    return_draft_details: bool | None = None

    seed: Seed | None = None
    min_tokens: Count | None = None
    include_stop_str_in_output: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], at_most(32)] | None = None
    max_reasoning_tokens: Count | None = None

    user: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    safety_identifier: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None
    max_tool_calls: Count | None = None

    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
