"""Where a text ends (end-of-sequence token, stop token, stop string, length), and which part is final.

Text is final once no later token can change it or make it part of a stop string. Only final text is
returned ("shown").

Promises: the result depends on the token list alone. However the list is cut into steps, text, tokens
and finish reason are the same (the stream law). The stop that is completed first wins; the length limit
comes second. No part of a stop string and no incomplete character is ever shown.
Does not know: how tokens were chosen or drafted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from eyas.core import FinishReason, Mark, SamplingParams, TokenLogprob

_MOST_KEPT = 4096
"""Characters that were shown and are still stored. Beyond this they are dropped, so that the cost of a
step does not grow with the length of the text."""


class TextSink(Protocol):
    """An incremental detokenizer."""

    def push(self, token_id: int) -> str:
        """Add a token. Returns the text that is complete now."""
        ...

    def finish(self) -> str:
        """Return the text of an incomplete character at the end."""
        ...


@dataclass(slots=True)
class Shown:
    """The tokens and text that became final with a call. num_taken: how many of the pushed tokens
    belong to the output."""

    num_taken: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    marks: list[Mark] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class StopChecker:
    """Finds the end of one output, and holds back text that is not final.

    max_tokens: the most tokens of the output, by the request and the context. eos_token_ids: the
    model's end-of-sequence tokens. sink: turns tokens into text; None without a tokenizer, and then
    there is no text and no stop string. marked_ids: tokens whose positions in the text are reported
    as marks.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        max_tokens: int,
        sink: TextSink | None,
        marked_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._marked = marked_ids
        self._marks: deque[Mark] = deque()
        self._params = params
        self._eos = frozenset() if params.ignore_eos else eos_token_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._max_tokens = max_tokens
        self._sink = sink
        self._text = ""
        self._num_shown = 0
        self._num_searched = 0
        # (end of its text, id, log-probability) of the tokens that were not shown yet.
        self._pending: deque[tuple[int, int, TokenLogprob | None]] = deque()
        self.num_output = 0

    @property
    def barred_token_ids(self) -> frozenset[int]:
        """The tokens that may not be chosen before `min_tokens` tokens were."""
        return self._eos | self._stop_ids

    def push(self, token_ids: list[int], logprobs: list[TokenLogprob] | None = None) -> Shown:
        """Append chosen tokens, up to the first that ends the text. Returns what became final."""
        if self._params.max_tokens == 0:
            return Shown(finish_reason="length")
        shown = Shown()
        for i, token_id in enumerate(token_ids):
            shown.num_taken += 1
            self._append(token_id, logprobs[i] if logprobs is not None else None, shown)
            if shown.finish_reason is not None:
                break
        self._show(shown)
        return shown

    def finish(self) -> Shown:
        """End the text here, without a stop. Returns all that was held back."""
        shown = Shown(finish_reason="abort")
        self._flush()
        self._show(shown)
        return shown

    def _append(self, token_id: int, logprob: TokenLogprob | None, shown: Shown) -> None:
        """Append one token and its text; set `shown.finish_reason` if it ends the text."""
        self.num_output += 1
        if token_id in self._stop_ids or token_id in self._eos:
            shown.finish_reason = "stop"
            shown.stop_reason = None if token_id in self._eos else token_id
            if self._params.include_stop_str_in_output and self._sink is not None:
                self._text += self._sink.push(token_id)
            self._flush()
            self._pending.append((len(self._text), token_id, logprob))
            return
        if self._sink is not None:
            start = len(self._text)
            self._text += self._sink.push(token_id)
            if token_id in self._marked:
                self._marks.append(Mark(start, token_id, len(self._text) - start))
        self._pending.append((len(self._text), token_id, logprob))
        stop = self._find_stop() if self.num_output >= self._params.min_tokens else None
        if stop is not None:
            start, text = stop
            shown.finish_reason, shown.stop_reason = "stop", text
            end = start + len(text) if self._params.include_stop_str_in_output else start
            self._text = self._text[:end]
        elif self.num_output >= self._max_tokens:
            shown.finish_reason = "length"
            self._flush()
        self._num_searched = len(self._text)

    def _find_stop(self) -> tuple[int, str] | None:
        """Return (start, string) of the stop string that ends first in the text not searched before."""
        first: tuple[int, int, str] | None = None
        for stop in self._params.stop:
            start = self._text.find(stop, max(0, self._num_searched - len(stop) + 1))
            if start >= 0:
                match = (start + len(stop), start, stop)
                first = match if first is None else min(first, match)
        return None if first is None else (first[1], first[2])

    def _flush(self) -> None:
        """Append the text of an incomplete character at the end."""
        if self._sink is not None:
            self._text += self._sink.finish()

    def _show(self, shown: Shown) -> None:
        """Move final text, tokens and marks into `shown`: everything once the text has ended, else all
        but an end that may become a stop string."""
        end = len(self._text)
        if shown.finish_reason is None:
            end -= self._held_back()
        start = self._num_shown
        is_over = shown.finish_reason is not None
        while self._marks and (self._marks[0].offset + self._marks[0].length <= end or is_over):
            mark = self._marks.popleft()
            if mark.offset + mark.length <= end:  # else a stop string has cut it off
                shown.marks.append(Mark(mark.offset - start, mark.token_id, mark.length))
        if self._marks:
            end = min(end, self._marks[0].offset)  # a mark is never shown later than its text
        if end > start:
            shown.text = self._text[start:end]
            self._num_shown = end
        while self._pending and (shown.finish_reason is not None or self._pending[0][0] <= end):
            _, token_id, logprob = self._pending.popleft()
            shown.token_ids.append(token_id)
            if logprob is not None:
                shown.logprobs.append(logprob)
        if self._num_shown > _MOST_KEPT:
            self._drop_shown()

    def _drop_shown(self) -> None:
        """Drop text that was shown: no stop string can begin in it."""
        num_dropped, self._num_shown = self._num_shown, 0
        self._text = self._text[num_dropped:]
        self._num_searched = max(0, self._num_searched - num_dropped)
        self._pending = deque((end - num_dropped, i, logprob) for end, i, logprob in self._pending)
        self._marks = deque(Mark(m.offset - num_dropped, m.token_id, m.length) for m in self._marks)

    def _held_back(self) -> int:
        """Return the length of the longest end of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._params.stop:
            tail = self._text[max(0, len(self._text) - len(stop) + 1) :]
            start = tail.find(stop[0])
            while start >= 0 and not stop.startswith(tail[start:]):
                start = tail.find(stop[0], start + 1)
            if start >= 0:
                longest = max(longest, len(tail) - start)
        return longest
