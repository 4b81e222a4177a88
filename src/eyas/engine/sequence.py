"""A sequence: one choice of one request while the engine works on it, as the host sees it.

Promises: `tokens` holds the tokens that have landed. What flights may add to them is bounded here
(`num_in_flight_tokens`), never guessed.
Does not know: devices, how sequences are scheduled.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from eyas.cache.lease import Lease
from eyas.constraint.automaton import Automaton
from eyas.core import Request, TokenLogprob, Usage
from eyas.engine.stops import StopChecker


class Status(enum.Enum):
    """waiting: for a seat. running: has a seat and a lease. finished: has its last delta."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one choice of a request.

    index: number of the choice. order: age; sequences with a lower order run first and are preempted
    last. tokens: prompt and landed output. max_length: most tokens that it may have. automaton: None if
    the output has no grammar. leader: the choice of the same request that stores the shared prompt.
    seat: row of the sequence table; -1 without one. num_planned: positions before the root that are
    stored, or that a flight stores. num_in_flight: flights with a span of it; num_rooted_in_flight of
    them have its root, and add at most num_in_flight_tokens tokens. num_on_device: tokens that the
    device has once the landed flights are counted, those after a stop included. state_position: tokens
    in the state of its seat, where layers have one; 0 if that is not known. failure: why it cannot
    continue. added_at: when it was made, in seconds of `time.perf_counter`.
    """

    request: Request
    index: int
    order: int
    seed: int
    tokens: list[int]
    num_prompt_tokens: int
    max_length: int
    stops: StopChecker
    automaton: Automaton | None = None
    leader: Sequence | None = None
    status: Status = Status.WAITING
    seat: int = -1
    lease: Lease | None = None
    num_planned: int = 0
    num_in_flight: int = 0
    num_rooted_in_flight: int = 0
    num_in_flight_tokens: int = 0
    num_on_device: int = 0
    state_position: int = 0
    failure: str | None = None
    usage: Usage = field(default_factory=Usage)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    has_sent_prompt_logprobs: bool = False
    is_prompt_published: bool = False
    added_at: float = field(default_factory=time.perf_counter)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the landed output."""
        return len(self.tokens)

    @property
    def needs_prompt_rows(self) -> bool:
        """Whether prompt log-probabilities were requested and have not all landed."""
        return (
            self.request.params.prompt_logprobs is not None
            and self.index == 0
            and len(self.prompt_logprobs or (None,)) < self.num_prompt_tokens
        )

    @property
    def is_storing_context(self) -> bool:
        """Whether there are positions before the root that no step has stored or is storing."""
        return self.num_planned < self.num_tokens - 1
