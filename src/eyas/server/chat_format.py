"""Formats chat answers: deltas in, chat completion objects or chunks out.

Promises: the shapes of OpenAI's chat completions, with the peers' reasoning fields beside content.
A chunk contains only one of reasoning, content and a tool call. The chunks of a stream add up to the
whole answer, and no log-probability is lost. Does not know: HTTP, how a model writes reasoning and
tool calls.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, TypeAlias

from eyas.core import Delta, TokenLogprob
from eyas.dialect.base import Event
from eyas.server.chat import PreparedChat
from eyas.server.choice_segmenter import ChoiceSegmenter, merge_adjacent
from eyas.server.formats import (
    ChoiceOutput,
    ending_fields,
    prompt_logprobs,
    to_raw_json,
    token_entry,
)
from eyas.text import Detokenizer, Tokenizer

MessagePart: TypeAlias = tuple[dict[str, Any], list[TokenLogprob]]
"""A part of a message, as the delta of a chunk, and the log-probabilities of its tokens."""


class ChatFormat:
    """Formats one answer as chat completion objects."""

    logprobs_param = "logprobs"
    prompt_copies = 1
    repeats = False

    def __init__(
        self, tokenizer: Tokenizer, answer_id: str, model: str, chat: PreparedChat, with_usage: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._params = chat.request.params
        self._with_usage = with_usage
        self._message_writers: dict[int, _MessageWriter] = {}
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
        writer = self._message_writer(choice_index)
        for part, entries in writer.message_parts(delta):
            chunks.append(self._chunk(choice_index, part, logprobs=self._logprobs(entries)))
        if delta.finish_reason is not None:
            rest = writer.take_logprobs(None)
            logprobs = self._logprobs(rest) if rest else None
            reason = self._finish_reason(delta, writer)
            last = self._chunk(choice_index, {}, logprobs=logprobs, finish_reason=reason)
            last["choices"][0].update(ending_fields(delta, self._params.seed))
            chunks.append(last)
        return chunks

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": self._with_reasoning_tokens(usage),
        }

    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {**self._head, "object": "chat.completion"}
        parts = [to_raw_json(self._choice(choice)) for choice in choices]
        answer |= {"choices": parts, "usage": self._with_reasoning_tokens(usage)}
        if choices[0].prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choices[0].prompt_logprobs)
        return answer

    def _choice(self, choice: ChoiceOutput) -> dict[str, Any]:
        assert choice.last is not None
        writer = self._message_writer(choice.index)
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for part, _ in writer.message_parts(choice.joined()):
            for name in ("content", "reasoning_content", "reasoning"):
                if name in part:
                    message[name] = (message.get(name) or "") + part[name]
            for call in part.get("tool_calls", ()):
                _add_call(message.setdefault("tool_calls", []), call)
        if "tool_calls" not in message:
            message["content"] = message["content"] or ""
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": self._finish_reason(choice.last, writer),
            **ending_fields(choice.last, self._params.seed),
        }

    def _finish_reason(self, last: Delta, writer: _MessageWriter) -> str | None:
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

    def _message_writer(self, choice_index: int) -> _MessageWriter:
        if choice_index not in self._message_writers:
            segmenter = None
            if self._chat.new_segmenter is not None:
                skips = self._params.skip_special_tokens
                detokenizer = Detokenizer(self._tokenizer, skips, continues=True)
                segmenter = ChoiceSegmenter(self._chat.new_segmenter(), detokenizer)
            self._message_writers[choice_index] = _MessageWriter(self._chat, segmenter)
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
        content = []
        for entry in entries:
            token = token_entry(self._tokenizer, entry.token_id, entry.logprob)
            token["top_logprobs"] = [token_entry(self._tokenizer, *pair) for pair in entry.top]
            content.append(to_raw_json(token))
        return {"content": content, "refusal": None}


class _MessageWriter:
    """Converts the deltas of one choice to parts of its message, with their log-probabilities."""

    def __init__(self, chat: PreparedChat, segmenter: ChoiceSegmenter | None) -> None:
        self._chat = chat
        self._segmenter = segmenter
        self._unsent_logprobs: list[TokenLogprob] = []
        self._held_text = ""
        self._held_entries: list[TokenLogprob] = []
        self._held_invisible_entries: list[TokenLogprob] = []
        """Log-probabilities of tokens without visible text after those in `_held_entries`."""

    @property
    def num_calls(self) -> int:
        return 0 if self._segmenter is None else self._segmenter.num_calls

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._segmenter is None else self._segmenter.num_reasoning_tokens

    def take_logprobs(self, num_tokens: int | None) -> list[TokenLogprob]:
        """Remove and return the log-probabilities of the next tokens that are in no chunk yet; None:
        of all."""
        entries = self._unsent_logprobs[:num_tokens]
        del self._unsent_logprobs[:num_tokens]
        return entries

    def message_parts(self, delta: Delta) -> list[MessagePart]:
        """Add a delta and return the parts of the message that are now complete."""
        self._unsent_logprobs += delta.logprobs or ()
        if self._segmenter is None:
            if not (delta.text or delta.logprobs):
                return []
            return [({"content": delta.text}, self.take_logprobs(None))]
        events = self._segmenter.push(delta.text, delta.token_ids, delta.marks)
        if delta.finish_reason is not None:
            events += self._segmenter.finish()
        if self._chat.request.params.logprobs is None:
            events = [counted for counted in events if counted.event is not None]
        result: list[MessagePart] = []
        for event, num_tokens in merge_adjacent(events):
            entries = self.take_logprobs(num_tokens)
            is_reasoning = event is not None and event.kind == "reasoning"
            if event is None or (is_reasoning and not self._chat.shows_reasoning):
                if self._held_text:
                    self._held_invisible_entries += entries
                elif entries:
                    result.append(({}, entries))
            elif is_reasoning and not self._chat.streams_reasoning:
                self._held_text += event.text
                self._held_entries += [*self._held_invisible_entries, *entries]
                self._held_invisible_entries = []
            else:
                result += [*self._release_held(), (_message_part(event), entries)]
        return result + self._release_held() if delta.finish_reason is not None else result

    def _release_held(self) -> list[MessagePart]:
        """Return the reasoning that was held back, which is now complete."""
        if not self._held_text:
            return []
        held = [(_message_part(Event("reasoning", self._held_text)), self._held_entries)]
        if self._held_invisible_entries:
            held.append(({}, self._held_invisible_entries))
        self._held_text, self._held_entries, self._held_invisible_entries = "", [], []
        return held


def _message_part(event: Event) -> dict[str, Any]:
    if event.kind == "content":
        return {"content": event.text}
    if event.kind == "reasoning":
        return {"reasoning_content": event.text, "reasoning": event.text}
    if event.kind == "arguments":
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    call = {
        "index": event.index,
        "id": f"call_{secrets.token_hex(12)}",
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
