"""What the formats of all routes share: their base class, a choice's collected output, usage and
logprobs.

Promises: plain dicts in OpenAI's shape. Does not know: HTTP, where deltas come from.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import msgspec

from eyas.core import Delta, Mark, TokenLogprob, TreeRecord, Usage
from eyas.server.http.errors import ApiError
from eyas.server.http.sse import DONE_EVENT, encode_event
from eyas.text import Tokenizer


@dataclass(slots=True)
class ChoiceOutput:
    """The collected output of one choice. index: its index in the answer."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    num_chars: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    draft_trees: list[TreeRecord] = field(default_factory=list)
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        self.marks += shift_marks(delta.marks, self.num_chars)
        self.texts.append(delta.text)
        self.num_chars += len(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.draft_trees += delta.draft_trees
        if delta.finish_reason is not None:
            self.last = delta

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def num_values(self) -> int:
        """The number of tokens, log-probabilities and nodes of draft trees: a measure of the time that
        encoding takes."""
        scored = [*self.logprobs, *(self.prompt_logprobs or ())]
        num_scored = sum(1 + len(entry.top) for entry in scored if entry)
        return len(self.token_ids) + num_scored + sum(len(each.nodes) for each in self.draft_trees)

    def joined(self) -> Delta:
        """Return all of the output as one final delta."""
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


def shift_marks(marks: Sequence[Mark], num_chars: int) -> list[Mark]:
    """Return the marks with their offsets moved by `num_chars` characters."""
    return [Mark(mark.offset + num_chars, mark.token_id, mark.length) for mark in marks]


class AnswerFormat(ABC):
    """Formats an answer: as the events of a stream, or as one object.

    logprobs_param, choices_param, prompt_param: the fields that request log-probabilities, several
    choices, and several prompts. prompt_copies: how many of a prompt's
    choices include the prompt's log-probabilities. repeats: each event contains the whole output so
    far. end_of_stream: what follows the last event.
    """

    logprobs_param: str = "logprobs"
    choices_param: str = "n"
    prompt_param: str = "prompt"
    prompt_copies: int = 1
    repeats: bool = False
    end_of_stream: bytes = DONE_EVENT

    @abstractmethod
    def chunks(self, choice_index: int, delta: Delta) -> list[dict[str, Any]]:
        """Return the objects of a stream for one delta of a choice."""

    @abstractmethod
    def ending(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the last objects of a stream whose choices have all finished."""

    @abstractmethod
    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> Any:
        """Return the answer as one object."""

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        """Return the last objects of a stream that ends with an error."""
        return [error.body()]

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """Return one object of a stream as an event."""
        return encode_event(chunk)


def to_raw_json(value: Any) -> msgspec.Raw:
    """Encode a part of an answer, so that a long answer is not held as a tree of objects."""
    return msgspec.Raw(msgspec.json.encode(value))


def ending_fields(delta: Delta, seed: int | None) -> dict[str, Any]:
    """Return the fields of a finished choice that OpenAI's API lacks: stop_reason and seed."""
    return {
        "stop_reason": delta.stop_reason,
        "seed": seed if delta.seed is None else delta.seed,
    }


def usage_object(usages: list[list[Usage | None]], *, with_drafts: bool = False) -> dict[str, Any]:
    """Return an answer's usage in OpenAI's shape. usages[p][i]: choice i of prompt p. Each prompt
    counts once.

    with_drafts: include `draft_details`.
    """
    num_prompt = num_output = 0
    for choices in usages:
        finished_usages = [usage for usage in choices if usage is not None]
        num_prompt += max((usage.num_prompt_tokens for usage in finished_usages), default=0)
        num_output += sum(usage.num_output_tokens for usage in finished_usages)
    result: dict[str, Any] = {
        **token_counts(num_prompt, num_output),
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens(usages)},
    }
    if with_drafts:
        finished_usages = [usage for choices in usages for usage in choices if usage is not None]
        result["draft_details"] = draft_details(finished_usages)
    return result


def token_counts(num_prompt: int, num_output: int) -> dict[str, int]:
    """Return the counts of usage in OpenAI's shape."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
    }


def num_cached_tokens(usages: list[list[Usage | None]]) -> int:
    """Return how many tokens of the prompts were found in the cache. usages: as in `usage_object`. A
    prompt's first choice counts: the others share what that one has stored."""
    firsts = (next(filter(None, choices), None) for choices in usages)
    return sum(usage.num_cached_tokens for usage in firsts if usage is not None)


def draft_details(usages: Sequence[Usage]) -> dict[str, Any]:
    """Return statistics of the drafts of all these choices. Entry i of a list is for depth i + 1."""
    num_steps = sum(usage.num_steps for usage in usages)
    num_accepted = sum(usage.num_accepted_tokens for usage in usages)
    drafts = [usage.drafts for usage in usages]
    return {
        "steps": num_steps,
        "steps_with_draft": sum(entry.num_drafts for entry in drafts),
        "draft_tokens": sum(usage.num_draft_tokens for usage in usages),
        "accepted_tokens": num_accepted,
        "accepted_tokens_per_step": round(num_accepted / max(1, num_steps), 4),
        "drafted_by_depth": _by_depth([entry.drafted_by_depth for entry in drafts]),
        "accepted_by_depth": _by_depth([entry.accepted_by_depth for entry in drafts]),
        "drafted_by_source": _by_name([entry.drafted_by_source for entry in drafts]),
        "accepted_by_source": _by_name([entry.accepted_by_source for entry in drafts]),
        "endings": _by_name([entry.endings for entry in drafts]),
    }


def _by_depth(counts: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def _by_name(counts: list[dict[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(entry) for entry in counts), Counter()))


def prompt_logprobs(
    tokenizer: Tokenizer | None, entries: list[TokenLogprob | None]
) -> list[msgspec.Raw | None]:
    """Return for each prompt token its own and the likeliest tokens by id; None for the first
    token."""

    def tokens(entry: TokenLogprob) -> dict[str, dict[str, Any]]:
        return {
            str(token_id): {
                "logprob": finite(logprob),
                "decoded_token": token_text(tokenizer, token_id),
            }
            for token_id, logprob in ((entry.token_id, entry.logprob), *entry.top)
        }

    return [None if entry is None else to_raw_json(tokens(entry)) for entry in entries]


def token_text(tokenizer: Tokenizer | None, token_id: int) -> str:
    """Return the text of a single token; without a tokenizer its id, as vLLM writes it."""
    return f"token_id:{token_id}" if tokenizer is None else tokenizer.token_text(token_id)


def finite(logprob: float) -> float:
    """Return the log-probability, with -9999 for minus infinity, as OpenAI writes it: JSON has none."""
    return max(logprob, -9999.0)


def token_entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    """Return one token as chat completions write it."""
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def logprob_entries(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> list[msgspec.Raw]:
    """Return tokens with their alternatives as chat completions write them."""
    written = []
    for entry in entries:
        token = token_entry(tokenizer, entry.token_id, entry.logprob)
        token["top_logprobs"] = [token_entry(tokenizer, *pair) for pair in entry.top]
        written.append(to_raw_json(token))
    return written


def draft_trees(tokenizer: Tokenizer, records: Sequence[TreeRecord]) -> list[msgspec.Raw]:
    """Return the draft trees of steps, with the texts of their tokens. `tokens`: what the step added to
    the output."""

    def token(token_id: int) -> dict[str, Any]:
        return {"id": token_id, "text": tokenizer.token_text(token_id)}

    def nodes(record: TreeRecord) -> list[dict[str, Any]]:
        return [
            token(node.token_id)
            | {"parent": node.parent, "source": node.source}
            | {"score": node.score, "fate": node.fate}
            for node in record.nodes
        ]

    return [
        to_raw_json({"nodes": nodes(record), "tokens": [token(each) for each in record.token_ids]})
        for record in records
    ]


def new_call_id() -> str:
    """Return an id for a tool call."""
    return f"call_{secrets.token_hex(12)}"
