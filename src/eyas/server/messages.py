"""A conversation as a chat template reads it.

Promises: every field of a message that is accepted reaches the template; leading system messages are
one; a variable that the template does not read is refused. Does not know: sampling, constraints, HTTP,
in which form the template reads a field (`ChatTemplate.normal` does).
"""

from __future__ import annotations

from typing import Any

from eyas.core import RequestError
from eyas.server.request_models import Message, RefusalPart, TextPart, Tool
from eyas.server.text_processor import TextProcessor
from eyas.text.messages import require_content

MAX_KWARG_CHARS = 1000
_NO_REASONING_EFFORTS = ("none", "minimal")
_RESERVED_KWARGS = frozenset(
    {
        *("messages", "tools", "documents", "chat_template", "tokenize", "template", "self"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"),
        *("namespace", "range", "dict", "cycler", "joiner", "lipsum", "loop", "caller"),
        *("raise_exception", "strftime_now", "true", "false", "none", "True", "False", "None"),
    }
)


def plain_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as a template reads them."""
    return [
        {"type": tool.type, "function": tool.function.model_dump(exclude_none=True)}
        for tool in tools or ()
    ] or None


def plain_messages(messages: list[Message], processor: TextProcessor) -> list[dict[str, Any]]:
    """Messages for a template: "developer" as it knows it, a refusal as content, and one system message
    where several lead."""
    template = processor.template
    plain: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        fields = message.model_dump(exclude_none=True, exclude={"refusal", "annotations"})
        require_content({**fields, "refusal": message.refusal}, place)
        if message.role == "developer" and template and not template.mentions("developer"):
            fields["role"] = "system"
        if isinstance(message.content, list):
            fields["content"] = _text_parts(message, f"messages[{place}].content")
        elif message.content is None and message.refusal:
            fields["content"] = message.refusal
        for call in fields.get("tool_calls", ()):
            call.pop("index", None)
        leads = len(plain) == 1 and plain[0]["role"] == fields["role"] == "system"
        if leads:
            plain[0]["content"] = _after(plain[0].get("content"), fields.get("content"))
        else:
            plain.append(fields)
    return plain


def _text_parts(message: Message, param: str) -> list[dict[str, str]]:
    """A message's parts as text. RequestError for a refusal that is not an assistant's."""
    texts: list[str] = []
    for part in message.content or ():
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, RefusalPart) and message.role == "assistant":
            texts.append(part.refusal)
        else:
            raise RequestError(f"{param}: only an assistant's has refusals", param=param)
    return [{"type": "text", "text": text} for text in texts]


def _after(first: Any, second: Any) -> str:
    """Two messages' contents as one's, a paragraph each."""
    texts = [
        content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())
        for content in (first, second)
    ]
    return "\n\n".join(filter(None, texts))


def _set_effort(options: dict[str, Any], effort: str, processor: TextProcessor) -> None:
    """As much of it as the template can say."""
    if options.get("reasoning_effort", effort) != effort:
        raise RequestError(
            "reasoning_effort: differs from chat_template_kwargs.reasoning_effort; give one of them",
            param="reasoning_effort",
        )
    if processor.template is None:
        return
    if processor.template.mentions("reasoning_effort"):
        options["reasoning_effort"] = effort
    for switch in ("enable_thinking", "thinking"):
        if effort in _NO_REASONING_EFFORTS and processor.template.mentions(switch):
            options.setdefault(switch, False)


def template_options(
    processor: TextProcessor,
    messages: list[Message],
    kwargs: dict[str, Any] | None,
    reasoning_effort: str | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> dict[str, Any]:
    """Keyword arguments for the template. RequestError for one that it does not know; reasoning_effort
    alone may be unknown, as clients send it to every model."""
    options = dict(kwargs or {})
    if reasoning_effort is not None:
        _set_effort(options, reasoning_effort, processor)
    for name, value in options.items():
        param = name if name not in (kwargs or {}) else f"chat_template_kwargs.{name[:64]}"
        is_known = name.isidentifier() and not name.startswith("_") and name not in _RESERVED_KWARGS
        if processor.tokenizer is not None:
            is_known = is_known and name not in processor.tokenizer.special_texts
        if not (is_known and processor.template is not None and processor.template.mentions(name)):
            raise RequestError(
                f"{param}: is nothing that this model's chat template reads", param=param
            )
        if not isinstance(value, (bool, int, float, str)) or (
            isinstance(value, str) and len(value) > MAX_KWARG_CHARS
        ):
            raise RequestError(
                f"{param}: must be true, false, a number or a short string", param=param
            )
    if continue_final_message:
        if messages[-1].tool_calls:
            param = f"messages[{len(messages) - 1}].tool_calls"
            raise RequestError(
                f"{param}: a message that is to be continued ends with its content; leave out its "
                "calls, or continue_final_message",
                param=param,
            )
        if add_generation_prompt:
            raise RequestError(
                "continue_final_message: cannot go with add_generation_prompt: true",
                param="continue_final_message",
            )
        options["continue_final_message"] = True
    options["add_generation_prompt"] = (
        not continue_final_message if add_generation_prompt is None else add_generation_prompt
    )
    return options
