"""Estimates of the seconds and the tokens of steps, by tree shape.

Promises: seconds are those that the machine would need now: a step is predicted from the costs measured
at start-up, corrected by the steps that ran (`eyas.draft.timing`). Acceptance of a chain is known by
depth, for all chains and batch sizes at once; that of a tree by its shape.
Does not know: which shape is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from eyas.draft.base import TreeShape
from eyas.draft.costs import Costs
from eyas.draft.timing import Timing
from eyas.runner.step_inputs import bucket_of

MIN_WEIGHT = 0.08
"""Least weight of a new value in a running mean."""
PRIOR_ACCEPTANCE = 0.75
"""Assumed acceptance of a chain's next token."""
HISTORY_WEIGHT = 4
"""Number of values that a running mean from before a pause counts for."""
PRIOR_TOKENS = 8
"""Accepted tokens that the prior counts for: that a sequence accepts as much as the slowest usually
does."""
MIN_ADDED = 1 / 64
"""Decoding adds at least this to a step with prompt chunks, in steps of one row: measured times of two
row counts may be equal."""
FASTER_SHARE = 8
"""One sequence in so many may accept less than the one that counts as the slowest."""


@dataclass(frozen=True, slots=True)
class StepSize:
    """num_sequences: sequences with a root. num_prompt_rows: rows of prompt chunks in the same step."""

    num_sequences: int
    num_prompt_rows: int = 0


@dataclass(slots=True)
class RunningMean:
    """value: the mean; at first a prior. prior_weight: number of values that the prior counts for."""

    value: float
    prior_weight: int = 0
    count: int = 0

    def add(self, value: float, weight: int = 1) -> None:
        """Add the mean of `weight` values."""
        self.count += weight
        share = max(MIN_WEIGHT, weight / (self.count + self.prior_weight))
        self.value += share * (value - self.value)


@dataclass(slots=True)
class _Acceptance:
    """accepted: tokens that a sequence accepted. expected: what it would have accepted at the mean of
    its batches."""

    accepted: float = 0.0
    expected: float = 0.0

    def share(self, prior: float) -> float:
        """Return what the sequence accepts, as a share of the mean of all."""
        return (self.accepted + PRIOR_TOKENS * prior) / (self.expected + PRIOR_TOKENS)


class Estimates:
    """Seconds and tokens of steps.

    max_depth: most levels of a tree below its root. target: cost of a step by rows. drafting: cost of
    one pass of the drafting network by rows. catching_up: cost of a pass over missing rows, of which
    nothing is read; None is that of any pass.
    """

    def __init__(
        self, max_depth: int, target: Costs, drafting: Costs, catching_up: Costs | None = None
    ) -> None:
        self._target, self._drafting = target, drafting
        self._catching_up = catching_up or drafting
        self._by_depth = [RunningMean(PRIOR_ACCEPTANCE, prior_weight=3) for _ in range(max_depth)]
        self._by_shape: dict[TreeShape, RunningMean] = {}
        self._slowest_shares: dict[int, RunningMean] = {}
        self._sequences: dict[int, _Acceptance] = {}
        self._predictions: dict[tuple[int, TreeShape], float] = {}
        self._timings: dict[int, Timing] = {}
        self._latest: Timing | None = None

    def seconds(self, size: StepSize, shape: TreeShape) -> float:
        """Return the seconds of a step that catches nothing up.

        Of a step with prompt chunks it is what the trees add to it: the chunks are stored in this step
        or another, so their own time does not depend on the shape.
        """
        num_sequences, num_prompt_rows = size.num_sequences, size.num_prompt_rows
        timing = self._timings.get(bucket_of(num_sequences))
        if num_prompt_rows:
            rows = num_prompt_rows + num_sequences * shape.nodes
            added = self._target.at(rows) - self._target.at(num_prompt_rows)
            added += self._drafting_seconds(num_sequences, shape)
            return self._slowdown(timing) * max(MIN_ADDED * self._target.at(1), added)
        relative = None if timing is None else timing.relative(shape)
        if relative is None:
            relative = self._assumed_relative(shape)
        return relative * self._slowdown(timing) * self._predicted(num_sequences, shape)

    def catching_up(self, num_rows: int) -> float:
        """Return the seconds in which the drafting network computes missing rows."""
        return self._slowdown(self._latest) * self._catching_up.at(num_rows) if num_rows else 0.0

    def tokens(self, num_sequences: int, shape: TreeShape) -> float:
        """Return the progress of the batch in a step, in tokens of a sequence (see `progress`)."""
        if not shape.steps:
            return 1.0
        slowest = self._slowest_shares.get(bucket_of(num_sequences))
        share = 1.0 if slowest is None else slowest.value
        return 1 + self.accepted(shape) * self._progress_share(num_sequences, share)

    def accepted(self, shape: TreeShape) -> float:
        """Return the mean number of drafted tokens of a sequence that are accepted."""
        known = self._by_shape.get(shape)
        return self._chain_yield(shape.steps) if known is None else known.value

    def progress(self, num_sequences: int, accepted: Mapping[int, int]) -> float:
        """Return the progress of the batch in a landed step, in tokens of a sequence.

        A batch ends with its slowest sequence: of a step's time, what a step of one sequence takes is
        worth what the slowest one advances, and the rest what all advance in the mean. So a step is
        worth the time that it spares a batch of equally long answers. One sequence in `FASTER_SHARE`
        may be slower than the one that counts.

        accepted: drafted tokens that each sequence accepted, by the sequence's number.
        """
        if not accepted:
            return 1.0
        usual = sum(accepted.values()) / len(accepted)
        before, self._sequences = self._sequences, {}
        for number, count in accepted.items():
            sequence = self._sequences[number] = before.get(number) or _Acceptance()
            sequence.accepted += count
            sequence.expected += usual
        prior = RunningMean(1.0, prior_weight=3)
        known = self._slowest_shares.setdefault(bucket_of(num_sequences), prior)
        shares = sorted(each.share(known.value) for each in self._sequences.values())
        slowest = min(1.0, shares[(len(shares) - 1) // FASTER_SHARE])
        if max(each.expected for each in self._sequences.values()) >= PRIOR_TOKENS:
            known.add(slowest)
        return 1 + usual * self._progress_share(num_sequences, slowest)

    def discount_history(self) -> None:
        """Give acceptance from before a pause little weight."""
        means = (*self._by_depth, *self._by_shape.values(), *self._slowest_shares.values())
        for known in means:
            known.count = min(known.count, HISTORY_WEIGHT)

    def learn_yield(
        self, shape: TreeShape, outcomes: Sequence[tuple[int, int]], *, is_chain: bool
    ) -> None:
        """outcomes: (tokens drafted, of them accepted) of each sequence that could have a draft."""
        if is_chain and shape.topk == 1:
            for depth in range(shape.steps):
                reached = [a for drafted, a in outcomes if a >= depth and drafted > depth]
                if reached:
                    share = sum(a > depth for a in reached) / len(reached)
                    self._by_depth[depth].add(share, len(reached))
        elif outcomes:
            accepted = sum(accepted for _, accepted in outcomes) / len(outcomes)
            prior = RunningMean(self._chain_yield(shape.steps), prior_weight=3)
            self._by_shape.setdefault(shape, prior).add(accepted, len(outcomes))

    def skip_seconds(self, num_sequences: int, shape: TreeShape) -> None:
        """Note a step that was not timed."""
        self._timings.setdefault(bucket_of(num_sequences), Timing()).skip(shape)

    def learn_seconds(self, num_sequences: int, shape: TreeShape, seconds: float) -> None:
        """Add the time of a step that caught nothing up and overlapped no step of another shape."""
        timing = self._timings.setdefault(bucket_of(num_sequences), Timing())
        timing.add(shape, seconds / max(self._predicted(num_sequences, shape), 1e-9))
        self._latest = timing

    def _slowdown(self, timing: Timing | None) -> float:
        """Return the machine's time over the predicted one, by the steps of a batch size if there are
        any, else by the latest steps."""
        for each in (timing, self._latest):
            if each is not None and each.slowdown is not None:
                return each.slowdown
        return 1.0

    def _progress_share(self, num_sequences: int, slowest: float) -> float:
        """Return the share of the mean acceptance that is progress of the batch. slowest: the slowest
        sequence's acceptance as a share of the mean."""
        alone = self._target.at(1) / self._target.at(num_sequences)
        return alone * slowest + (1 - alone)

    def _predicted(self, num_sequences: int, shape: TreeShape) -> float:
        """Return the seconds of a step by the costs measured at start-up."""
        seconds = self._predictions.get((num_sequences, shape))
        if seconds is None:
            seconds = self._target.at(num_sequences * shape.nodes)
            seconds += self._drafting_seconds(num_sequences, shape)
            self._predictions[num_sequences, shape] = seconds
        return seconds

    def _drafting_seconds(self, num_sequences: int, shape: TreeShape) -> float:
        """Return the seconds of drafting by the costs measured at start-up."""
        if not shape.steps:
            return 0.0
        seconds = self._drafting.at(2 * num_sequences)
        return seconds + (shape.steps - 1) * self._drafting.at(num_sequences * shape.topk)

    def _assumed_relative(self, shape: TreeShape) -> float:
        """Return the relative time of this shape at other batch sizes, else the mean of all shapes."""
        known = [timing.known for timing in self._timings.values()]
        same = [relatives[shape] for relatives in known if shape in relatives]
        alike = same or [relative for relatives in known for relative in relatives.values()]
        return mean(alike) if alike and shape.steps else 1.0

    def _chain_yield(self, steps: int) -> float:
        """Return the accepted tokens of a chain. A depth that was never reached is assumed to be as
        good as the one before it."""
        total, reach, share = 0.0, 1.0, PRIOR_ACCEPTANCE
        for known in self._by_depth[:steps]:
            share = known.value if known.count else share
            reach *= share
            total += reach
        return total
