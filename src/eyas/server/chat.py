"""/v1/chat/completions: messages in, one request for the engine; deltas in, chat objects out.

Promises: golden shapes of OpenAI's chat completions. The answer's text is content as the model
wrote it: this release splits off neither reasoning nor tool calls. Does not know: HTTP.
"""

from __future__ import annotations

import json
import time
from typing import Any

from eyas.core import Delta, Request, RequestError, TokenLogprob
from eyas.server.formats import (
    Choice,
    ending,
    prompt_logprobs,
    token_entry,
)
from eyas.server.sampling import NOT_CONSTRAINED, refuse_unsupported, sampling_params
from eyas.server.schema import ChatBody, Message, Tool
from eyas.server.texts import ModelTexts
from eyas.text import Tokenizer

MAX_KWARG_CHARS = 1000
_RESERVED_KWARGS = frozenset(
    {
        *("messages", "tools", "documents", "chat_template", "tokenize", "template", "self"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"),
        *("namespace", "range", "dict", "cycler", "joiner", "lipsum", "loop", "caller"),
        *("raise_exception", "strftime_now", "true", "false", "none", "True", "False", "None"),
    }
)


def chat_request(body: ChatBody, texts: ModelTexts, request_id: str, cache_salt: str) -> Request:
    """The engine's request. RequestError or ApiError names what cannot be done; slow, pure work."""
    refuse_unsupported(body)
    tools = wanted_tools(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs: needs logprobs: true", param="top_logprobs")
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise RequestError(
            "max_tokens: differs from max_completion_tokens; give one of them", param="max_tokens"
        )
    params = sampling_params(
        body,
        texts.defaults,
        max_tokens=limits.pop() if limits else None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    ids = texts.chat_ids(
        plain_messages(body.messages, texts),
        tools,
        **template_options(
            texts,
            body.chat_template_kwargs,
            body.reasoning_effort,
            body.add_generation_prompt,
            body.continue_final_message,
        ),
    )
    return Request(id=request_id, prompt_token_ids=ids, params=params, cache_salt=cache_salt)


def wanted_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools that the prompt shall show. RequestError for a promise that cannot be kept."""
    choice = body.tool_choice
    if choice not in (None, "none", "auto"):
        raise RequestError(
            f"tool_choice: {NOT_CONSTRAINED}, so a call cannot be required; use 'auto' or 'none'",
            param="tool_choice",
        )
    if body.tools and body.parallel_tool_calls is False:
        raise RequestError(
            f"parallel_tool_calls: {NOT_CONSTRAINED}, so false cannot be kept",
            param="parallel_tool_calls",
        )
    return None if choice == "none" else plain_tools(body.tools)


def plain_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as a template reads them."""
    for place, tool in enumerate(tools or ()):
        if tool.function.strict:
            raise RequestError(
                f"tools[{place}].function.strict: {NOT_CONSTRAINED}, so it cannot be kept",
                param=f"tools[{place}].function.strict",
            )
    return [
        {"type": tool.type, "function": tool.function.model_dump(exclude_none=True)}
        for tool in tools or ()
    ] or None


def plain_messages(messages: list[Message], texts: ModelTexts) -> list[dict[str, Any]]:
    """Messages as a template reads them: arguments as objects, "developer" as it knows it."""
    template = texts.template
    plain = []
    for message in messages:
        fields = message.model_dump(exclude_none=True, exclude={"refusal"})
        if message.role == "developer" and template and not template.mentions("developer"):
            fields["role"] = "system"
        fields.setdefault("content", message.refusal or "")
        for call in fields.get("tool_calls", ()):
            call["function"]["arguments"] = _parsed(call["function"]["arguments"])
            call.pop("index", None)
        plain.append(fields)
    return plain


def _parsed(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """OpenAI writes a call's arguments as JSON in a string; templates want the object."""
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return value if isinstance(value, dict) else arguments
    return arguments


def template_options(
    texts: ModelTexts,
    kwargs: dict[str, Any] | None,
    reasoning_effort: str | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> dict[str, Any]:
    """Keyword arguments for the template. RequestError for one that it does not know."""
    options = dict(kwargs or {})
    if reasoning_effort is not None:
        options.setdefault("reasoning_effort", reasoning_effort)
    for name, value in options.items():
        param = name if name not in (kwargs or {}) else f"chat_template_kwargs.{name[:64]}"
        is_known = name.isidentifier() and not name.startswith("_") and name not in _RESERVED_KWARGS
        is_known = is_known and name not in texts.tokenizer.special_texts
        if not (is_known and texts.template is not None and texts.template.mentions(name)):
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


class ChatFormat:
    """Chat completion objects, whole or in chunks."""

    def __init__(
        self, tokenizer: Tokenizer, answer_id: str, model: str, request: Request, with_usage: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._params = request.params
        self._with_usage = with_usage
        self._started: set[int] = set()
        self._head = {"id": answer_id, "created": int(time.time()), "model": model}

    def chunks(self, place: int, delta: Delta) -> list[dict[str, Any]]:
        written = []
        if place not in self._started:
            self._started.add(place)
            written.append(self._chunk(place, {"role": "assistant", "content": ""}))
        if delta.text or delta.logprobs:
            written.append(
                self._chunk(place, {"content": delta.text}, logprobs=self._logprobs(delta.logprobs))
            )
        if delta.finish_reason is not None:
            last = self._chunk(place, {}, finish_reason=delta.finish_reason)
            last["choices"][0].update(ending(delta, self._params.seed))
            written.append(last)
        return written

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def response(self, choices: list[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        written = []
        for choice in choices:
            assert choice.last is not None
            written.append(
                {
                    "index": choice.place,
                    "message": {"role": "assistant", "content": choice.text, "refusal": None},
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": choice.last.finish_reason,
                    **ending(choice.last, self._params.seed),
                }
            )
        answer: dict[str, Any] = {**self._head, "object": "chat.completion"}
        answer |= {"choices": written, "usage": usage}
        if choices[0].prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choices[0].prompt_logprobs)
        return answer

    def _chunk(
        self,
        place: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": place,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._with_usage else chunk

    def _logprobs(self, entries: list[TokenLogprob] | None) -> dict[str, Any] | None:
        if self._params.logprobs is None:
            return None
        content = []
        for entry in entries or ():
            token = token_entry(self._tokenizer, entry.token_id, entry.logprob)
            token["top_logprobs"] = [token_entry(self._tokenizer, *pair) for pair in entry.top]
            content.append(token)
        return {"content": content, "refusal": None}
