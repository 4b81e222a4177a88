"""What both kinds of completion have in common when they are written out.

Promises: plain dicts in OpenAI's shape. Does not know: HTTP, where deltas come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import msgspec

from eyas.core import Delta, Mark, TokenLogprob, Usage
from eyas.text import Tokenizer


@dataclass(slots=True)
class Choice:
    """Everything one choice has said. place: its index in the answer."""

    place: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    num_chars: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        self.marks += moved(delta.marks, self.num_chars)
        self.texts.append(delta.text)
        self.num_chars += len(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.last = delta

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def num_values(self) -> int:
        """Tokens and log-probabilities, each of which takes its time to be written."""
        scored = [*self.logprobs, *(self.prompt_logprobs or ())]
        return len(self.token_ids) + sum(1 + len(entry.top) for entry in scored if entry)

    def joined(self) -> Delta:
        """All of it as one delta, the last."""
        assert self.last is not None
        return Delta(
            request_id=self.last.request_id,
            text=self.text,
            token_ids=self.token_ids,
            marks=self.marks,
            logprobs=self.logprobs,
            finish_reason=self.last.finish_reason,
            stop_reason=self.last.stop_reason,
        )


def moved(marks: Sequence[Mark], num_chars: int) -> list[Mark]:
    """Marks of a text that comes after `num_chars` characters."""
    return [Mark(mark.offset + num_chars, mark.token_id, mark.length) for mark in marks]


class Format(Protocol):
    """How an answer is written: as a stream of chunks, or whole.

    logprobs_param: the field that asks for log-probabilities. prompt_copies: how many of a prompt's
    choices repeat its log-probabilities. repeats: a chunk has everything so far in it.
    """

    logprobs_param: str
    prompt_copies: int
    repeats: bool

    def chunks(self, place: int, delta: Delta) -> list[dict[str, Any]]:
        """The stream's objects for one delta of the choice at `place`."""
        ...

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]: ...

    def response(self, choices: list[Choice], usage: dict[str, Any]) -> Any: ...


def encoded(value: Any) -> msgspec.Raw:
    """A part of an answer as its bytes: a long answer is never a tree of objects."""
    return msgspec.Raw(msgspec.json.encode(value))


def ending(delta: Delta, seed: int | None) -> dict[str, Any]:
    """Fields of a finished choice that OpenAI has no place for: how it ended, its seed."""
    shown = delta.seed if delta.seed is not None else seed
    return {"stop_reason": delta.stop_reason, "seed": shown}


def usage_of(usages: list[list[Usage | None]], *, with_drafts: bool = False) -> dict[str, Any]:
    """OpenAI's usage of an answer. usages[p][i]: choice i of prompt p; a prompt counts once.

    with_drafts: say as well what became of the drafts.
    """
    num_prompt = num_cached = num_output = 0
    for choices in usages:
        known = [usage for usage in choices if usage is not None]
        num_prompt += max((usage.num_prompt_tokens for usage in known), default=0)
        num_cached += min((usage.num_cached_tokens for usage in known[:1]), default=0)
        num_output += sum(usage.num_output_tokens for usage in known)
    written: dict[str, Any] = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
    if with_drafts:
        known = [usage for choices in usages for usage in choices if usage is not None]
        written["draft_details"] = draft_details(known)
    return written


def draft_details(usages: Sequence[Usage]) -> dict[str, Any]:
    """What became of the drafts of some choices, together. Entry i of a list is depth i + 1."""
    num_steps = sum(usage.num_steps for usage in usages)
    num_accepted = sum(usage.num_accepted_tokens for usage in usages)
    drafts = [usage.drafts for usage in usages]
    return {
        "steps": num_steps,
        "steps_with_draft": sum(each.num_drafts for each in drafts),
        "draft_tokens": sum(usage.num_draft_tokens for usage in usages),
        "accepted_tokens": num_accepted,
        "accepted_tokens_per_step": round(num_accepted / max(1, num_steps), 4),
        "drafted_by_depth": _by_depth([each.drafted_by_depth for each in drafts]),
        "accepted_by_depth": _by_depth([each.accepted_by_depth for each in drafts]),
        "drafted_by_source": _by_name([each.drafted_by_source for each in drafts]),
        "accepted_by_source": _by_name([each.accepted_by_source for each in drafts]),
        "endings": _by_name([each.endings for each in drafts]),
    }


def _by_depth(counts: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def _by_name(counts: list[dict[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(each) for each in counts), Counter()))


def prompt_logprobs(
    tokenizer: Tokenizer | None, entries: list[TokenLogprob | None]
) -> list[msgspec.Raw | None]:
    """Each prompt token's own and likeliest tokens, by id; None for the first."""

    def tokens(entry: TokenLogprob) -> dict[str, dict[str, Any]]:
        return {
            str(token_id): {
                "logprob": finite(logprob),
                "decoded_token": token_text(tokenizer, token_id),
            }
            for token_id, logprob in ((entry.token_id, entry.logprob), *entry.top)
        }

    return [None if entry is None else encoded(tokens(entry)) for entry in entries]


def token_text(tokenizer: Tokenizer | None, token_id: int) -> str:
    """A token's text on its own; without a tokenizer its id, as vLLM writes it."""
    return f"token_id:{token_id}" if tokenizer is None else tokenizer.token_text(token_id)


def finite(logprob: float) -> float:
    """JSON has no minus infinity; OpenAI writes -9999 for it."""
    return max(logprob, -9999.0)


def token_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    """One token as chat completions write it."""
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }
