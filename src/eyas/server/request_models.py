"""The request bodies that the routes accept, as pydantic models.

Promises: strict types; every number is bounded; every field works or is a 400 that names it. Fields of
OpenAI's API that have no effect here are accepted by name. Does not know: prompts, engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, ValidationError

from eyas.core import MAX_CHOICES, MAX_LOGIT_BIAS_ENTRIES, MAX_LOGPROBS, MAX_STOP_TOKEN_IDS
from eyas.server.fields import (
    MAX_NAME_CHARS,
    MAX_PROMPT_TOKENS,
    OFF,
    Choices,
    Count,
    Grammar,
    Name,
    Number,
    Pattern,
    Prompt,
    PromptIds,
    PromptTexts,
    Seed,
    Stop,
    StrictModel,
    TokenId,
    at_most,
    by_form,
    by_type_field,
)
from eyas.server.options import StreamGranularity

MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_TOOLS = 512
MAX_TRANSFER_FIELDS = 64


def _only_neutral(penalty: float) -> float:
    if penalty != 1:
        raise ValueError(
            "must be 1, which does nothing: it is for beam search, which is not served"
        )
    return penalty


class StreamOptions(StrictModel):
    """include_obfuscation: accepted, and nothing is padded."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class SchemaFormat(StrictModel):
    """The JSON schema in OpenAI's response_format. strict: false ignores keywords that cannot be
    enforced, which are an error otherwise."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """OpenAI's response_format, and the structural tags that SGLang and vLLM accept here. schema:
    that of a json_object, as some clients send it."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: SchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    format: dict[str, Any] | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None


class StructuredOutputs(StrictModel):
    """vLLM's structured_outputs. Fields that choose among its backends have no effect."""

    json_: Annotated[Any, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None
    backend: Name | None = None


class ConstraintFields(StrictModel):
    """The fields of vLLM and SGLang that constrain the output (see `constraints.fields`). Those
    with guided_ are vLLM's older fields, the last four are SGLang's."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    guided_whitespace_pattern: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    guided_decoding_backend: Name | None = None
    regex: Pattern | None = None
    ebnf: Grammar | None = None
    json_schema: Any = None
    structural_tag: Any = None


class SamplingFields(ConstraintFields):
    """Fields of sampling and stopping whose names all routes share."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    logit_bias: Annotated[dict[str, Number], at_most(MAX_LOGIT_BIAS_ENTRIES)] | None = None
    stop: Stop | None = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_TOKEN_IDS)] | None
    ) = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Literal[True] | None = None


_SWITCHES = (
    *("return_hidden_states", "return_routed_experts", "return_bytes", "return_entropy"),
    *("return_cached_tokens_details", "return_prompt_token_ids", "background", "documents"),
    *("logits_processors", "custom_logit_processor", "custom_params", "vllm_xargs"),
    *("mm_processor_kwargs", "image_data", "audio_data", "video_data", "modalities"),
    *("lora_path", "lora_request", "bad_words", "bad_words_ids", "stop_regex"),
    *("return_meta_info", "use_audio_in_video", "require_reasoning", "no_logs"),
    *("enable_response_messages", "priority"),
)
"""Fields of SGLang and vLLM for what is not served here, which their clients also send switched off."""


class AnswerFields(StrictModel):
    """The fields that the bodies of all routes that answer have."""

    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        **dict.fromkeys(_SWITCHES, OFF),
        "log_metrics": (True, False),
    }
    model: Name | None = None
    stream: bool | None = None
    stream_granularity: StreamGranularity | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class CompletionFields(SamplingFields, AnswerFields):
    """The fields that /v1/chat/completions and /v1/completions share. rid, request_id: SGLang's and
    vLLM's id of the answer. The last fields are vLLM's, which its clients send with the values that
    change nothing."""

    rid: Name | None = None
    request_id: Name | None = None
    response_format: ResponseFormat | None = None

    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_draft_details: bool | None = None
    kv_transfer_params: Annotated[dict[str, Any], at_most(MAX_TRANSFER_FIELDS)] | None = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    best_of: Count | None = None
    use_beam_search: Any = None
    length_penalty: Annotated[Number, AfterValidator(_only_neutral)] | None = None
    detokenize: Literal[True] | None = None
    return_token_ids: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    priority: Literal[0] | None = None


class TextPart(StrictModel):
    type: Literal["text"]
    text: str


class RefusalPart(StrictModel):
    """An assistant's refusal, which the model reads as text."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[TextPart, Tag("a text part")] | Annotated[RefusalPart, Tag("a refusal")],
    by_type_field(
        {"text": "a text part", "refusal": "a refusal"},
        'must be a text part {"type": "text", "text": ...}; the model reads nothing else',
    ),
]
Content = Annotated[
    Annotated[str, Tag("a text")]
    | Annotated[list[Part], Field(fail_fast=True, max_length=MAX_PARTS), Tag("a list")],
    by_form("must be a string or a list of text parts"),
]
Arguments = Annotated[
    Annotated[str, Tag("a text")] | Annotated[dict[str, Any], Tag("an object")],
    by_form("must be a string or an object"),
]


class FunctionCall(StrictModel):
    name: Name
    arguments: Arguments


class ToolCall(StrictModel):
    id: Name | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: FunctionCall


class Message(StrictModel):
    """A message. annotations: an empty list, since clients send back OpenAI's answers unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(fail_fast=True, max_length=0)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/\-]{1,256}$")]
Verbosity = Literal["low", "medium", "high"]
"""OpenAI's, which its own models read. It has no effect here: a prompt can ask for as much."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Function(StrictModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]


class NamedFunction(StrictModel):
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class NamedToolChoice(StrictModel):
    """The one function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictModel):
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[NamedToolChoice], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)
    ]


class AllowedToolChoice(StrictModel):
    """The subset of the tools that may be called. The prompt shows all tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _parse_tool_choice(value: Any) -> Any:
    """Validate tool_choice by hand, for one error that names all its forms."""
    if value in (None, "none", "auto", "required"):
        return value
    is_list = isinstance(value, dict) and value.get("type") == "allowed_tools"
    try:
        return (AllowedToolChoice if is_list else NamedToolChoice).model_validate(value)
    except ValidationError as error:
        raise ValueError(
            "must be 'none', 'auto', 'required', "
            '{"type": "function", "function": {"name": "..."}} or {"type": "allowed_tools", '
            '"allowed_tools": {"mode": "auto" or "required", "tools": [the form before, ...]}}'
        ) from error


def _null_if_equal(nothing: Any) -> BeforeValidator:
    """Return a validator that reads `nothing`, which some clients send for null, as None."""
    return BeforeValidator(
        lambda value: None if value == nothing and type(value) is type(nothing) else value
    )


class Prediction(StrictModel):
    """OpenAI's prediction of most of the answer."""

    type: Literal["content"]
    content: Content


class ConversationFields(StrictModel):
    """What a conversation's prompt depends on, besides its messages."""

    tools: Tools | None = None
    chat_template_kwargs: Annotated[dict[str, Any], at_most(32)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatBody(CompletionFields, ConversationFields):
    neutral: ClassVar = {
        **AnswerFields.neutral,
        **dict.fromkeys(("echo", "add_special_tokens", "no_stop_trim"), OFF),
    }
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tool_choice: Annotated[Any, AfterValidator(_parse_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    max_reasoning_tokens: Count | None = None
    max_draft_nodes: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    return_draft_trees: bool | None = None
    thinking_budget: Count | None = None
    thinking_token_budget: Count | None = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    verbosity: Verbosity | None = None
    prediction: Prediction | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None


class CompletionBody(CompletionFields):
    neutral: ClassVar = {
        **AnswerFields.neutral,
        "add_special_tokens": (True,),
        "no_stop_trim": OFF,
    }
    prompt: Prompt
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None, _null_if_equal(False)
    ] = None
    echo: bool | None = None
    suffix: Annotated[Any, _null_if_equal("")] = None


class GenerateParams(SamplingFields):
    """The sampling_params of /generate, with SGLang's names."""

    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "stop_regex": OFF,
        "custom_params": OFF,
        "stream_interval": (1,),
    }
    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    sampling_seed: Seed | None = None
    no_stop_trim: bool | None = None


def _alike(value: Any) -> Any:
    """Return the value that a list has for every prompt."""
    if not isinstance(value, list) or not value:
        return value
    if any(item != value[0] or type(item) is not type(value[0]) for item in value):
        raise ValueError("must be the same for all prompts; send those with other values alone")
    return value[0]


_AnyParams = Annotated[
    Annotated[GenerateParams, Tag("an object")]
    | Annotated[
        Annotated[
            list[GenerateParams], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)
        ],
        Tag("a list"),
    ],
    by_form('must be an object such as {"max_new_tokens": 16}, or a list with one for each prompt'),
]
_AnyNames = Annotated[
    Annotated[Name, Tag("a text")]
    | Annotated[
        Annotated[list[Name], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)],
        Tag("a list"),
    ],
    by_form("must be a text, or a list with one for each prompt"),
]


class GenerateBody(AnswerFields):
    """The body of /generate. logprob_start_len: the index of the first prompt token with a
    log-probability; -1 for none of the prompt. Where there are several prompts, all but the prompts may
    be lists with an item for each."""

    text: PromptTexts | None = None
    input_ids: PromptIds | None = None
    sampling_params: _AnyParams | None = None
    return_logprob: Annotated[bool | None, BeforeValidator(_alike)] = None
    logprob_start_len: Annotated[
        Annotated[int, Field(ge=-1, le=2**31 - 1)] | None, BeforeValidator(_alike)
    ] = None
    top_logprobs_num: Annotated[
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None, BeforeValidator(_alike)
    ] = None
    return_text_in_logprobs: bool | None = None
    rid: _AnyNames | None = None


class TokenizeBody(ConversationFields):
    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(StrictModel):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_PROMPT_TOKENS)]
