"""Formats answers as Anthropic's messages: deltas in, message objects or their events out.

Promises: the shapes of the Messages API. The whole message is what the events of its stream add up to.
Does not know: HTTP, how a model writes reasoning and tool calls.
"""

from __future__ import annotations

from typing import Any

from eyas.core import Delta
from eyas.server.chat import PreparedChat
from eyas.server.formats import AnswerFormat, ChoiceOutput
from eyas.server.http.errors import ApiError
from eyas.server.http.sse import encode_typed_event
from eyas.server.message_writer import MessageWriter
from eyas.server.messages.blocks import BlockWriter
from eyas.text import Tokenizer


class MessagesFormat(AnswerFormat):
    """Formats one answer as a message."""

    end_of_stream = b""

    def __init__(
        self, tokenizer: Tokenizer, message_id: str, model: str, chat: PreparedChat
    ) -> None:
        self._request = chat.request
        self._writer = MessageWriter(chat, tokenizer)
        self._blocks = BlockWriter()
        self._has_begun = False
        self._last: Delta | None = None
        self._head = {"id": message_id, "type": "message", "role": "assistant", "model": model}

    def encode(self, chunk: dict[str, Any]) -> bytes:
        return encode_typed_event(chunk)

    def chunks(self, choice_index: int, delta: Delta) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if not self._has_begun:
            self._has_begun = True
            message = {
                **self._head,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": _usage(len(self._request.prompt_token_ids), 0, 0, 0),
            }
            events += [{"type": "message_start", "message": message}, {"type": "ping"}]
        for event, _ in self._writer.parts(delta):
            if event is not None:
                events += self._blocks.write(event)
        if delta.finish_reason is not None:
            self._last = delta
            events += self._blocks.finish()
        return events

    def ending(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        last = {"delta": self._stop(usage), "usage": self._whole_usage(usage)}
        return [{"type": "message_delta", **last}, {"type": "message_stop"}]

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        return [error.anthropic_body()]

    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> dict[str, Any]:
        (choice,) = choices
        self.chunks(0, choice.joined())
        return {
            **self._head,
            "content": self._blocks.blocks,
            **self._stop(usage),
            "usage": self._whole_usage(usage),
        }

    def _stop(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return why the message ended. A context that is full is told from a limit of the request."""
        assert self._last is not None
        sequence = self._last.stop_reason if isinstance(self._last.stop_reason, str) else None
        if self._last.finish_reason == "length":
            limit = self._request.params.max_tokens
            is_limit = limit is not None and usage["completion_tokens"] >= limit
            reason = "max_tokens" if is_limit else "model_context_window_exceeded"
        elif sequence is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self._writer.num_calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _whole_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        result = _usage(
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
            self._writer.num_reasoning_tokens,
        )
        if "draft_details" in usage:
            result["draft_details"] = usage["draft_details"]
        return result


def _usage(num_prompt: int, num_cached: int, num_output: int, num_thinking: int) -> dict[str, Any]:
    """Return usage in Anthropic's shape, where cached tokens are not among the input tokens."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
        "output_tokens_details": {"thinking_tokens": num_thinking},
    }
