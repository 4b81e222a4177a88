"""What the offline API returns: deltas collected into finished choices.

Promises: the same numbers the stream carried, put together. Does not know: engines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eyas.core import Delta, FinishReason, TokenLogprob, Usage


@dataclass(slots=True)
class Choice:
    """One answer. finish_reason: stop, length, abort or error (then `error` says why)."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    seed: int | None = None
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class GenerationOutput:
    """All choices of one prompt. `text` and `token_ids` are those of the first."""

    prompt_token_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    def absorb(self, delta: Delta) -> None:
        """Append one delta to its choice."""
        choice = self.choices[delta.index]
        choice.text += delta.text
        choice.token_ids += delta.token_ids
        if delta.logprobs is not None:
            choice.logprobs = (choice.logprobs or []) + delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
            choice.error = delta.error
            choice.seed = delta.seed
            choice.usage = delta.usage or choice.usage
