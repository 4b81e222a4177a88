"""One choice of one request while the engine works on it, as the host sees it.

Promises: `tokens` are the tokens that have landed; what steps under way may add is only bounded here
(`num_in_flight`), never guessed.
Does not know: devices, schedules.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from eyas.cache.manager import Lease
from eyas.constraint.automaton import Automaton
from eyas.core import Request, TokenLogprob, Usage
from eyas.engine.stops import StopChecker


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """order: age; older sequences go first and are preempted last. num_planned: positions before the
    root that are stored or being stored. num_in_flight: steps under way that touch it, of which
    num_rooted_in_flight try its root and add at most num_in_flight_tokens tokens. leader: the choice
    of the same request that stores the shared prompt. failure: why it cannot go on.
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
    failure: str | None = None
    usage: Usage = field(default_factory=Usage)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    has_sent_prompt_logprobs: bool = False
    is_prompt_published: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def needs_prompt_rows(self) -> bool:
        """Prompt log-probabilities were asked for and have not all landed yet."""
        return (
            self.request.params.prompt_logprobs is not None
            and self.index == 0
            and len(self.prompt_logprobs or (None,)) < self.num_prompt_tokens
        )

    @property
    def is_storing_context(self) -> bool:
        """Are there positions before the root that no step stores yet?"""
        return self.num_planned < self.num_tokens - 1
