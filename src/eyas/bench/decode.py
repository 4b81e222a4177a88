"""How fast tokens come: one engine measured from outside, contestants in turn within one run.

Promises: contestants get the same token ids, count their tokens the same way (all output tokens over
the wall time from the first prompt to the last token) and take turns, so that a noisy machine is
noisy for all of them; medians are reported. The engine has no hooks for this: a step and the calls
inside it are timed by wrapping them here.
Does not know: how results are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from eyas.core import Request, SamplingParams
from eyas.llm import LLM


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts in batches that start together, one batch after the other.

    batch: sequences of a batch. Greedy unless a temperature is given.
    """

    prompts: list[list[int]]
    batch: int
    max_tokens: int
    stops_at_eos: bool = False
    temperature: float = 0.0

    def batches(self) -> list[list[list[int]]]:
        """The prompts, `batch` at a time."""
        return [self.prompts[i : i + self.batch] for i in range(0, len(self.prompts), self.batch)]


@dataclass(slots=True)
class Run:
    """One pass over a job. Times in seconds; step times are of steps without prompt rows.

    first_tokens: from the start of a batch to its first token, one a batch.
    """

    seconds: float = 0.0
    token_ids: list[list[int]] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    forwards: list[float] = field(default_factory=list)
    proposals: list[float] = field(default_factory=list)
    num_sequence_steps: int = 0
    num_accepted: int = 0
    num_drafted: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(len(ids) for ids in self.token_ids)


class Contestant(Protocol):
    """Something that can run a job."""

    name: str

    def run(self, job: Job) -> Run: ...


class EngineContestant:
    """An engine whose steps are timed. The name tells it apart in the result."""

    def __init__(self, name: str, llm: LLM) -> None:
        self.name = name
        self.llm = llm
        self._engine = llm.engine
        self._forward_seconds = 0.0
        self._propose_seconds = 0.0
        self._saw_prompt_rows = False
        self._num_batches = 0
        self._wrap()

    def run(self, job: Job) -> Run:
        """Every batch of the job, one after the other."""
        run = Run()
        for prompts in job.batches():
            self._run_batch(prompts, job, run)
        return run

    def _run_batch(self, prompts: list[list[int]], job: Job, run: Run) -> None:
        """Add every prompt, step until all are done."""
        engine = self._engine
        self._num_batches += 1
        params = SamplingParams(
            temperature=job.temperature,
            seed=1,
            max_tokens=job.max_tokens,
            ignore_eos=not job.stops_at_eos,
        )
        token_ids: dict[str, list[int]] = {
            f"bench-{self._num_batches}-{i}": [] for i in range(len(prompts))
        }
        num_open, has_first = len(prompts), False
        started = time.perf_counter()
        for request_id, prompt in zip(token_ids, prompts, strict=True):
            engine.add(Request(id=request_id, prompt_token_ids=list(prompt), params=params))
        while num_open:
            self._forward_seconds = self._propose_seconds = 0.0
            self._saw_prompt_rows = False
            before = time.perf_counter()
            deltas = engine.step()
            now = time.perf_counter()
            if deltas and not has_first:
                has_first = True
                run.first_tokens.append(now - started)
            if not self._saw_prompt_rows:
                run.steps.append(now - before)
                run.forwards.append(self._forward_seconds)
                run.proposals.append(self._propose_seconds)
            for delta in deltas:
                token_ids[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    num_open -= 1
                    if delta.finish_reason == "error" or delta.usage is None:
                        raise RuntimeError(f"a measured request failed: {delta.error}")
                    run.num_sequence_steps += delta.usage.num_steps
                    run.num_accepted += delta.usage.num_accepted_tokens
                    run.num_drafted += delta.usage.num_draft_tokens
        run.seconds += time.perf_counter() - started
        run.token_ids += token_ids.values()

    def _wrap(self) -> None:
        """Time the runner's forward and the drafter's proposal inside each step."""
        engine = self._engine
        wait = _waiter(self.llm.info.device)
        forward, propose = engine.runner.forward, engine.drafter.propose

        def timed_forward(rows: Any, taps: tuple[int, ...] = ()) -> Any:
            self._saw_prompt_rows |= bool(rows.layout.contexts)
            wait()
            before = time.perf_counter()
            output = forward(rows, taps)
            wait()
            self._forward_seconds += time.perf_counter() - before
            return output

        def timed_propose(batch: Any) -> Any:
            before = time.perf_counter()
            tree = propose(batch)
            wait()
            self._propose_seconds += time.perf_counter() - before
            return tree

        engine.runner.forward = timed_forward  # type: ignore[method-assign]
        engine.drafter.propose = timed_propose  # type: ignore[method-assign]


def _waiter(device: str) -> Callable[[], None]:
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return torch.cuda.synchronize


def take_turns(
    contestants: Sequence[Contestant],
    job: Job,
    repeats: int,
    on_run: Callable[[str, int], None] | None = None,
) -> dict[str, list[Run]]:
    """Every contestant once to warm up (not counted), then `repeats` rounds in turn."""
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in contestants}
    for turn in range(repeats + 1):
        for contestant in contestants:
            if on_run is not None:
                on_run(contestant.name, turn)
            run = contestant.run(job)
            if turn:
                runs[contestant.name].append(run)
    return runs


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians over the runs of one contestant; milliseconds where the name says so."""
    num_tokens = runs[0].num_tokens
    summary: dict[str, Any] = {
        "tokens_per_second": round(median(run.num_tokens / run.seconds for run in runs), 1),
        "num_tokens": num_tokens,
        "seconds": [round(run.seconds, 4) for run in runs],
    }
    first = [seconds for run in runs for seconds in run.first_tokens]
    if not first:
        return summary
    summary["first_token_ms"] = round(1000 * median(first), 2)
    steps = [s for run in runs for s in run.steps]
    forwards = [s for run in runs for s in run.forwards]
    proposals = [s for run in runs for s in run.proposals]
    rest = [step - forward for step, forward in zip(steps, forwards, strict=True)]
    if steps:
        summary["step_ms"] = _spread(steps)
        summary["forward_ms"] = _spread(forwards)
        summary["rest_ms"] = _spread(rest)
        summary["propose_ms"] = _spread(proposals)
    sequence_steps = sum(run.num_sequence_steps for run in runs)
    drafted = sum(run.num_drafted for run in runs)
    accepted = sum(run.num_accepted for run in runs)
    summary["accepted_per_step"] = round(accepted / max(1, sequence_steps), 3)
    summary["drafted_per_step"] = round(drafted / max(1, sequence_steps), 3)
    summary["acceptance"] = round(accepted / drafted, 3) if drafted else None
    return summary


def same_tokens(one: Sequence[Run], other: Sequence[Run]) -> float:
    """Share of sequences whose tokens agree, over the first run of each."""
    pairs = list(zip(one[0].token_ids, other[0].token_ids, strict=True))
    return sum(a == b for a, b in pairs) / max(1, len(pairs))


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(1000 * median(seconds), 3),
        "min": round(1000 * min(seconds), 3),
    }
