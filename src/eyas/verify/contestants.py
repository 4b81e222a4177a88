"""Measure the speed of engines (contestants) that take turns in one process.

Promises: all contestants get the same token ids and count their tokens in the same way: all output
tokens over the wall time from the first prompt to the last token. They take turns, so that noise of the
machine affects all of them. Medians are reported, and ratios are computed within a round. Steps and the
calls inside them are timed by wrapping the engine's methods here; the engine has no hooks for it. A
contestant keeps its engine: one round that is not counted warms it up for each job, and what a drafter
has learned of costs and acceptance stays from round to round and from batch size to batch size, as in a
running server.
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
from eyas.engine.stage_timer import StageTimer
from eyas.llm import LLM


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts to answer, in batches that start together, one after the other.

    batch: number of sequences in a batch. refills: instead of in batches, start a prompt as soon as
    another one's answer has ended, so that `batch` sequences run at a time. per_round: number of
    prompts in a round, other ones in each; 0 runs all prompts in every round.
    """

    prompts: list[list[int]]
    batch: int
    max_tokens: int
    stops_at_eos: bool = False
    temperature: float = 0.0
    refills: bool = False
    per_round: int = 0

    def of_round(self, turn: int) -> Job:
        """Return the job of round `turn`, counted from 0."""
        if not self.per_round:
            return self
        first = turn * self.per_round
        return replace(self, prompts=self.prompts[first : first + self.per_round], per_round=0)

    def batches(self) -> list[list[list[int]]]:
        """Return the prompts in batches."""
        return [self.prompts[i : i + self.batch] for i in range(0, len(self.prompts), self.batch)]


@dataclass(slots=True)
class Measurement:
    """The measurements of one run of a job. Times are in seconds.

    first_tokens: from the start of a batch to its first token, one a batch. steps, forwards,
    proposals: of steps without prompt chunks: times of the step, its forward pass and its draft. No
    forward passes are timed where they run from a GPU's graphs.
    num_steps: all steps.
    num_sequence_steps: sum over the sequences of the steps each had. drafts: one entry an answer.
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
        """Output tokens of all answers."""
        return sum(len(ids) for ids in self.token_ids)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds


class Contestant(Protocol):
    """An engine that can run a job."""

    name: str

    def run(self, job: Job) -> Measurement:
        """Run a job once."""
        ...


class EngineContestant:
    """An engine of eyas whose steps are timed. name: identifies it in the results."""

    def __init__(self, name: str, llm: LLM) -> None:
        self.name = name
        self.llm = llm
        self._engine = llm.engine
        self._num_batches = 0
        # A GPU's graphs are launched ahead, and to wait for each would be another step.
        device, graphs = llm.engine.table.device, llm.engine.launcher.graphs
        self._times_forward = device.type == "cpu" or graphs is None
        stages = {"propose": False, **({"forward": True} if self._times_forward else {})}
        self._timer = llm.engine.launcher.timer = StageTimer(waiter(device), stages)

    def run(self, job: Job) -> Measurement:
        """Run all batches of the job, one after the other."""
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
            self._timer.seconds.clear()
            num_prompt_tokens = engine.metrics.num_prompt_tokens
            before = time.perf_counter()
            deltas = engine.step()
            now = time.perf_counter()
            run.num_steps += 1
            if deltas and not has_first:
                has_first = True
                run.first_tokens.append(now - started)
            if engine.metrics.num_prompt_tokens == num_prompt_tokens:
                run.steps.append(now - before)
                if self._times_forward:
                    run.forwards.append(self._timer.seconds["forward"])
                run.proposals.append(self._timer.seconds["propose"])
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


def waiter(device: torch.device) -> Callable[[], None]:
    """Return a function that waits for all work on `device`, but does nothing during graph capture."""
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
    """Run a job on all contestants: one round to warm up (not counted), then `repeats` rounds.

    The order is reversed in every other round, so that no contestant gains from a drift of the machine.
    on_run: called with the name of the contestant and the round. Returns the runs by name.
    """
    runs: dict[str, list[Measurement]] = {contestant.name: [] for contestant in contestants}
    for turn in range(repeats + 1):
        round_job = job.of_round(turn)
        for contestant in contestants[:: 1 if turn % 2 == 0 else -1]:
            if on_run is not None:
                on_run(contestant.name, turn)
            run = contestant.run(round_job)
            if turn:
                runs[contestant.name].append(run)
    return runs


def summarise(runs: Sequence[Measurement]) -> dict[str, Any]:
    """Return medians over the runs of one contestant, in milliseconds where the name ends in _ms.

    num_tokens: of the first run. accepted_per_step and tokens_per_step: over all steps of a sequence,
    the one that stores the end of its prompt without a draft included; tokens_per_step also counts
    the last token of each step, which is not drafted. tokens_per_draft: over the steps with a draft.
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
    if steps:
        summary["step_ms"] = _spread(steps)
        if forwards:
            rest = [step - forward for step, forward in zip(steps, forwards, strict=True)]
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
    """Return the number of drafts, why their walks ended, and the acceptance by depth: of the drafts
    that reached a depth, the share whose token there was accepted."""
    depth = max((len(answer.drafted_by_depth) for answer in counts), default=0)
    drafted, accepted = [0] * depth, [0] * depth
    endings: dict[str, int] = {}
    for answer in counts:
        for i, (num_drafted, num_accepted) in enumerate(
            zip(answer.drafted_by_depth, answer.accepted_by_depth, strict=True)
        ):
            drafted[i] += num_drafted
            accepted[i] += num_accepted
        for ending, count in answer.endings.items():
            endings[ending] = endings.get(ending, 0) + count
    shares = [round(a / d, 3) for a, d in zip(accepted, drafted, strict=True)]
    return {
        "num_drafts": sum(answer.num_drafts for answer in counts),
        "acceptance_by_depth": shares,
        "endings": endings,
    }


def same_tokens(one: Sequence[Measurement], other: Sequence[Measurement]) -> float:
    """Return the share of sequences whose tokens agree, over the rounds that both have."""
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
