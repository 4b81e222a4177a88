"""When a text ends: end-of-sequence, stop tokens, stop strings, length; and what may be shown so far.

Promises: a function of the token list alone, so any way of cutting it into steps gives the same text,
tokens and reason (the stream law). The earliest stop to complete wins, the length cap comes second.
No part of a stop string is ever shown, no half character either.
Does not know: how tokens were chosen, who drafted them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from eyas.core import FinishReason, Mark, SamplingParams, TokenLogprob

_MOST_KEPT = 4096
"""Characters already shown that are kept before they are dropped, so that no step copies more."""


class TextSink(Protocol):
    """An incremental detokenizer."""

    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


@dataclass(slots=True)
class Shown:
    """What became final. num_taken: how many of the pushed tokens belong to the output."""

    num_taken: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    marks: list[Mark] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class StopChecker:
    """max_tokens: the output's cap, the context's included. eos_token_ids: what the model ends with.
    sink: makes the text; None without a tokenizer (then there is no text and no stop string).
    marked_ids: tokens whose places in the text are wanted."""

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
        self._pending: deque[tuple[int, int, TokenLogprob | None]] = deque()
        self.num_output = 0

    @property
    def barred_token_ids(self) -> frozenset[int]:
        """What `min_tokens` forbids until enough tokens are out."""
        return self._eos | self._stop_ids

    def push(self, token_ids: list[int], logprobs: list[TokenLogprob] | None = None) -> Shown:
        """Append chosen tokens up to the first that ends the text."""
        if self._params.max_tokens == 0:
            return Shown(finish_reason="length")
        shown = Shown()
        for i, token_id in enumerate(token_ids):
            shown.num_taken += 1
            self._take(token_id, logprobs[i] if logprobs is not None else None, shown)
            if shown.finish_reason is not None:
                break
        self._release(shown)
        return shown

    def finish(self) -> Shown:
        """The text ends here for a reason of the engine's own: show what was held back."""
        shown = Shown(finish_reason="abort")
        self._flush()
        self._release(shown)
        return shown

    def _take(self, token_id: int, logprob: TokenLogprob | None, shown: Shown) -> None:
        self.num_output += 1
        if token_id in self._stop_ids or token_id in self._eos:
            shown.finish_reason = "stop"
            shown.stop_reason = token_id if token_id in self._stop_ids else None
            if self._params.include_stop_str_in_output and self._sink is not None:
                self._text += self._sink.push(token_id)
            self._flush()
            self._pending.append((len(self._text), token_id, logprob))
            return
        if self._sink is not None:
            begin = len(self._text)
            self._text += self._sink.push(token_id)
            if token_id in self._marked:
                self._marks.append(Mark(begin, token_id, len(self._text) - begin))
        self._pending.append((len(self._text), token_id, logprob))
        stop = self._find_stop() if self.num_output >= self._params.min_tokens else None
        if stop is not None:
            start, text = stop
            shown.finish_reason, shown.stop_reason = "stop", text
            keep = start + len(text) if self._params.include_stop_str_in_output else start
            self._text = self._text[:keep]
        elif self.num_output >= self._max_tokens:
            shown.finish_reason = "length"
            self._flush()
        self._num_searched = len(self._text)

    def _find_stop(self) -> tuple[int, str] | None:
        """The stop string that completes first in the unsearched text, as (start, string)."""
        best: tuple[int, int, str] | None = None
        for stop in self._params.stop:
            start = self._text.find(stop, max(0, self._num_searched - len(stop) + 1))
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        return None if best is None else (best[1], best[2])

    def _flush(self) -> None:
        if self._sink is not None:
            self._text += self._sink.finish()

    def _release(self, shown: Shown) -> None:
        """Move what is final into `shown`: all of it at the end, else all but a possible stop."""
        end = len(self._text)
        if shown.finish_reason is None:
            end -= self._held_back()
        start = self._num_shown
        is_over = shown.finish_reason is not None
        while self._marks and (self._marks[0].offset + self._marks[0].length <= end or is_over):
            mark = self._marks.popleft()
            if mark.offset + mark.length <= end:  # not cut off by a stop string
                shown.marks.append(Mark(mark.offset - start, mark.token_id, mark.length))
        if self._marks:
            end = min(end, self._marks[0].offset)  # a mark's text is never shown without it
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
        """Forget text that was shown: no stop string can begin in it any more."""
        gone, self._num_shown = self._num_shown, 0
        self._text = self._text[gone:]
        self._num_searched = max(0, self._num_searched - gone)
        self._pending = deque((at - gone, i, logprob) for at, i, logprob in self._pending)
        self._marks = deque(Mark(m.offset - gone, m.token_id, m.length) for m in self._marks)

    def _held_back(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = 0
        for stop in self._params.stop:
            tail = self._text[max(0, len(self._text) - len(stop) + 1) :]
            start = tail.find(stop[0])
            while start >= 0 and not stop.startswith(tail[start:]):
                start = tail.find(stop[0], start + 1)
            if start >= 0:
                longest = max(longest, len(tail) - start)
        return longest
