"""What the routes accept: OpenAI's fields, the extensions peers share, and nothing else.

Promises: strict types, every number bounded, every field either works or is a 400 that names it.
Fields of OpenAI's that change nothing here are accepted by name. Does not know: prompts, engines.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from eyas.core import MAX_CHOICES, MAX_LOGIT_BIAS_ENTRIES, MAX_LOGPROBS, MAX_STOP_STRINGS

MAX_MESSAGES = 4096
MAX_TOOLS = 512
MAX_PROMPTS = MAX_CHOICES
MAX_PROMPT_TOKENS = 4_000_000
MAX_NAME_CHARS = 256

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _only_includes(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - {"include_usage", "include_obfuscation"}
    if unknown:
        raise ValueError(f"{sorted(unknown)[0]!r} is not supported")
    if not all(value is None or isinstance(value, bool) for value in options.values()):
        raise ValueError("must be true or false")
    return options


class Sampled(Strict):
    """The fields that both kinds of completion share."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: Annotated[dict[str, Any], AfterValidator(_only_includes)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    logit_bias: Annotated[dict[str, Number], Field(max_length=MAX_LOGIT_BIAS_ENTRIES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    return_draft_details: bool | None = None

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    best_of: Any = None
    use_beam_search: Any = None
    response_format: Any = None


class TextPart(Strict):
    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    name: Name
    arguments: str | dict[str, Any]


class ToolCall(Strict):
    id: Name | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: FunctionCall


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(Strict):
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class ChatBody(Sampled):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    reasoning_effort: Name | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None


TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]


class CompletionBody(Sampled):
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: Any = None


class TokenizeBody(Strict):
    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Strict):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS)]
