"""Measure the cost of schemas per step: the same texts with and without schemas.

The batch is kept full: when the request of an instance ends, a request for the next instance is
added. Prompts have one token by default, so that no step stores only a prompt. A step counts if it
and the step before decoded the whole batch and stored no prompt. Its time is the time between two
returns of `Engine.step`, including additions of requests.

Promises: rounds with and without schemas alternate, over the same instances in the same order, and
the first of both changes; the verdict is forced (see `schema_texts`), and everything else is as in
a real request. The first two pairs of rounds are a warm-up and are not counted.
Does not know: what the texts are, how results are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from eyas.engine.engine import Engine
from eyas.engine.flight import Flight
from eyas.engine.masks import TreeMasks
from eyas.engine.scheduler import StepPlan
from eyas.transfer import HostCopy
from eyas_bench.load import percentile
from eyas_bench.schema_texts import Text, request_for
from eyas_bench.together import WARM_UPS, noted_drafts

STEPS = 400
"""The approximate number of steps of a round."""
SETTLING = 8
"""The number of steps at the start of a round that do not count."""
SPENT = ("masks", "walks", "wait for trees", "wait for results")
"""The kinds of host time of a step: filling masks, walking drafts through automata, and waiting."""


@dataclass(slots=True)
class Round:
    """A pass over the instances.

    seconds: of the steps that count. spent: host seconds within them, by SPENT. num_masks: masks
    filled within them. num_steps, num_uncounted: all steps, and those that do not count.
    draft_lengths: tokens that each verdict on a draft yielded. errors: of failed requests.
    """

    seconds: list[float] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    num_masks: int = 0
    num_steps: int = 0
    num_uncounted: int = 0
    num_tokens: int = 0
    draft_lengths: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def plan_round(texts: Sequence[Text], batch: int, tokens_per_step: float) -> list[int]:
    """Return the indices of the instances of a round, for about STEPS steps with a full batch."""
    wanted = batch * (STEPS + SETTLING) * tokens_per_step
    wanted += batch * max(
        len(text.tokens) for text in texts
    )  # the last instances leave gaps in the batch
    numbers: list[int] = []
    while wanted > 0:
        number = len(numbers) % len(texts)
        numbers.append(number)
        wanted -= len(texts[number].tokens) + 1
    return numbers


def run_round(
    engine: Engine,
    texts: Sequence[Text],
    numbers: Sequence[int],
    batch: int,
    prompt_tokens: int,
    name: str,
    *,
    has_schema: bool,
) -> Round:
    """Run requests for these instances, `batch` at a time."""
    run = Round()
    due = list(enumerate(numbers))[::-1]
    num_open, is_full = 0, False
    num_failed = engine.metrics.num_failed_steps
    spent = dict.fromkeys(SPENT, 0.0)
    launched: list[Flight] = []
    with (
        _noted_launches(engine, launched),
        _noted_time(spent),
        noted_drafts(engine, run.draft_lengths),
    ):
        last = time.perf_counter()
        while num_open or due:
            while due and num_open < batch:
                i, number = due.pop()
                request = request_for(
                    texts, number, prompt_tokens, f"{name}-{i}", has_schema=has_schema
                )
                engine.add(request, texts[number].grammar if has_schema else None)
                num_open += 1
            before, masks_before = dict(spent), _masks(engine)
            launched.clear()
            deltas = engine.step()
            now = time.perf_counter()
            was_full, is_full = is_full, _is_full(launched, batch)
            run.num_steps += 1
            if was_full and is_full and run.num_steps > SETTLING:
                run.seconds.append(now - last)
                _add_spent(run, before, spent, masks_before, _masks(engine))
            else:
                run.num_uncounted += 1
            last = now
            for delta in deltas:
                run.num_tokens += len(delta.token_ids)
                if delta.finish_reason is not None:
                    num_open -= 1
                    if delta.finish_reason != "stop":
                        run.errors.append(delta.error or delta.finish_reason)
        while engine.has_work():
            engine.step()
    if engine.metrics.num_failed_steps > num_failed:
        raise RuntimeError("a step failed during the measurement; see the log")
    return run


def take_turns(
    engine: Engine,
    texts: Sequence[Text],
    batch: int,
    prompt_tokens: int,
    tokens_per_step: float,
    repeats: int,
    on_round: Callable[[int], None] = lambda turn: None,
) -> tuple[list[Round], list[Round]]:
    """Run rounds with and without schemas in turn. Return (rounds with schemas, rounds without).

    on_round: called with the number of the pair; numbers below 1 are warm-up rounds, of which only
    errors count.
    """
    numbers = plan_round(texts, batch, tokens_per_step)
    runs: dict[bool, list[Round]] = {True: [], False: []}
    early: dict[bool, list[str]] = {True: [], False: []}
    for turn in range(1 - WARM_UPS, repeats + 1):
        on_round(turn)
        for has_schema in (True, False) if turn % 2 else (False, True):
            name = f"schema-{batch}-{turn}-{has_schema}"
            run = run_round(
                engine, texts, numbers, batch, prompt_tokens, name, has_schema=has_schema
            )
            early[has_schema] += run.errors if turn <= 0 else []
            if turn == 1:  # errors of the warm-up count as well
                run.errors += early[has_schema]
            if turn > 0:
                runs[has_schema].append(run)
    return runs[True], runs[False]


def summarise(held: Sequence[Round], free: Sequence[Round]) -> dict[str, Any]:
    """Summarise the steps with and without schemas, and their ratios.

    speed: ratio of tokens per second, for the mean number of tokens per draft.
    """
    with_schemas, without = _summary(held), _summary(free)
    ratios = {
        name: round(with_schemas["step_ms"][name] / without["step_ms"][name], 4)
        for name in ("mean", "p50", "p99")
        if with_schemas["step_ms"].get(name) and without["step_ms"].get(name)
    }
    pairs = [
        round(mean(one.seconds) / mean(other.seconds), 4)
        for one, other in zip(held, free, strict=False)
        if one.seconds and other.seconds
    ]
    speeds = [
        one["tokens_per_draft"] / one["step_ms"]["mean"]
        for one in (with_schemas, without)
        if one["tokens_per_draft"] and one["step_ms"].get("mean")
    ]
    return {
        "with_schemas": with_schemas,
        "without": without,
        "ratio": ratios,
        "speed": round(speeds[0] / speeds[1], 4) if len(speeds) == 2 else None,
        "pairs": pairs,
    }


def _summary(runs: Sequence[Round]) -> dict[str, Any]:
    seconds = [each for run in runs for each in run.seconds]
    lengths = [each for run in runs for each in run.draft_lengths]
    errors = [error for run in runs for error in run.errors]
    num = max(1, len(seconds))
    return {
        "steps": len(seconds),
        "steps_not_counted": sum(run.num_uncounted for run in runs),
        "tokens": sum(run.num_tokens for run in runs),
        "step_ms": _milliseconds(seconds),
        "spent_ms": {
            name: round(1000 * sum(run.spent[name] for run in runs) / num, 4) for name in SPENT
        },
        "masks_per_step": round(sum(run.num_masks for run in runs) / num, 2),
        "tokens_per_draft": round(mean(lengths), 3) if lengths else None,
        "failed": len(errors),
        "errors": sorted(set(errors)),
    }


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    found = {"mean": mean(seconds), "max": max(seconds)}
    for percent in (50, 90, 99):
        found[f"p{percent}"] = percentile(seconds, percent / 100) or 0.0
    return {name: round(1000 * value, 4) for name, value in found.items()}


def _is_full(launched: Sequence[Flight], batch: int) -> bool:
    """Whether the step was launched with the whole batch and without a prompt."""
    if not launched:
        return False
    plan = launched[-1].plan
    return len(plan.rooted) == batch and not any(span.context_count for span in plan.spans)


def _masks(engine: Engine) -> tuple[float, int]:
    return engine.metrics.grammar.mask_seconds, engine.metrics.grammar.num_masks


def _add_spent(
    run: Round,
    before: dict[str, float],
    after: dict[str, float],
    masks_before: tuple[float, int],
    masks_after: tuple[float, int],
) -> None:
    for name in SPENT:
        run.spent[name] += after[name] - before[name]
    run.spent["masks"] += masks_after[0] - masks_before[0]
    run.num_masks += masks_after[1] - masks_before[1]


@contextmanager
def _noted_launches(engine: Engine, launched: list[Flight]) -> Iterator[None]:
    prepare = engine.launcher.prepare

    def noted(plan: StepPlan) -> Flight:
        flight = prepare(plan)
        launched.append(flight)
        return flight

    engine.launcher.prepare = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        del engine.launcher.prepare


@contextmanager
def _noted_time(spent: dict[str, float]) -> Iterator[None]:
    """Record the host time by kind in `spent` while the context lasts."""
    read, walk = HostCopy.read, TreeMasks.find_legal

    def noted_read(copied: HostCopy) -> Any:
        begin = time.perf_counter()
        found = read(copied)
        what = "wait for results" if "report" in found else "wait for trees"
        spent[what] += time.perf_counter() - begin
        return found

    def noted_walk(masks: TreeMasks, rooted: Any) -> None:
        begin, waited = time.perf_counter(), spent["wait for trees"]
        walk(masks, rooted)
        spent["walks"] += time.perf_counter() - begin - (spent["wait for trees"] - waited)

    HostCopy.read, TreeMasks.find_legal = noted_read, noted_walk  # type: ignore[method-assign]
    try:
        yield
    finally:
        HostCopy.read, TreeMasks.find_legal = read, walk  # type: ignore[method-assign]
