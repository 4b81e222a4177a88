"""How fast tokens come: one engine measured from outside, contestants in turn within one run.

Promises: contestants get the same token ids, count their tokens the same way (all output tokens over
the wall time from the first prompt to the last token) and take turns, so that a noisy machine is
noisy for all of them; medians are reported, and ratios are taken within a round. The engine has no
hooks for this: a step and the calls inside it are timed by wrapping them here. A contestant is the same
engine throughout: one round that is not counted warms it up for each job, and what a drafter has
learned about costs and acceptance stays from round to round and from batch size to batch size, as in
a server that has been running for a while.
Does not know: how results are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Protocol

import torch

from eyas.core import DraftCounts, Request, SamplingParams
from eyas.llm import LLM


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts in batches that start together, one batch after the other.

    batch: sequences of a batch. Greedy unless a temperature is given. refills: no batches; a prompt
    starts as soon as another one's answer has ended, so that `batch` of them run as long as there are
    some. per_round: prompts of one round, each round has its own; 0 is all of them in every round.
    """

    prompts: list[list[int]]
    batch: int
    max_tokens: int
    stops_at_eos: bool = False
    temperature: float = 0.0
    refills: bool = False
    per_round: int = 0

    def of_round(self, turn: int) -> Job:
        """What a round runs, counted from 0."""
        if not self.per_round:
            return self
        first = turn * self.per_round
        return replace(self, prompts=self.prompts[first : first + self.per_round], per_round=0)

    def batches(self) -> list[list[list[int]]]:
        """The prompts, `batch` at a time."""
        return [self.prompts[i : i + self.batch] for i in range(0, len(self.prompts), self.batch)]


@dataclass(slots=True)
class Measurement:
    """One pass over a job. Times in seconds; step times are of steps without prompt rows.

    first_tokens: from the start of a batch to its first token, one a batch. num_steps: all steps of
    the engine. drafts: what became of them, one entry an answer.
    """

    seconds: float = 0.0
    token_ids: list[list[int]] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    forwards: list[float] = field(default_factory=list)
    proposals: list[float] = field(default_factory=list)
    drafts: list[DraftCounts] = field(default_factory=list)
    num_steps: int = 0
    num_sequence_steps: int = 0
    num_accepted: int = 0
    num_drafted: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(len(ids) for ids in self.token_ids)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds


class Contestant(Protocol):
    """Something that can run a job."""

    name: str

    def run(self, job: Job) -> Measurement: ...


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

    def run(self, job: Job) -> Measurement:
        """Every batch of the job, one after the other."""
        run = Measurement()
        for prompts in [job.prompts] if job.refills else job.batches():
            self._run_batch(prompts, job, run)
        return run

    def _run_batch(self, prompts: list[list[int]], job: Job, run: Measurement) -> None:
        """Add the prompts, at most `job.batch` at a time, and step until all are done."""
        engine = self._engine
        self._num_batches += 1
        requests = [
            Request(
                id=f"bench-{self._num_batches}-{i}",
                prompt_token_ids=list(prompt),
                params=SamplingParams(
                    temperature=job.temperature,
                    seed=i,
                    max_tokens=job.max_tokens,
                    ignore_eos=not job.stops_at_eos,
                ),
            )
            for i, prompt in enumerate(prompts)
        ]
        token_ids: dict[str, list[int]] = {request.id: [] for request in requests}
        waiting = requests[::-1]
        num_open, has_first = 0, False
        started = time.perf_counter()
        while waiting or num_open:
            while waiting and num_open < job.batch:
                engine.add(waiting.pop())
                num_open += 1
            self._forward_seconds = self._propose_seconds = 0.0
            self._saw_prompt_rows = False
            before = time.perf_counter()
            deltas = engine.step()
            now = time.perf_counter()
            run.num_steps += 1
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
                    run.drafts.append(delta.usage.drafts)
        run.seconds += time.perf_counter() - started
        run.token_ids += token_ids.values()

    def _wrap(self) -> None:
        """Time the runner's forward and the drafter's proposal inside each step."""
        engine = self._engine
        wait = waiter(engine.table.device)
        forward, propose = engine.runner.forward, engine.drafter.propose

        def timed_forward(rows: Any, taps: tuple[int, ...] = ()) -> Any:
            self._saw_prompt_rows |= bool(rows.layout.contexts)
            wait()
            before = time.perf_counter()
            output = forward(rows, taps)
            wait()
            self._forward_seconds += time.perf_counter() - before
            return output

        def timed_propose(batch: Any, shape: Any) -> Any:
            before = time.perf_counter()
            tree = propose(batch, shape)
            wait()
            self._propose_seconds += time.perf_counter() - before
            return tree

        engine.runner.forward = timed_forward  # type: ignore[method-assign]
        engine.drafter.propose = timed_propose  # type: ignore[method-assign]


def waiter(device: torch.device) -> Callable[[], None]:
    """Waits for all work under way on `device`; while it is being captured there is none."""
    if device.type != "cuda":
        return lambda: None

    def wait() -> None:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()

    return wait


def take_turns(
    contestants: Sequence[Contestant],
    job: Job,
    repeats: int,
    on_run: Callable[[str, int], None] | None = None,
) -> dict[str, list[Measurement]]:
    """Every contestant once to warm up (not counted), then `repeats` rounds in turn; who went first
    in one round goes last in the next, so that a drift of the machine favours nobody."""
    runs: dict[str, list[Measurement]] = {contestant.name: [] for contestant in contestants}
    for turn in range(repeats + 1):
        own = job.of_round(turn)
        for contestant in contestants[:: 1 if turn % 2 == 0 else -1]:
            if on_run is not None:
                on_run(contestant.name, turn)
            run = contestant.run(own)
            if turn:
                runs[contestant.name].append(run)
    return runs


def summarise(runs: Sequence[Measurement]) -> dict[str, Any]:
    """Medians over the runs of one contestant; milliseconds where the name says so.

    num_tokens: of the first run. accepted_per_step and tokens_per_step (the one that every step
    yields included) are over all steps of a sequence, also the one that stores the end of its prompt
    and drafts nothing; tokens_per_draft is over the steps that had a draft.
    """
    summary: dict[str, Any] = {
        "tokens_per_second": round(median(run.speed for run in runs), 1),
        "num_tokens": runs[0].num_tokens,
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
    sequence_steps = max(1, sum(run.num_sequence_steps for run in runs))
    drafted = sum(run.num_drafted for run in runs)
    accepted = sum(run.num_accepted for run in runs)
    tokens = sum(run.num_tokens for run in runs)
    drafts = acceptance([counts for run in runs for counts in run.drafts])
    num_drafts = drafts["num_drafts"]
    return {
        **summary,
        "accepted_per_step": round(accepted / sequence_steps, 3),
        "drafted_per_step": round(drafted / sequence_steps, 3),
        "tokens_per_step": round(tokens / sequence_steps, 3),
        "tokens_per_draft": round(1 + accepted / num_drafts, 3) if num_drafts else None,
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "sequences_per_step": round(sequence_steps / max(1, sum(r.num_steps for r in runs)), 2),
        **drafts,
    }


def acceptance(counts: Sequence[DraftCounts]) -> dict[str, Any]:
    """How many drafts there were, why their walks ended, and by depth: of the drafts that were so
    deep, the share whose token there was accepted."""
    depth = max((len(each.drafted_by_depth) for each in counts), default=0)
    drafted, accepted = [0] * depth, [0] * depth
    endings: dict[str, int] = {}
    for each in counts:
        for i, (num_drafted, num_accepted) in enumerate(
            zip(each.drafted_by_depth, each.accepted_by_depth, strict=True)
        ):
            drafted[i] += num_drafted
            accepted[i] += num_accepted
        for ending, count in each.endings.items():
            endings[ending] = endings.get(ending, 0) + count
    shares = [round(a / d, 3) for a, d in zip(accepted, drafted, strict=True)]
    return {
        "num_drafts": sum(each.num_drafts for each in counts),
        "acceptance_by_depth": shares,
        "endings": endings,
    }


def same_tokens(one: Sequence[Measurement], other: Sequence[Measurement]) -> float:
    """Share of sequences whose tokens agree, round by round as far as both have some."""
    pairs = [
        pair
        for own, others in zip(one, other, strict=False)
        for pair in zip(own.token_ids, others.token_ids, strict=True)
    ]
    return sum(a == b for a, b in pairs) / max(1, len(pairs))


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(1000 * median(seconds), 3),
        "min": round(1000 * min(seconds), 3),
    }
