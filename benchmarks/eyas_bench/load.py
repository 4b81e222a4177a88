"""Draw an open load of requests, and summarise what became of them.

Arrivals are a Poisson process; lengths of prompts and answers are log-normal within bounds; a
fraction of the requests has a JSON schema. The load does not depend on how fast answers come.

Promises: the same settings give the same load. Every time is measured from the scheduled arrival,
so that waiting in a queue counts. Percentiles are values that occurred.
Does not know: engines, servers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SPREAD = 0.7
"""The standard deviation of the logarithm of a length."""
SHORTEST, LONGEST = 1 / 8, 4
"""The bounds of a length, as multiples of its mean."""
MOST_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """The settings of a load.

    rate: requests per second. prompt_tokens, max_tokens: mean lengths. schemas: prepared JSON
    schemas, used in turn. vocab_size: prompts are random token ids below it.
    """

    rate: float
    num_requests: int
    prompt_tokens: int
    max_tokens: int
    vocab_size: int
    seed: int = 0
    schemas: Sequence[str] = ()
    schema_share: float = 0.0

    @property
    def most_prompt_tokens(self) -> int:
        return _bounds(self.prompt_tokens)[1]

    @property
    def most_tokens(self) -> int:
        return _bounds(self.max_tokens)[1]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a load.

    at: scheduled arrival in seconds after the start. schema: of its answer; None for free text.
    """

    number: int
    at: float
    prompt: list[int]
    max_tokens: int
    schema: str | None = None


@dataclass(slots=True)
class Outcome:
    """The result of a request.

    deliveries: (seconds after the start, number of tokens) of each. error: the reason of a failure;
    None for success. ended: seconds after the start.
    """

    arrival: Arrival
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    ended: float | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.deliveries)

    @property
    def first_token(self) -> float:
        """Return the seconds from the scheduled arrival to the first token."""
        return self.deliveries[0][0] - self.arrival.at

    @property
    def inter_token(self) -> float:
        """Return the mean seconds per token from the first delivery to the last."""
        (begin, first), (end, _) = self.deliveries[0], self.deliveries[-1]
        return (end - begin) / max(1, self.num_tokens - first)


@dataclass(slots=True)
class Queue:
    """The queue when the last request arrived; None for a number that is not known.

    num_open: requests that have not ended. drained: seconds until all had ended.
    """

    num_open: int = 0
    num_running: int | None = None
    num_waiting: int | None = None
    most_waiting: int | None = None
    drained: float = 0.0


def draw_load(load: Load) -> list[Arrival]:
    """Return the requests in the order of their arrival."""
    times, lengths, texts = (random.Random(f"{load.seed}/{of}") for of in ("at", "length", "text"))
    arrivals = []
    at = 0.0
    num_schemas = 0
    for number in range(load.num_requests):
        at += times.expovariate(load.rate)
        count = draw_length(lengths, load.prompt_tokens)
        schema = None
        if load.schemas and lengths.random() < load.schema_share:
            schema = load.schemas[num_schemas % len(load.schemas)]
            num_schemas += 1
        prompt = [texts.randrange(1, load.vocab_size) for _ in range(count)]
        arrivals.append(Arrival(number, at, prompt, draw_length(lengths, load.max_tokens), schema))
    return arrivals


def draw_length(draw: random.Random, mean: int) -> int:
    """Draw a log-normal length of this mean, repeated until it is within the bounds."""
    low, high = _bounds(mean)
    while True:
        length = round(draw.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD))
        if low <= length <= high:
            return length


def _bounds(mean: int) -> tuple[int, int]:
    return max(1, round(SHORTEST * mean)), max(2, round(LONGEST * mean))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this fraction of values does not exceed.

    None if there are none.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def summarise(
    outcomes: Sequence[Outcome], queue: Queue, slo_first_token: float, slo_inter_token: float
) -> dict[str, Any]:
    """Summarise a load. Times are in milliseconds where the name says so, else in seconds.

    Rates are over the time from the first arrival to the last end. inter_token_ms is per token: the
    tokens of a delivery share the time since the previous one. gap_ms is per delivery. Goodput
    counts the requests whose first token and whose mean time per token are within the targets.
    """
    good = [o for o in outcomes if o.error is None and o.deliveries]
    failed = [o for o in outcomes if o.error is not None]
    met = [o for o in good if o.first_token <= slo_first_token and o.inter_token <= slo_inter_token]
    begin = min((o.arrival.at for o in outcomes), default=0.0)
    end = max((o.ended for o in outcomes if o.ended is not None), default=begin)
    seconds = max(end - begin, 1e-9)
    last = max((o.arrival.at for o in outcomes), default=0.0)
    kinds = {
        "free": [o for o in good if o.arrival.schema is None],
        "schema": [o for o in good if o.arrival.schema is not None],
    }
    num_tokens = sum(o.num_tokens for o in outcomes)
    return {
        "num_requests": len(outcomes),
        "num_ended_well": len(good),
        "num_failed": len(failed),
        "errors": sorted({str(o.error)[:200] for o in failed})[:MOST_ERRORS],
        "seconds": round(seconds, 3),
        "offered_per_second": round(len(outcomes) / (last - begin), 3) if last > begin else None,
        "ended_per_second": round(len(good) / seconds, 3),
        "goodput_per_second": round(len(met) / seconds, 3),
        "share_in_time": round(len(met) / max(1, len(outcomes)), 4),
        "output_tokens_per_second": round(num_tokens / seconds, 1),
        "output_tokens": num_tokens,
        "prompt_tokens": sum(len(o.arrival.prompt) for o in outcomes),
        **_latencies(good),
        "kinds": {
            kind: {"num_ended_well": len(own), **_latencies(own)}
            for kind, own in kinds.items()
            if own
        },
        "queue": {
            "open_at_last_arrival": queue.num_open,
            "running_at_last_arrival": queue.num_running,
            "waiting_at_last_arrival": queue.num_waiting,
            "most_waiting": queue.most_waiting,
            "drained_seconds": round(queue.drained, 3),
        },
    }


def _latencies(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    firsts = [o.first_token for o in outcomes]
    tokens: list[float] = []
    gaps: list[float] = []
    for outcome in outcomes:
        for (before, _), (now, count) in zip(
            outcome.deliveries, outcome.deliveries[1:], strict=False
        ):
            gaps.append(now - before)
            tokens += [(now - before) / count] * count
    return {
        "first_token_ms": _shares(firsts, (50, 90, 99)),
        "inter_token_ms": _shares(tokens, (50, 99)),
        "gap_ms": _shares(gaps, (50, 99)),
    }


def _shares(values: Sequence[float], percents: Sequence[int]) -> dict[str, float | None]:
    found = {f"p{percent}": percentile(values, percent / 100) for percent in percents}
    return {name: None if v is None else round(1000 * v, 3) for name, v in found.items()}
