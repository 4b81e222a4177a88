"""Chat answers written out: deltas in, chat objects out.

Promises: golden shapes of OpenAI's chat completions, with the peers' reasoning beside the content.
Reasoning, content and tool calls never share a chunk; a stream's pieces add up to the whole answer;
no log-probability is lost. Does not know: HTTP, how a model writes any of these.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, TypeAlias

from eyas.core import Delta, TokenLogprob
from eyas.dialect.base import Event
from eyas.server.chat import Chat
from eyas.server.choice_segmenter import ChoiceSegmenter, merge_adjacent
from eyas.server.formats import Choice, encoded, ending, prompt_logprobs, token_entry
from eyas.text import Detokenizer, Tokenizer

Written: TypeAlias = tuple[dict[str, Any], list[TokenLogprob]]
"""A piece of a message and the log-probabilities of its tokens."""


class ChatFormat:
    """Chat completion objects, whole or in chunks."""

    logprobs_param = "logprobs"
    prompt_copies = 1
    repeats = False

    def __init__(
        self, tokenizer: Tokenizer, answer_id: str, model: str, chat: Chat, with_usage: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._params = chat.request.params
        self._with_usage = with_usage
        self._writers: dict[int, _Writer] = {}
        self._head = {"id": answer_id, "created": int(time.time()), "model": model}

    def chunks(self, place: int, delta: Delta) -> list[dict[str, Any]]:
        """A choice's chunks for a delta. A log-probability comes with its token's text; those of tokens
        that show as nothing have a chunk with an empty delta."""
        chunks = []
        if place not in self._writers:
            first = None if self._chat.may_call else ""
            chunks.append(self._chunk(place, {"role": "assistant", "content": first}))
        writer = self._writer(place)
        for piece, entries in writer.pieces(delta):
            chunks.append(self._chunk(place, piece, logprobs=self._logprobs(entries)))
        if delta.finish_reason is not None:
            rest = writer.taken(None)
            logprobs = self._logprobs(rest) if rest else None
            reason = self._finish_reason(delta, writer)
            last = self._chunk(place, {}, logprobs=logprobs, finish_reason=reason)
            last["choices"][0].update(ending(delta, self._params.seed))
            chunks.append(last)
        return chunks

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": self._shown(usage),
        }

    def response(self, choices: list[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {**self._head, "object": "chat.completion"}
        parts = [encoded(self._choice(choice)) for choice in choices]
        answer |= {"choices": parts, "usage": self._shown(usage)}
        if choices[0].prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, choices[0].prompt_logprobs)
        return answer

    def _choice(self, choice: Choice) -> dict[str, Any]:
        assert choice.last is not None
        writer = self._writer(choice.place)
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        for piece, _ in writer.pieces(choice.joined()):
            for name in ("content", "reasoning_content", "reasoning"):
                if name in piece:
                    message[name] = (message.get(name) or "") + piece[name]
            for call in piece.get("tool_calls", ()):
                _add_call(message.setdefault("tool_calls", []), call)
        if "tool_calls" not in message:
            message["content"] = message["content"] or ""
        return {
            "index": choice.place,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": self._finish_reason(choice.last, writer),
            **ending(choice.last, self._params.seed),
        }

    def _finish_reason(self, last: Delta, writer: _Writer) -> str | None:
        """OpenAI says "stop" where the function was named. What stopped the text early, a string or a
        token, may have cut a call off."""
        called = writer.num_calls > 0 and not self._chat.is_named
        if last.finish_reason == "stop" and called and last.stop_reason is None:
            return "tool_calls"
        return last.finish_reason

    def _shown(self, usage: dict[str, Any]) -> dict[str, Any]:
        if self._chat.new_segmenter is None:
            return usage
        num_tokens = sum(writer.num_reasoning_tokens for writer in self._writers.values())
        return {**usage, "completion_tokens_details": {"reasoning_tokens": num_tokens}}

    def _writer(self, place: int) -> _Writer:
        if place not in self._writers:
            segments = None
            if self._chat.new_segmenter is not None:
                skips = self._params.skip_special_tokens
                detokenizer = Detokenizer(self._tokenizer, skips, continues=True)
                segments = ChoiceSegmenter(self._chat.new_segmenter(), detokenizer)
            self._writers[place] = _Writer(self._chat, segments)
        return self._writers[place]

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

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        if self._params.logprobs is None:
            return None
        content = []
        for entry in entries:
            token = token_entry(self._tokenizer, entry.token_id, entry.logprob)
            token["top_logprobs"] = [token_entry(self._tokenizer, *pair) for pair in entry.top]
            content.append(encoded(token))
        return {"content": content, "refusal": None}


class _Writer:
    """One choice's pieces of message, as a stream's delta has them, with their log-probabilities."""

    def __init__(self, chat: Chat, segments: ChoiceSegmenter | None) -> None:
        self._chat = chat
        self._segments = segments
        self._waiting: list[TokenLogprob] = []
        self._held_text = ""
        self._held_entries: list[TokenLogprob] = []
        self._held_silent: list[TokenLogprob] = []
        """Of tokens that show as nothing, behind the held ones."""

    @property
    def num_calls(self) -> int:
        return 0 if self._segments is None else self._segments.num_calls

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._segments is None else self._segments.num_reasoning_tokens

    def taken(self, num_tokens: int | None) -> list[TokenLogprob]:
        """The log-probabilities of the next tokens that no chunk has carried yet; None: of all."""
        entries = self._waiting[:num_tokens]
        del self._waiting[:num_tokens]
        return entries

    def pieces(self, delta: Delta) -> list[Written]:
        self._waiting += delta.logprobs or ()
        if self._segments is None:
            if not (delta.text or delta.logprobs):
                return []
            return [({"content": delta.text}, self.taken(None))]
        pieces = self._segments.push(delta.text, delta.token_ids, delta.marks)
        if delta.finish_reason is not None:
            pieces += self._segments.finish()
        if self._chat.request.params.logprobs is None:
            pieces = [piece for piece in pieces if piece.event is not None]
        written: list[Written] = []
        for event, num_tokens in merge_adjacent(pieces):
            entries = self.taken(num_tokens)
            is_reasoning = event is not None and event.kind == "reasoning"
            if event is None or (is_reasoning and not self._chat.shows_reasoning):
                if self._held_text:
                    self._held_silent += entries
                elif entries:
                    written.append(({}, entries))
            elif is_reasoning and not self._chat.streams_reasoning:
                self._held_text += event.text
                self._held_entries += [*self._held_silent, *entries]
                self._held_silent = []
            else:
                written += [*self._let_go(), (_piece(event), entries)]
        return written + self._let_go() if delta.finish_reason is not None else written

    def _let_go(self) -> list[Written]:
        """The reasoning that was held back, once it is over."""
        if not self._held_text:
            return []
        held = [(_piece(Event("reasoning", self._held_text)), self._held_entries)]
        if self._held_silent:
            held.append(({}, self._held_silent))
        self._held_text, self._held_entries, self._held_silent = "", [], []
        return held


def _piece(event: Event) -> dict[str, Any]:
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


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """A stream's piece of a call, added to the whole ones, which have no index."""
    if "id" in piece:
        calls.append({name: value for name, value in piece.items() if name != "index"})
    else:
        calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
