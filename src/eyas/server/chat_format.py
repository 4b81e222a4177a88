"""Formats chat answers: deltas in, chat completion objects or chunks out.

Promises: the shapes of OpenAI's chat completions, with the peers' reasoning fields beside content.
A chunk contains only one of reasoning, content and a tool call. The chunks of a stream add up to the
whole answer, and no log-probability is lost. Does not know: HTTP, how a model writes reasoning and
tool calls.
"""

from __future__ import annotations

import time
from typing import Any

from eyas.core import Delta, TokenLogprob
from eyas.dialect import Event
from eyas.server.chat import PreparedChat
from eyas.server.disaggregation import transfer_fields
from eyas.server.formats import (
    AnswerFormat,
    ChoiceOutput,
    draft_trees,
    ending_fields,
    logprob_entries,
    new_call_id,
    prompt_logprobs,
    to_raw_json,
)
from eyas.server.message_writer import MessageWriter
from eyas.text import Tokenizer


class ChatFormat(AnswerFormat):
    """Formats one answer as chat completion objects."""

    def __init__(
        self, tokenizer: Tokenizer, answer_id: str, model: str, chat: PreparedChat, with_usage: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._params = chat.request.params
        self._with_usage = with_usage
        self._message_writers: dict[int, MessageWriter] = {}
        self._head = {"id": answer_id, "created": int(time.time()), "model": model}

    def chunks(self, choice_index: int, delta: Delta) -> list[dict[str, Any]]:
        """Return the chunks for one delta of a choice.

        A log-probability is in the chunk of its token's text. Log-probabilities of tokens without
        visible text are in a chunk with an empty delta.
        """
        chunks = []
        if choice_index not in self._message_writers:
            first = None if self._chat.may_call else ""
            chunks.append(self._chunk(choice_index, {"role": "assistant", "content": first}))
        if delta.draft_trees:
            chunks.append(self._chunk(choice_index, {}))
            chunks[-1]["choices"][0]["draft_trees"] = draft_trees(
                self._tokenizer, delta.draft_trees
            )
        writer = self._message_writer(choice_index)
        for event, entries in writer.parts(delta):
            part = _message_part(event)
            chunks.append(self._chunk(choice_index, part, logprobs=self._logprobs(entries)))
        if delta.finish_reason is not None:
            rest = writer.take_logprobs(None)
            logprobs = self._logprobs(rest) if rest else None
            reason = self._finish_reason(delta, writer)
            last = self._chunk(choice_index, {}, logprobs=logprobs, finish_reason=reason)
            last["choices"][0].update(ending_fields(delta, self._params.seed))
            chunks.append(last)
        return chunks

    def ending(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        if not self._with_usage:
            return []
        usage = self._with_reasoning_tokens(usage)
        head = {**self._head, "object": "chat.completion.chunk"}
        return [{**head, "choices": [], "usage": usage}]

    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {**self._head, "object": "chat.completion"}
        parts = [to_raw_json(self._choice(choice)) for choice in choices]
        answer |= {"choices": parts, "usage": self._with_reasoning_tokens(usage)}
        if choices[0].prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choices[0].prompt_logprobs)
        return answer | transfer_fields(choices)

    def _choice(self, choice: ChoiceOutput) -> dict[str, Any]:
        assert choice.last is not None
        writer = self._message_writer(choice.index)
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for event, _ in writer.parts(choice.joined()):
            part = _message_part(event)
            for name in ("content", "reasoning_content", "reasoning"):
                if name in part:
                    message[name] = (message.get(name) or "") + part[name]
            for call in part.get("tool_calls", ()):
                _add_call(message.setdefault("tool_calls", []), call)
        if "tool_calls" not in message:
            message["content"] = message["content"] or ""
        trees = draft_trees(self._tokenizer, choice.draft_trees)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": self._finish_reason(choice.last, writer),
            **ending_fields(choice.last, self._params.seed),
            **({"draft_trees": trees} if self._chat.request.with_draft_trees else {}),
        }

    def _finish_reason(self, last: Delta, writer: MessageWriter) -> str | None:
        """Return "tool_calls" for "stop" if the model called a tool.

        Not if the request named the function, as in OpenAI's API, nor if a stop string or token ended
        the text, which may have cut off the call.
        """
        called = writer.num_calls > 0 and not self._chat.is_named
        if last.finish_reason == "stop" and called and last.stop_reason is None:
            return "tool_calls"
        return last.finish_reason

    def _with_reasoning_tokens(self, usage: dict[str, Any]) -> dict[str, Any]:
        if self._chat.new_segmenter is None:
            return usage
        num_tokens = sum(writer.num_reasoning_tokens for writer in self._message_writers.values())
        return {**usage, "completion_tokens_details": {"reasoning_tokens": num_tokens}}

    def _message_writer(self, choice_index: int) -> MessageWriter:
        if choice_index not in self._message_writers:
            writer = MessageWriter(self._chat, self._tokenizer)
            self._message_writers[choice_index] = writer
        return self._message_writers[choice_index]

    def _chunk(
        self,
        choice_index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": choice_index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._with_usage else chunk

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        if self._params.logprobs is None:
            return None
        return {"content": logprob_entries(self._tokenizer, entries), "refusal": None}


def _message_part(event: Event | None) -> dict[str, Any]:
    """Return a part of a message as the delta of a chunk."""
    if event is None:
        return {}
    if event.kind == "content":
        return {"content": event.text}
    if event.kind == "reasoning":
        return {"reasoning_content": event.text, "reasoning": event.text}
    if event.kind == "arguments":
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    call = {
        "index": event.index,
        "id": new_call_id(),
        "type": "function",
        "function": {"name": event.name, "arguments": event.text},
    }
    return {"tool_calls": [call]}


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a part of a call to the calls of a whole message, which have no index."""
    if "id" in part:
        calls.append({name: value for name, value in part.items() if name != "index"})
    else:
        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
