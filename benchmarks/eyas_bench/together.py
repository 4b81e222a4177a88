"""Decoding speed by the protocol that engines are compared with: sequences that start together.

All prompts of a batch are added at once and every answer has the same length. The clock runs from t_1,
when the last sequence's first token has reached the caller, to t_n, when the last sequence's last token
has. Speed is the number of tokens that reached the caller after t_1, over t_n - t_1: where every first
step yields one token and all of them land together, that is (tokens - batch) / (t_n - t_1). Sequences
that draft reach their ends at different times; the time until the last one counts.

Promises: tokens are those that requests got, none that was drafted beyond an answer's end. Two runs
warm up and are not counted (what a step is made of may be prepared by the first and captured by the
second); every other one is told, and the best is the result.
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
"""Positions of a context beside prompt and answer."""
MOST_PROMPT_ROWS = 8192
"""Rows of a step in which prompts are stored; more prompts than that take several steps."""


@dataclass(slots=True)
class TogetherRun:
    """One batch. seconds: from t_1 to t_n; num_tokens, num_steps: that came, that landed in that time.

    first_seconds: from the start to t_1. num_output_tokens: of all sequences. later_tokens,
    later_steps: of each sequence, those after its first step. draft_lengths: tokens that each verdict
    on a draft yielded, what was cut off at an answer's end included.
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
        """Tokens a second from t_1 to t_n."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a sequence got in a step after its first."""
        return self.later_tokens / max(1, self.later_steps)

    def summary(self) -> dict[str, Any]:
        """As results have it; milliseconds where the name says so."""
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
    """Rows of a step that take the prompts of a batch in one step, or a few, and every tree whole."""
    prompts = min(MOST_PROMPT_ROWS, batch * (prompt_tokens + nodes))
    return max(512, prompts, -(-4 * batch * nodes // 3))


def requests(
    prompts: Sequence[list[int]], max_tokens: int, temperature: float, name: str
) -> list[Request]:
    """One request a prompt, with a seed of its own; answers do not end by themselves."""
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
    """Add all requests, step until the last one has ended, and land what is still under way."""
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
        raise RuntimeError("a step failed while it was measured; the log says how")
    return run


def repeat(
    engine: Engine,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    temperature: float,
    repeats: int,
    tell: Callable[[int], None] | None = None,
) -> list[TogetherRun]:
    """The same batch `repeats` times after those that warm up. tell: called with the number of the
    run, 0 and less for the others."""
    runs = []
    for turn in range(1 - WARM_UPS, repeats + 1):
        if tell is not None:
            tell(turn)
        batch = requests(prompts, max_tokens, temperature, f"together-{len(prompts)}-{turn}")
        run = run_together(engine, batch)
        if turn > 0:
            runs.append(run)
    return runs


def summarise(runs: Sequence[TogetherRun]) -> dict[str, Any]:
    """The best run's numbers, and every run's."""
    best = max(runs, key=lambda run: run.speed)
    return {**best.summary(), "runs": [run.summary() for run in runs]}


@contextmanager
def noted_drafts(engine: Engine, lengths: list[int]) -> Iterator[None]:
    """Write down what became of drafts while the context lasts."""
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
