"""What both kinds of completion have in common when they are written out.

Promises: plain dicts in OpenAI's shape. Does not know: HTTP, where deltas come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from eyas.core import Delta, TokenLogprob, Usage
from eyas.text import Tokenizer


@dataclass(slots=True)
class Choice:
    """Everything one choice has said. place: its index in the answer."""

    place: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.last = delta

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Format(Protocol):
    """How an answer is written: as a stream of chunks, or whole."""

    def chunks(self, place: int, delta: Delta) -> list[dict[str, Any]]:
        """The stream's objects for one delta of the choice at `place`."""
        ...

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]: ...

    def response(self, choices: list[Choice], usage: dict[str, Any]) -> dict[str, Any]: ...


def ending(delta: Delta, seed: int | None) -> dict[str, Any]:
    """Fields of a finished choice that OpenAI has no place for: how it ended, its seed."""
    shown = delta.seed if delta.seed is not None else seed
    return {"stop_reason": delta.stop_reason, "seed": shown}


def usage_of(usages: list[list[Usage | None]]) -> dict[str, Any]:
    """OpenAI's usage of an answer. usages[p][i]: choice i of prompt p; a prompt counts once."""
    num_prompt = num_cached = num_output = 0
    for choices in usages:
        known = [usage for usage in choices if usage is not None]
        num_prompt += max((usage.num_prompt_tokens for usage in known), default=0)
        num_cached += min((usage.num_cached_tokens for usage in known[:1]), default=0)
        num_output += sum(usage.num_output_tokens for usage in known)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def prompt_logprobs(
    tokenizer: Tokenizer, entries: list[TokenLogprob | None]
) -> list[dict[str, Any] | None]:
    """Each prompt token's own and likeliest tokens, by id; None for the first."""
    written: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            written.append(None)
            continue
        tokens = {entry.token_id: entry.logprob, **dict(entry.top)}
        written.append(
            {
                str(token_id): {
                    "logprob": finite(logprob),
                    "decoded_token": tokenizer.token_text(token_id),
                }
                for token_id, logprob in tokens.items()
            }
        )
    return written


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
