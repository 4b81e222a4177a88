"""Converts the messages, tools and options of a chat request to the inputs of a chat template.

Promises: every field of a message that is accepted reaches the template; consecutive system messages at
the start become one; a variable that the template does not read is refused. Does not know: sampling,
constraints, HTTP, the form in which the template reads a field (`ChatTemplate.normalize` does).
"""

from __future__ import annotations

from typing import Any

from eyas.core import field_error
from eyas.server.request_models import ConversationFields, Message, RefusalPart, TextPart, Tool
from eyas.server.text_processor import TextProcessor
from eyas.text.messages import require_content

MAX_KWARG_CHARS = 1000
_NO_REASONING_EFFORTS = ("none", "minimal")
_THINKING_SWITCHES = ("enable_thinking", "thinking")
_RESERVED_KWARGS = frozenset(
    {
        *("messages", "tools", "documents", "chat_template", "tokenize", "template", "self"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"),
        *("namespace", "range", "dict", "cycler", "joiner", "lipsum", "loop", "caller"),
        *("raise_exception", "strftime_now", "true", "false", "none", "True", "False", "None"),
    }
)


def template_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Return the tools as dicts for the template, or None if there are none."""
    return [
        {"type": tool.type, "function": tool.function.model_dump(exclude_none=True)}
        for tool in tools or ()
    ] or None


def template_messages(messages: list[Message], processor: TextProcessor) -> list[dict[str, Any]]:
    """Return the messages as dicts for the template.

    Role "developer" becomes "system" unless the template mentions it, a refusal becomes content, and
    system messages at the start become one. RequestError names the field of an invalid message.
    """
    template = processor.template
    result: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        fields = message.model_dump(exclude_none=True, exclude={"refusal", "annotations"})
        require_content({**fields, "refusal": message.refusal}, index)
        if message.role == "developer" and template and not template.mentions("developer"):
            fields["role"] = "system"
        if isinstance(message.content, list):
            fields["content"] = _text_parts(message, f"messages[{index}].content")
        elif message.content is None and message.refusal:
            fields["content"] = message.refusal
        for call in fields.get("tool_calls", ()):
            call.pop("index", None)
        continues_system = len(result) == 1 and result[0]["role"] == fields["role"] == "system"
        if continues_system:
            result[0]["content"] = _joined_contents(result[0].get("content"), fields.get("content"))
        else:
            result.append(fields)
    return result


def _text_parts(message: Message, param: str) -> list[dict[str, str]]:
    """Return the parts of a message as text parts. RequestError for a refusal that is not an
    assistant's."""
    texts: list[str] = []
    for part in message.content or ():
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, RefusalPart) and message.role == "assistant":
            texts.append(part.refusal)
        else:
            raise field_error(param, "only a message of role 'assistant' can have a refusal")
    return [{"type": "text", "text": text} for text in texts]


def _joined_contents(first: Any, second: Any) -> str:
    """Return the contents of two messages as one, separated by an empty line."""
    texts = [
        content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())
        for content in (first, second)
    ]
    return "\n\n".join(filter(None, texts))


def thinking_switches(processor: TextProcessor) -> list[str]:
    """Return the template's variables that turn reasoning on and off."""
    if processor.template is None:
        return []
    return [name for name in _THINKING_SWITCHES if processor.template.mentions(name)]


def _set_effort(options: dict[str, Any], effort: str, processor: TextProcessor) -> None:
    """Set the template's variables for reasoning effort, as far as it has them."""
    if options.get("reasoning_effort", effort) != effort:
        raise field_error(
            "reasoning_effort",
            "differs from chat_template_kwargs.reasoning_effort; give one of them",
        )
    if processor.template is None:
        return
    if processor.template.mentions("reasoning_effort"):
        options["reasoning_effort"] = effort
    if effort in _NO_REASONING_EFFORTS:
        for switch in thinking_switches(processor):
            options.setdefault(switch, False)


def check_option(processor: TextProcessor, name: str, value: Any, param: str) -> None:
    """Raise RequestError that names `param` for a variable that the template does not read, or that
    cannot have this value."""
    is_known = name.isidentifier() and not name.startswith("_") and name not in _RESERVED_KWARGS
    if processor.tokenizer is not None:
        is_known = is_known and name not in processor.tokenizer.special_texts
    if not (is_known and processor.template is not None and processor.template.mentions(name)):
        raise field_error(param, "is nothing that this model's chat template reads")
    if not isinstance(value, (bool, int, float, str)) or (
        isinstance(value, str) and len(value) > MAX_KWARG_CHARS
    ):
        raise field_error(param, "must be true, false, a number or a short string")


def template_options(
    processor: TextProcessor,
    messages: list[Message],
    body: ConversationFields,
    reasoning_effort: str | None,
) -> dict[str, Any]:
    """Return the keyword arguments for rendering the template: those of the request, and the server's
    for those that it leaves open.

    RequestError for an argument that the template does not read, except for reasoning_effort, which
    clients send to every model.
    """
    kwargs = body.chat_template_kwargs or {}
    options = dict(kwargs)
    if reasoning_effort is not None:
        _set_effort(options, reasoning_effort, processor)
    for name, value in options.items():
        param = name if name not in kwargs else f"chat_template_kwargs.{name[:64]}"
        check_option(processor, name, value, param)
    options = {**processor.default_options, **options}
    if body.continue_final_message:
        if messages[-1].tool_calls:
            param = f"messages[{len(messages) - 1}].tool_calls"
            raise field_error(
                param,
                "a message that is to be continued ends with its content; leave out its "
                "calls, or continue_final_message",
            )
        options["continue_final_message"] = True
    options["add_generation_prompt"] = (
        not body.continue_final_message
        if body.add_generation_prompt is None
        else body.add_generation_prompt
    )
    return options
