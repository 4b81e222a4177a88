"""Formats answers as responses: deltas in, response objects or their typed events out.

Promises: the shapes of OpenAI's Responses API. The whole response is what the events of its stream add
up to. Does not know: HTTP, how a model writes reasoning and tool calls, where responses are stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from eyas.core import Delta, TokenLogprob
from eyas.server.chat import PreparedChat
from eyas.server.formats import (
    AnswerFormat,
    ChoiceOutput,
    ending_fields,
    logprob_entries,
    to_raw_json,
)
from eyas.server.http.errors import ApiError
from eyas.server.http.sse import encode_typed_event
from eyas.server.message_writer import MessageWriter
from eyas.server.responses.items import ItemWriter
from eyas.server.responses.models import ResponseBody
from eyas.text import Tokenizer

_FAILED = "server_error"
"""The code of OpenAI's for a response that failed; its clients know no others of ours."""


class ResponsesFormat(AnswerFormat):
    """Formats one answer as a response object."""

    logprobs_param = "top_logprobs"
    end_of_stream = b""

    def __init__(
        self,
        tokenizer: Tokenizer,
        response_id: str,
        model: str,
        body: ResponseBody,
        chat: PreparedChat,
        *,
        is_stored: bool,
        finished: Callable[[bytes, list[dict[str, Any]]], None],
    ) -> None:
        """finished: called with the whole response as JSON and its output items, before they are
        sent."""
        self._tokenizer = tokenizer
        self._params = chat.request.params
        self._finished = finished
        self._writer = MessageWriter(chat, tokenizer)
        self._items = ItemWriter()
        self._num_events = 0
        self._last: Delta | None = None
        self._head: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
        }
        self._settings = {
            **_settings(body),
            "store": is_stored,
            "temperature": self._params.temperature,
            "top_p": self._params.top_p,
        }

    def encode(self, chunk: dict[str, Any]) -> bytes:
        return encode_typed_event(chunk)

    def chunks(self, choice_index: int, delta: Delta) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if self._num_events == 0:
            begun = to_raw_json(self._response("in_progress", [], None))
            events += [
                {"type": f"response.{word}", "response": begun}
                for word in ("created", "in_progress")
            ]
        invisible: list[TokenLogprob] = []
        for event, entries in self._writer.parts(delta):
            if event is None:
                invisible = entries  # of the next part, for example the first bytes of a character
                continue
            with_logprobs = event.kind == "content" and self._params.logprobs is not None
            entries, invisible = [*invisible, *entries], []
            scored = logprob_entries(self._tokenizer, entries) if with_logprobs else []
            events += self._items.write(event, scored)
        if delta.finish_reason is not None:
            self._last = delta
            events += self._items.finish(self._status)
        return self._numbered(events)

    def ending(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        event = {"type": f"response.{self._status}", "response": self._whole(usage)}
        return self._numbered([event])

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        response = self._response("failed", self._items.cut_off(), None)
        told = error.body()["error"]
        response["error"] = {**told, "code": _FAILED, "reason": told["code"]}
        return self._numbered([{"type": "response.failed", "response": response}])

    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> msgspec.Raw:
        (choice,) = choices
        self.chunks(0, choice.joined())
        self._last = choice.last
        return self._whole(usage)

    @property
    def _status(self) -> Any:
        """The status of the finished response, and of its last item."""
        assert self._last is not None
        return "incomplete" if self._last.finish_reason == "length" else "completed"

    def _whole(self, usage: dict[str, Any]) -> msgspec.Raw:
        """Return the finished response."""
        items = self._items.items
        response = self._response(self._status, items, self._usage(usage))
        if self._status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        assert self._last is not None
        response |= {
            "completed_at": int(time.time()),
            **ending_fields(self._last, self._params.seed),
        }
        written = msgspec.json.encode(response)
        self._finished(written, items)
        return msgspec.Raw(written)

    def _usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        result = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._writer.num_reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        }
        if "draft_details" in usage:
            result["draft_details"] = usage["draft_details"]
        return result

    def _response(
        self, status: str, items: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": items,
            "usage": usage,
            **self._settings,
        }

    def _numbered(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the events with their numbers in the stream."""
        numbered = []
        for event in events:
            numbered.append({**event, "sequence_number": self._num_events})
            self._num_events += 1
        return numbered


def _settings(body: ResponseBody) -> dict[str, Any]:
    """Return the fields of the request that a response repeats. The large ones are encoded once."""
    text_format = body.text.format if body.text else None
    effort = body.reasoning.effort if body.reasoning else None
    choice = body.tool_choice
    text = {"type": "text"} if text_format is None else _dumped(text_format)
    verbosity = (body.text and body.text.verbosity) or "medium"
    return {
        "background": False,
        "instructions": to_raw_json(body.instructions),
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "text": to_raw_json({"format": text, "verbosity": verbosity}),
        "tool_choice": _choice(choice),
        "tools": to_raw_json([_tool(tool) for tool in body.tools or ()]),
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _dumped(model: Any) -> Any:
    return model.model_dump(exclude_none=True, by_alias=True)


def _choice(choice: Any) -> Any:
    return choice or "auto" if choice is None or isinstance(choice, str) else _dumped(choice)


def _tool(tool: Any) -> dict[str, Any]:
    """Return a tool with the fields that a response always has."""
    return {"description": None, "parameters": None, "strict": None, **_dumped(tool)}
