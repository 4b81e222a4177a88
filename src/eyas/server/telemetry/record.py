"""What is known of one request when it has ended, for the log and for traces.

Promises: counts, times, names and codes; no text of a request or of its answer, and no part of a URL
that a client chose. Does not know: who reads it, HTTP's messages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from eyas.core import SamplingParams


@dataclass(slots=True, kw_only=True)
class AnswerRecord:
    """The answer to a request that was passed to the engine.

    id: the answer's, such as chatcmpl-... params: of the request; its prompts share them. constraint:
    the field of the request that its output must follow, such as "regex"; None without one. reasons: by
    choice, the finish reason; or "refused" or "unavailable" by the engine, "failed" in the server, or
    "left" by the client. Token counts are sums over prompts and choices, each prompt counted once; what
    only the engine knows is None if no choice ended.
    queue_seconds: how long the choice that was admitted first waited for a seat in the running batch.
    first_token_at: in seconds of `time.perf_counter`; None if there was no token.
    """

    id: str
    params: SamplingParams
    constraint: str | None
    is_streamed: bool
    reasons: list[str]
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    queue_seconds: float | None = None
    first_token_at: float | None = None


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request. `end` is called once, when its response has been sent or its client has gone.

    route: the path of the route as the server defines it; empty if there is none. model: the served
    name that the request asked for; empty if it was refused before that was known. status: 499 if the
    client left before there was a response. error_code: of a response that is an error
    (`http.codes`). answer: None if the request did not reach the engine. started: in seconds of
    `time.perf_counter`; started_ns: nanoseconds since 1970.
    """

    request_id: str
    method: str
    headers: Mapping[str, str]
    route: str = ""
    model: str = ""
    status: int = 0
    error_code: str | None = None
    answer: AnswerRecord | None = None
    started: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)
    seconds: float = 0.0

    def end(self) -> None:
        """Note how long the request took."""
        self.seconds = time.perf_counter() - self.started

    @property
    def first_token_seconds(self) -> float | None:
        """Seconds from the request to the first token; None if there was no token."""
        if self.answer is None or self.answer.first_token_at is None:
            return None
        return self.answer.first_token_at - self.started

    @property
    def reasons(self) -> list[str]:
        """How the request ended, each reason once: those of the answer's choices, then the error."""
        reasons = [] if self.answer is None else sorted(set(self.answer.reasons))
        return reasons if self.error_code is None else [*reasons, self.error_code]
