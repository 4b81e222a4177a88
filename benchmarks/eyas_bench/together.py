"""Measure the decoding speed of sequences that start together, as engines are usually compared.

All prompts of a batch are added at once and every answer has the same length. The time runs from
t_1, when the last sequence's first token has reached the caller, to t_n, when the last sequence's
last token has. Speed is the number of tokens that reached the caller after t_1, divided by t_n -
t_1: where every first step yields one token and all arrive together, this is (tokens - batch) /
(t_n - t_1). Sequences with drafts end at different times; the time until the last one counts.

Promises: only tokens of answers count, not tokens drafted beyond the end. Two warm-up runs are not
counted (what a step needs may be prepared in the first and captured in the second); all other runs
are reported, and the best is the result.
Does not know: models, drafters, how results are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from eyas.core import Request, SamplingParams
from eyas.draft import StepReport
from eyas.engine.engine import Engine

WARM_UPS = 2
SLACK = 32
"""Extra positions of the context, in addition to prompt and answer."""
MOST_PROMPT_ROWS = 8192
"""The maximum number of prompt rows in a step; more take several steps."""


@dataclass(slots=True)
class TogetherRun:
    """A run of a batch.

    seconds: from t_1 to t_n. num_tokens, num_steps: within that time. first_seconds: from the start
    to t_1. num_output_tokens: of all sequences. later_tokens, later_steps: of each sequence after
    its first step. draft_lengths: tokens that each verdict on a draft yielded, including tokens cut
    at the end of an answer.
    """

    first_seconds: float = 0.0
    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    num_output_tokens: int = 0
    later_tokens: int = 0
    later_steps: int = 0
    draft_lengths: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Return the tokens per second from t_1 to t_n."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Return the mean number of tokens of a sequence in a step after its first."""
        return self.later_tokens / max(1, self.later_steps)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the run for the result; in milliseconds where the name says so."""
        lengths = self.draft_lengths
        return {
            "tokens_per_second": round(self.speed, 1),
            "seconds": round(self.seconds, 5),
            "tokens": self.num_tokens,
            "steps": self.num_steps,
            "step_ms": round(1000 * self.seconds / max(1, self.num_steps), 4),
            "tokens_per_step": round(self.tokens_per_step, 3),
            "tokens_per_draft": round(sum(lengths) / len(lengths), 3) if lengths else None,
            "first_tokens_ms": round(1000 * self.first_seconds, 2),
        }


def step_rows(batch: int, prompt_tokens: int, nodes: int) -> int:
    """Return the number of rows of a step: for all prompts (or a part of many), and for all trees."""
    prompts = min(MOST_PROMPT_ROWS, batch * (prompt_tokens + nodes))
    return max(512, prompts, -(-4 * batch * nodes // 3))


def requests(
    prompts: Sequence[list[int]], max_tokens: int, temperature: float, name: str
) -> list[Request]:
    """Return a request for each prompt, with its own seed; end-of-text tokens are ignored."""
    return [
        Request(
            id=f"{name}-{i}",
            prompt_token_ids=list(prompt),
            params=SamplingParams(
                temperature=temperature, seed=i, max_tokens=max_tokens, ignore_eos=True
            ),
        )
        for i, prompt in enumerate(prompts)
    ]


def run_together(engine: Engine, batch: Sequence[Request]) -> TogetherRun:
    """Add all requests, step until the last one has ended, and wait for steps in flight."""
    run = TogetherRun()
    firsts: dict[str, int] = {}
    num_open, has_all = len(batch), False
    num_failed = engine.metrics.num_failed_steps
    with noted_drafts(engine, run.draft_lengths):
        started = marked = now = time.perf_counter()
        for request in batch:
            engine.add(request)
        while num_open:
            deltas = engine.step()
            now = time.perf_counter()
            count = sum(len(delta.token_ids) for delta in deltas)
            run.num_output_tokens += count
            if has_all:
                run.num_tokens += count
                run.num_steps += 1
            for delta in deltas:
                if delta.token_ids:
                    firsts.setdefault(delta.request_id, len(delta.token_ids))
                if delta.finish_reason is None:
                    continue
                num_open -= 1
                if delta.finish_reason != "length" or delta.usage is None:
                    raise RuntimeError(f"a measured request failed: {delta.error}")
                run.later_tokens += delta.usage.num_output_tokens - firsts[delta.request_id]
                run.later_steps += delta.usage.num_steps - 1
            if not has_all and len(firsts) == len(batch):
                has_all, marked = True, now
                run.first_seconds = now - started
        run.seconds = now - marked
    while engine.has_work():
        engine.step()
    if engine.metrics.num_failed_steps > num_failed:
        raise RuntimeError("a step failed during the measurement; see the log")
    return run


def repeat(
    engine: Engine,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    temperature: float,
    repeats: int,
    on_round: Callable[[int], None] | None = None,
) -> list[TogetherRun]:
    """Run the same batch `repeats` times after the warm-up.

    on_round: called with the number of the run; numbers below 1 are warm-up runs.
    """
    runs = []
    for turn in range(1 - WARM_UPS, repeats + 1):
        if on_round is not None:
            on_round(turn)
        batch = requests(prompts, max_tokens, temperature, f"together-{len(prompts)}-{turn}")
        run = run_together(engine, batch)
        if turn > 0:
            runs.append(run)
    return runs


def summarise(runs: Sequence[TogetherRun]) -> dict[str, Any]:
    """Return the numbers of the best run, and of every run."""
    best = max(runs, key=lambda run: run.speed)
    return {**best.summary(), "runs": [run.summary() for run in runs]}


@contextmanager
def noted_drafts(engine: Engine, lengths: list[int]) -> Iterator[None]:
    """Record the number of tokens of each verdict on a draft while the context lasts."""
    drafter = engine.drafter
    learn = drafter.learn

    def noted(report: StepReport) -> None:
        for count, size in zip(report.counts, report.sizes, strict=True):
            if size > 1 and count > 0:
                lengths.append(count)
        learn(report)

    drafter.learn = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        del drafter.learn
