"""Fields that other servers have and this one does not, with what to send instead on each route.

Promises: a remedy names fields that the route has.
Does not know: routes, but by the fields of their requests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that other servers have. remedies: what to send instead, by a field that a request must
    have for it; the first that fits is shown, and `otherwise` where none does."""

    problem: str
    remedies: dict[str, str] = field(default_factory=dict)
    otherwise: str = "leave it out"

    def message(self, known_names: Collection[str]) -> str:
        """Return the error for a request with these fields."""
        fitting = (text for name, text in self.remedies.items() if name in known_names)
        return f"{self.problem}; {next(fitting, self.otherwise)}"


_IN_SAMPLING = "send sampling_params with"
_CONSTRAINTS = {
    "structured_outputs": "send structured_outputs",
    "sampling_params": f"{_IN_SAMPLING} json_schema, regex or ebnf",
}
UNSUPPORTED = {
    "grammar": Unsupported(
        "is not supported",
        {
            "ebnf": "send ebnf, or structured_outputs with grammar",
            "sampling_params": f"{_IN_SAMPLING} ebnf",
        },
    ),
    "format": Unsupported(
        "is not supported",
        {
            "output_config": "send output_config with format",
            "max_output_tokens": "send text with format",
            "response_format": "send response_format",
            "sampling_params": f"{_IN_SAMPLING} json_schema",
        },
    ),
    "guided_options_request": Unsupported("is not supported", _CONSTRAINTS),
    **dict.fromkeys(
        ("functions", "function_call"),
        Unsupported(
            "is OpenAI's old form of tools",
            {"tool_choice": "send tools and tool_choice", "tools": "send tools"},
        ),
    ),
    **dict.fromkeys(
        ("lora", "lora_request", "lora_adapter", "lora_path", "adapter", "adapters"),
        Unsupported("adapters are not supported"),
    ),
    "chat_template": Unsupported(
        "templates of a request are not accepted",
        otherwise="leave it out, and the model's own is used",
    ),
    "documents": Unsupported(
        "is not supported",
        {"messages": "put them into a message", "input": "put them into the input"},
        otherwise="put them into the prompt",
    ),
    "truncate_prompt_tokens": Unsupported("is not supported", otherwise="send a shorter prompt"),
    **dict.fromkeys(
        ("bad_words", "bad_words_ids", "allowed_token_ids"),
        Unsupported(
            "is not supported",
            {
                "logit_bias": "send logit_bias, or what the output must be as structured_outputs",
                "sampling_params": f"{_IN_SAMPLING} logit_bias, json_schema, regex or ebnf",
                "structured_outputs": "send what the output must be as structured_outputs",
            },
        ),
    ),
    **dict.fromkeys(
        ("logits_processors", "custom_logit_processor", "custom_params"),
        Unsupported(
            "requests cannot bring code",
            {
                "logit_bias": "send logit_bias or structured_outputs",
                "sampling_params": f"{_IN_SAMPLING} logit_bias, json_schema, regex or ebnf",
                **_CONSTRAINTS,
            },
        ),
    ),
    **dict.fromkeys(
        ("audio", "image_data", "audio_data", "video_data", "mm_processor_kwargs"),
        Unsupported("the model reads and writes text alone"),
    ),
    **dict.fromkeys(
        ("prompt_embeds", "input_embeds", "return_hidden_states"),
        Unsupported("requests and answers are texts and token ids"),
    ),
    "stop_regex": Unsupported(
        "is not supported", {"stop": "send stop", "sampling_params": f"{_IN_SAMPLING} stop"}
    ),
    "add_special_tokens": Unsupported(
        "the special tokens of a prompt are those of the tokenizer and the template",
        otherwise="leave it out, or send token ids",
    ),
    "web_search_options": Unsupported(
        "the server calls no tools", {"tools": "send tools, and their results as messages"}
    ),
    "max_completion_tokens": Unsupported(
        "is for chats",
        {
            "max_output_tokens": "send max_output_tokens",
            "max_tokens": "send max_tokens",
            "sampling_params": f"{_IN_SAMPLING} max_new_tokens",
        },
    ),
    **dict.fromkeys(
        ("enable_thinking", "thinking"),
        Unsupported(
            "is not supported",
            {"chat_template_kwargs": 'send chat_template_kwargs with {"enable_thinking": ...}'},
        ),
    ),
    "extra_body": Unsupported(
        "is the client's own option", otherwise="send its members as fields of the request"
    ),
    "reasoning": Unsupported(
        "is not supported",
        {
            "reasoning_effort": "send reasoning_effort",
            "output_config": "send output_config with effort",
        },
    ),
}
OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
"""Fields of OpenAI's and vLLM's that have another name in SGLang's sampling_params."""
