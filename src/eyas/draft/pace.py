"""How large to draft: the tree shape that yields most tokens a second, not drafting included.

Promises: the choice weighs what a step of each shape costs (measured at start-up, corrected by the
steps that were run) and what keeping up with prompts costs besides, against what it yields (a running
acceptance by depth for chains, a running yield for trees). Not drafting is chosen unless a shape is
clearly better. Every so often another shape is tried, so that a changed workload is noticed; tries are
rare enough not to matter. (A model of goodput that may choose 0: Liu et al., "SmartSpec", arXiv
2406.14066.)
Does not know: networks, requests.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.core import DraftTree
from eyas.draft.base import MAX_REMEMBERED, Drafter, DrafterWrapper, StepReport, TreeShape
from eyas.draft.costs import Costs
from eyas.runner.batch import Batch
from eyas.runner.graphs import bucket_of

log = logging.getLogger("eyas.draft")

PLAIN = TreeShape(0, 1, 1)
TREE_NODES = (8, 16)
"""Sizes of trees that are weighed."""
FADING = 0.99
"""What is left of an upkeep's weight a step later."""
TRIAL_STEPS = 4
"""Steps of a try: the first may have to catch up and to prepare what is new, the last overlaps with
what comes after it."""
CATCH_UP_SHARE = 0.01
"""Of the time, at most so much goes into catching up for tries."""
MIN_GAIN, MIN_GAIN_TOGETHER = 1.08, 1.15
"""A shape must promise this much more than not drafting, for one sequence and for several: those that
accept less than the mean pay for drafts of the others, and a batch ends with its slowest sequence."""
PLAIN_TRY_EVERY = 16
"""Steps with drafts before the first try of a step without, which the next ones follow at twice the
distance each: what drafts are compared with must be right, and may have been timed on cold caches or
while something else ran."""
TRY_EVERY, TRY_AT_LEAST_EVERY = 48, 384
"""Steps of a batch size between tries of another shape; the longer nothing better is found, the
rarer."""
TRY_SHARE = 0.01
"""Of the time, at most so much is lost to tries of what turns out slower."""
MAX_WAIT = 20_000
"""Steps that the cost of catching up, or of the last try, may put a try off."""
NUM_PLAIN_FIRST = 3
"""Steps of a batch size that show what not drafting costs, before anything is weighed."""
SETTLED = 32
WEIGH_EVERY, WEIGH_PLAIN_EVERY = 4, 16
"""After SETTLED steps of a batch size its shape is weighed only every few steps: what weighing costs
counts most where nothing is drafted."""
WEIGHT = 0.08
"""How much one step counts in a running mean."""
RECENT = 16
"""Steps of a kind that say what it costs: their lower quartile, since noise only delays."""
NUM_SETTLED = 8
"""Timed steps of a kind after which changes of its cost are changes of the machine's speed."""
LOG_EVERY = 256
"""Steps of a batch size between two lines of the log about it."""
PRIOR_ACCEPTANCE = 0.75
"""Of a chain's next token, before anything is known."""


@dataclass(slots=True)
class Running:
    """A running mean. trust: how many values its first one, a guess, is worth."""

    value: float
    trust: int = 0
    num: int = 0

    def add(self, value: float, weight: int = 1) -> None:
        """The mean of so many values."""
        self.num += weight
        self.value += max(WEIGHT, weight / (self.num + self.trust)) * (value - self.value)


class _Slowness:
    """How slow the machine is now, relative to when it began to be timed: other work and the clock
    change that from minute to minute. It follows the steps that run, and moves what is believed of
    those that do not, so that a shape is not preferred because it was timed in a faster minute."""

    def __init__(self) -> None:
        self.value = 1.0


class _Correction:
    """Measured over predicted seconds of steps of one kind: the lower quartile of the recent ones, at
    the speed that the machine has now."""

    def __init__(self, slowness: _Slowness) -> None:
        self._slowness = slowness
        self._seen_at = slowness.value
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._quartile = 1.0
        self._num = 0

    @property
    def value(self) -> float:
        return self._quartile * self._slowness.value / self._seen_at

    def add(self, ratio: float) -> None:
        before = self.value
        if self._slowness.value != self._seen_at:
            scale = self._slowness.value / self._seen_at
            self._recent = deque((scale * each for each in self._recent), maxlen=RECENT)
        self._recent.append(ratio)
        self._quartile = sorted(self._recent)[len(self._recent) // 4]
        self._num += 1
        if self._num > NUM_SETTLED:
            self._slowness.value *= self._quartile / before
        self._seen_at = self._slowness.value


@dataclass(slots=True)
class _Batch:
    """What is known of one batch size. age: its steps so far; held: the shape in use; patience: steps
    until the try after the next; tried: when each shape ran last; trial: what runs until trial_end;
    plain_try, plain_patience: the age of the next try of a step without a draft, and the steps to the
    one after it; logged: the shape and the age that the log was last told."""

    age: int = 0
    held: TreeShape = PLAIN
    patience: int = TRY_EVERY
    next_try: int = TRY_EVERY
    tried: dict[TreeShape, int] = field(default_factory=dict)
    trial: TreeShape | None = None
    trial_end: int = 0
    num_tries: int = 0
    plain_try: int = 0
    plain_patience: int = PLAIN_TRY_EVERY
    logged: tuple[TreeShape | None, int] = (None, 0)


@dataclass(slots=True)
class _Upkeep:
    """What drafting costs beside its steps: seconds spent on rows of prompts, and tokens that steps
    with drafts gave meanwhile; old ones fade."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = FADING * self.tokens + tokens
        self.seconds = FADING * self.seconds + seconds

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0


class Pace:
    """target: cost of a step by rows; drafting: of one pass of the drafter's network by rows."""

    def __init__(self, shapes: Sequence[TreeShape], target: Costs, drafting: Costs) -> None:
        self.shapes = (PLAIN, *shapes)
        self._target, self._drafting = target, drafting
        deepest = max(shape.steps for shape in shapes)
        self._by_depth = [Running(PRIOR_ACCEPTANCE, trust=3) for _ in range(deepest)]
        self._yields: dict[TreeShape, Running] = {}
        self._corrections: dict[tuple[int, TreeShape], _Correction] = {}
        self._slowness = _Slowness()
        self._batches: dict[int, _Batch] = {}
        self._warm: set[tuple[int, TreeShape]] = set()
        self._upkeep = _Upkeep()

    def choose(self, num_sequences: int) -> TreeShape:
        """The shape of the next step."""
        batch = self._batches.setdefault(bucket_of(num_sequences), _Batch())
        batch.age += 1
        if batch.trial is not None and batch.age < batch.trial_end:
            return batch.trial
        ended, batch.trial = batch.trial, None
        if batch.age <= NUM_PLAIN_FIRST:
            return PLAIN
        every = WEIGH_PLAIN_EVERY if batch.held == PLAIN else WEIGH_EVERY
        if ended is None and batch.age > SETTLED and batch.age % every:
            return batch.held
        rates = {shape: self._rate(num_sequences, shape) for shape in self.shapes}
        best = max(self.shapes, key=rates.__getitem__)
        if rates[best] < _min_gain(num_sequences) * rates[PLAIN]:
            best = PLAIN
        if best != batch.held:
            if batch.held == PLAIN:
                batch.plain_patience = PLAIN_TRY_EVERY
                batch.plain_try = batch.age + PLAIN_TRY_EVERY
            batch.held, batch.patience = best, TRY_EVERY
        if ended is not None:
            lost = TRIAL_STEPS * (1 / rates[ended] - 1 / rates[best]) * (1 + self._yield(ended))
            self._wait(batch, lost * rates[best] / (1 + self._yield(best)) / TRY_SHARE)
        self._tell(num_sequences, batch, rates)
        another = best
        if best != PLAIN and batch.age >= batch.plain_try:
            another = PLAIN
            batch.plain_try = batch.age + batch.plain_patience
            batch.plain_patience = min(2 * batch.plain_patience, TRY_AT_LEAST_EVERY)
        elif batch.age >= batch.next_try:
            another = self._another(batch, rates)
            batch.next_try = batch.age + batch.patience
            if another in batch.tried:
                batch.patience = min(2 * batch.patience, TRY_AT_LEAST_EVERY)
        if another != best:
            batch.trial, batch.trial_end = another, batch.age + TRIAL_STEPS
        batch.tried[another] = batch.age
        return another

    def learn(
        self,
        num_sequences: int,
        shape: TreeShape,
        fates: Sequence[tuple[int, int]],
        seconds: float | None,
        *,
        is_chain: bool,
    ) -> None:
        """fates: (tokens drafted, of them accepted) of each sequence that could have had a draft.
        is_chain: the draft was a chain; seconds: None where the step did other work too."""
        if shape.steps and fates:
            if is_chain and shape.topk == 1:
                for depth in range(shape.steps):
                    reached = [a for drafted, a in fates if a >= depth and drafted > depth]
                    if reached:
                        mean = sum(a > depth for a in reached) / len(reached)
                        self._by_depth[depth].add(mean, len(reached))
            else:
                mean = sum(accepted for _, accepted in fates) / len(fates)
                known = Running(self._chain_yield(shape.steps), trust=3)
                self._yields.setdefault(shape, known).add(mean, len(fates))
        if seconds is not None:
            predicted = self._predicted(num_sequences, shape)
            key = (bucket_of(num_sequences), shape)
            if key not in self._warm:  # a first time prepares what later ones use
                self._warm.add(key)
                return
            correction = self._corrections.setdefault(key, _Correction(self._slowness))
            correction.add(seconds / max(predicted, 1e-9))

    def keep_up(self, num_tokens: int, seconds: float) -> None:
        """A step with drafts gave so many tokens; of its time so much went into rows of prompts."""
        self._upkeep.add(num_tokens, seconds)

    def spend(self, num_sequences: int, seconds: float) -> None:
        """A try began with a step that caught up: the longer it took, the later the next try."""
        batch = self._batches.setdefault(bucket_of(num_sequences), _Batch())
        plain = self._corrections.get((bucket_of(num_sequences), PLAIN))
        usual = (plain.value if plain else 1.0) * self._predicted(num_sequences, PLAIN)
        self._wait(batch, seconds / max(usual, 1e-9) / CATCH_UP_SHARE)

    @staticmethod
    def _wait(batch: _Batch, num_steps: float) -> None:
        """The next try is so many steps away, at least."""
        batch.next_try = max(batch.next_try, batch.age + int(min(num_steps, MAX_WAIT)))

    def _tell(self, num_sequences: int, batch: _Batch, rates: dict[TreeShape, float]) -> None:
        """The log hears whether there are drafts, and why, when that changes."""
        before, age = batch.logged
        is_news = before is None or (before == PLAIN) != (batch.held == PLAIN)
        if not is_news or batch.age <= SETTLED or batch.age < age + LOG_EVERY:
            return
        batch.logged = (batch.held, batch.age)
        best = max((shape for shape in self.shapes if shape.steps), key=rates.__getitem__)
        log.info(
            "batches of %d: %s; %.0f tokens/s without a draft, %.0f with the best one (%d tokens deep, "
            "%d nodes), which is used from %.2f times as many on",
            num_sequences,
            "drafting" if batch.held.steps else "not drafting",
            rates[PLAIN],
            rates[best],
            best.steps,
            best.nodes,
            _min_gain(num_sequences),
        )

    def _another(self, batch: _Batch, rates: dict[TreeShape, float]) -> TreeShape:
        """A shape that could be better than it looks: the best of those never tried, else the one
        not tried for longest; now and then any shape."""
        best = batch.held
        batch.num_tries += 1
        far = float("inf") if batch.num_tries % 4 == 0 else 1.6
        likely = [s for s in self.shapes if s != best and far * rates[s] > rates[best]]
        new = [s for s in likely if s not in batch.tried]
        if new:
            return max(new, key=rates.__getitem__)
        return min(likely, key=batch.tried.__getitem__, default=best)

    def _rate(self, num_sequences: int, shape: TreeShape) -> float:
        """Tokens a second."""
        correction = self._corrections.get((bucket_of(num_sequences), shape))
        factor = correction.value if correction else self._usual(shape)
        num_tokens = max(1, num_sequences) * (1 + self._yield(shape))
        per_token = factor * self._predicted(num_sequences, shape) / num_tokens
        return 1 / (per_token + (self._upkeep.per_token if shape.steps else 0.0))

    def _predicted(self, num_sequences: int, shape: TreeShape) -> float:
        """Seconds of a step by the costs of its parts."""
        seconds = self._target.at(num_sequences * shape.nodes)
        if shape.steps:
            seconds += self._drafting.at(2 * num_sequences)
            seconds += (shape.steps - 1) * self._drafting.at(num_sequences * shape.topk)
        return seconds

    def _usual(self, shape: TreeShape) -> float:
        """The correction of this shape at other batch sizes, else of what is most like it."""
        same = [r.value for (_, s), r in self._corrections.items() if s == shape]
        if not same:
            alike = shape.steps > 0
            same = [r.value for (_, s), r in self._corrections.items() if (s.steps > 0) == alike]
        return sum(same) / len(same) if same else 1.0

    def _yield(self, shape: TreeShape) -> float:
        if not shape.steps:
            return 0.0
        known = self._yields.get(shape)
        return known.value if known is not None else self._chain_yield(shape.steps)

    def _chain_yield(self, steps: int) -> float:
        """What a chain should yield; a depth never reached is as good as the one before it."""
        total, reach, share = 0.0, 1.0, PRIOR_ACCEPTANCE
        for running in self._by_depth[:steps]:
            share = running.value if running.num else share
            reach *= share
            total += reach
        return total


def _min_gain(num_sequences: int) -> float:
    return MIN_GAIN if num_sequences == 1 else MIN_GAIN_TOGETHER


class PacedDrafter(DrafterWrapper):
    """Another drafter whose shape is chosen step by step."""

    def __init__(self, inner: Drafter, pace: Pace) -> None:
        super().__init__(inner)
        self._pace = pace
        self._wished = inner.shape
        self._grown: deque[tuple[DraftTree, TreeShape]] = deque(maxlen=MAX_REMEMBERED)
        self._launched: TreeShape | None = None
        self._drafted_before = False
        self._resumed: DraftTree | None = None
        self._usual_seconds: dict[TreeShape, float] = {}
        self._upkeep_seconds = 0.0

    def preferred_shape(self, num_sequences: int, num_constrained: int = 0) -> TreeShape:
        if num_sequences:  # else prompts alone are stored: who steps next is not known yet
            self._wished = self._pace.choose(num_sequences)
        return self._wished

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        started = time.perf_counter()
        tree = self._inner.propose(batch, shape)
        seconds = time.perf_counter() - started
        usual = self._usual_seconds.get(shape, seconds)
        self._launched = None
        if not tree.caught_up:
            self._launched = shape
            self._grown.append((tree, shape))
            self._usual_seconds[shape] = min(1.1 * usual, seconds)
        elif self._drafted_before:
            self._upkeep_seconds += max(0.0, seconds - usual)
        else:
            self._resumed = tree
        self._drafted_before = shape.steps > 0
        return tree

    def learn(self, report: StepReport) -> None:
        self._inner.learn(report)
        num_sequences = len(report.counts)
        if report.tree.width > 1 or self._upkeep_seconds:
            self._pace.keep_up(sum(max(0, n) for n in report.counts), self._upkeep_seconds)
            self._upkeep_seconds = 0.0
        shape = next((shape for tree, shape in self._grown if tree is report.tree), None)
        if shape is None:
            if report.tree is self._resumed and report.seconds is not None:
                self._pace.spend(num_sequences, report.seconds)
            return
        is_steady = shape == self._launched  # else two shapes shared the time
        fates: list[tuple[int, int]] = []
        if shape.steps:
            fates = [
                (size - 1, max(0, count - 1))
                for count, size in zip(report.counts, report.sizes, strict=True)
                if size > 1 or report.seconds is not None  # others may have had prompts to store
            ]
        self._pace.learn(
            num_sequences,
            shape,
            fates,
            report.seconds if is_steady else None,
            is_chain=report.tree.is_chain,
        )


def usual_shapes(largest: TreeShape) -> list[TreeShape]:
    """What to choose among: every chain, and trees of a few sizes, no larger than that."""
    steps, topk, nodes = largest.steps, largest.topk, largest.nodes
    shapes = [TreeShape(depth, 1, depth + 1) for depth in range(1, min(steps, nodes - 1) + 1)]
    if topk > 1:
        most = min(nodes, 1 + largest.num_candidates)
        shapes += [
            TreeShape(min(steps, count - 1), topk, count) for count in TREE_NODES if count <= most
        ]
    return shapes
