"""What steps of each tree shape take and yield, as far as is known.

Promises: seconds are those that the machine would need now: a step is predicted from the costs measured
at start-up, corrected by the steps that ran (`eyas.draft.timing`). Acceptance of a chain is known by
depth, for all chains and batch sizes at once; that of a tree by its shape.
Does not know: which shape is chosen, sequences beyond a number for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from eyas.draft.base import TreeShape
from eyas.draft.costs import Costs
from eyas.draft.timing import Timing
from eyas.runner.graphs import bucket_of

WEIGHT = 0.08
"""How much one step counts in a running mean, at least."""
PRIOR_ACCEPTANCE = 0.75
"""Of a chain's next token, before anything is known."""
DOUBTED = 4
"""How many values a mean from before a pause is worth."""
EXPECTED = 8
"""Accepted tokens that the assumption is worth that a sequence accepts as much as the slowest usually
does."""
MIN_ADDED = 1 / 64
"""Decoding adds at least this to a step with prompt chunks, in steps of one row: measured times of two
row counts may be equal."""
SPARED = 8
"""One sequence of so many may accept less than what counts as the slowest."""


@dataclass(slots=True)
class Running:
    """A running mean. trust: how many values its first one, a guess, is worth."""

    value: float
    trust: int = 0
    num: int = 0

    def add(self, value: float, weight: int = 1) -> None:
        """Add the mean of `weight` values."""
        self.num += weight
        self.value += max(WEIGHT, weight / (self.num + self.trust)) * (value - self.value)


@dataclass(slots=True)
class _Sequence:
    """Tokens that a sequence accepted, and what it would have accepted if all were alike."""

    accepted: float = 0.0
    expected: float = 0.0

    def share(self, usual: float) -> float:
        """What it accepts of what all accept in the mean; usual: the assumption."""
        return (self.accepted + EXPECTED * usual) / (self.expected + EXPECTED)


class Estimates:
    """Seconds and tokens of steps.

    deepest: most levels of a tree below its root. target: cost of a step by rows; drafting: of one pass
    of the drafting network by rows.
    """

    def __init__(self, deepest: int, target: Costs, drafting: Costs) -> None:
        self._target, self._drafting = target, drafting
        self._by_depth = [Running(PRIOR_ACCEPTANCE, trust=3) for _ in range(deepest)]
        self._yields: dict[TreeShape, Running] = {}
        self._evenness: dict[int, Running] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._predictions: dict[tuple[int, TreeShape], float] = {}
        self._timings: dict[int, Timing] = {}
        self._latest: Timing | None = None

    def seconds(self, num_sequences: int, shape: TreeShape, num_prompt_rows: int = 0) -> float:
        """Return the seconds of a step that catches nothing up.

        num_prompt_rows: rows of prompt chunks that the step has too. What they would take alone does
        not count: they are stored in this step or another, and a token is worth the time that it adds.
        """
        timing = self._timings.get(bucket_of(num_sequences))
        if num_prompt_rows:
            rows = num_prompt_rows + num_sequences * shape.nodes
            added = self._target.at(rows) - self._target.at(num_prompt_rows)
            drafting = self._drafted(num_sequences, shape)
            return self._slowness(timing) * max(MIN_ADDED * self._target.at(1), added + drafting)
        relative = None if timing is None else timing.relative(shape)
        return (
            (relative or self._usual(shape))
            * self._slowness(timing)
            * self._predicted(num_sequences, shape)
        )

    def catching_up(self, num_rows: int) -> float:
        """Return the seconds in which the drafting network computes missing rows."""
        return self._slowness(self._latest) * self._drafting.at(num_rows) if num_rows else 0.0

    def tokens(self, num_sequences: int, shape: TreeShape) -> float:
        """Return how far a step takes the batch, in tokens of a sequence (see `progress`)."""
        if not shape.steps:
            return 1.0
        evenness = self._evenness.get(bucket_of(num_sequences))
        share = 1.0 if evenness is None else evenness.value
        return 1 + self.accepted(shape) * self._weighted(num_sequences, share)

    def accepted(self, shape: TreeShape) -> float:
        """Return the mean number of drafted tokens of a sequence that are accepted."""
        known = self._yields.get(shape)
        if not shape.steps or known is None:
            return self._chain_yield(shape.steps)
        return known.value

    def progress(
        self, num_sequences: int, sequences: Sequence[int], accepted: Sequence[int]
    ) -> float:
        """Return how far a step took the batch, in tokens of a sequence.

        A batch ends with its slowest sequence: of a step's time, what a step of one sequence takes is
        worth what the slowest one advances, and the rest what all advance in the mean. So a step is
        worth the time that it spares a batch which is to have equally long answers. One sequence in
        `SPARED` may be slower.

        sequences: a number for each sequence. accepted: drafted tokens that each accepted.
        """
        if not accepted:
            return 1.0
        usual = sum(accepted) / len(accepted)
        before, self._sequences = self._sequences, {}
        for number, count in zip(sequences, accepted, strict=True):
            sequence = self._sequences[number] = before.get(number) or _Sequence()
            sequence.accepted += count
            sequence.expected += usual
        evenness = self._evenness.setdefault(bucket_of(num_sequences), Running(1.0, trust=3))
        shares = sorted(each.share(evenness.value) for each in self._sequences.values())
        slowest = min(1.0, shares[(len(shares) - 1) // SPARED])
        if max(each.expected for each in self._sequences.values()) >= EXPECTED:
            evenness.add(slowest)
        return 1 + usual * self._weighted(num_sequences, slowest)

    def doubt(self) -> None:
        """Drafting resumes after a pause: what was accepted before it counts little from now on."""
        for running in (*self._by_depth, *self._yields.values(), *self._evenness.values()):
            running.num = min(running.num, DOUBTED)

    def learn_yield(
        self, shape: TreeShape, fates: Sequence[tuple[int, int]], *, is_chain: bool
    ) -> None:
        """fates: (tokens drafted, of them accepted) of each sequence that could have had a draft."""
        if is_chain and shape.topk == 1:
            for depth in range(shape.steps):
                reached = [a for drafted, a in fates if a >= depth and drafted > depth]
                if reached:
                    share = sum(a > depth for a in reached) / len(reached)
                    self._by_depth[depth].add(share, len(reached))
        elif fates:
            accepted = sum(accepted for _, accepted in fates) / len(fates)
            known = Running(self._chain_yield(shape.steps), trust=3)
            self._yields.setdefault(shape, known).add(accepted, len(fates))

    def learn_seconds(self, num_sequences: int, shape: TreeShape, seconds: float) -> None:
        """The time of a step that caught nothing up and overlapped with no step of another shape."""
        timing = self._timings.setdefault(bucket_of(num_sequences), Timing())
        timing.add(shape, seconds / max(self._predicted(num_sequences, shape), 1e-9))
        self._latest = timing

    def _slowness(self, timing: Timing | None) -> float:
        """How slow the machine is by the steps of a batch size, else by those that ran last."""
        slowness = None if timing is None else timing.slowness
        if slowness is None and self._latest is not None:
            slowness = self._latest.slowness
        return slowness or 1.0

    def _weighted(self, num_sequences: int, slowest: float) -> float:
        """The share of the mean acceptance that counts, if the slowest sequence has a share of it."""
        alone = self._target.at(1) / self._target.at(num_sequences)
        return alone * slowest + (1 - alone)

    def _predicted(self, num_sequences: int, shape: TreeShape) -> float:
        """Seconds of a step by the costs of its parts, as they were measured at start-up."""
        seconds = self._predictions.get((num_sequences, shape))
        if seconds is None:
            seconds = self._target.at(num_sequences * shape.nodes)
            seconds += self._drafted(num_sequences, shape)
            self._predictions[num_sequences, shape] = seconds
        return seconds

    def _drafted(self, num_sequences: int, shape: TreeShape) -> float:
        """Seconds of drafting, likewise."""
        if not shape.steps:
            return 0.0
        seconds = self._drafting.at(2 * num_sequences)
        return seconds + (shape.steps - 1) * self._drafting.at(num_sequences * shape.topk)

    def _usual(self, shape: TreeShape) -> float:
        """The relative time of this shape at other batch sizes, else of what is most like it."""
        known = [timing.known for timing in self._timings.values()]
        same = [relatives[shape] for relatives in known if shape in relatives]
        alike = same or [relative for relatives in known for relative in relatives.values()]
        return mean(alike) if alike and shape.steps else 1.0

    def _chain_yield(self, steps: int) -> float:
        """What a chain should yield; a depth never reached is as good as the one before it."""
        total, reach, share = 0.0, 1.0, PRIOR_ACCEPTANCE
        for running in self._by_depth[:steps]:
            share = running.value if running.num else share
            reach *= share
            total += reach
        return total
