"""How large to draft: the tree shape that yields most tokens a second, not drafting included.

Each batch size has two accounts, in *plain steps*: the time of a step without a draft. Each may spend
`SHARE` of the time:

- `credit` is what drafts may still lose. A step with a draft adds the tokens that it gave and takes off
  the time that it took. Below zero nothing is drafted. So drafts that are believed to pay and do not
  cost a little once and `SHARE` of the time from then on, whatever is believed.
- `purse` is what tries of other shapes may lose against the shape in use, and what catching up after a
  pause may take. A try is made when its price is there, so that a changed workload is noticed and yet
  tries hardly matter.

(Exploration that must not fall behind a baseline: Wu et al., "Conservative Bandits", arXiv 1602.04282.
A model of goodput that may choose 0: Liu et al., "SmartSpec", arXiv 2406.14066.)

Promises: the above, in the time that steps are reported to take.
Does not know: networks, requests, how steps are predicted (`eyas.draft.estimates`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.draft.base import TreeShape
from eyas.draft.costs import Costs
from eyas.draft.estimates import Estimates
from eyas.draft.timing import PLAIN
from eyas.runner.graphs import bucket_of

log = logging.getLogger("eyas.draft")

TREE_NODES = (8, 16)
"""Sizes of trees that are weighed."""
SHARE = 0.01
"""Of the time, so much may be lost to drafts that do not pay, and to tries."""
FIRST_CREDIT, MAX_CREDIT = 2.0, 8.0
"""Plain steps that drafts may lose at the beginning, and after they have gained: the less, the sooner
drafts end that have become bad."""
RESUMED_AT = 1.0
"""Credit at which drafts are made again after they have lost too much."""
WRITE_OFF = 1 / 32
"""Catching up with new prompts is an investment: so much of what is left of it is taken off the credit
at each step with a draft, and all when drafting ends."""
MAX_PURSE = 64.0
"""Plain steps that are saved for a try, at most."""
MOST_OF_USUAL = 1.5
"""A step counts as at most so many times the time that it usually takes: what is beyond that has other
causes."""
MIN_GAIN = 1.05
"""A shape must promise this much more than not drafting."""
NUM_PLAIN_FIRST = 3
"""Steps of a batch size that show what not drafting takes, before anything is weighed."""
TRIAL_STEPS = 4
"""Steps of a try: the first may have to catch up and to prepare what is new, the last overlaps with
what comes after it."""
TRY_EVERY = 16
"""Steps of a batch size between tries, at least, also where they cost nothing. The first try beside
drafts is of a step without: what drafts are compared with must be right, and may have been timed on
cold caches or while something else ran."""
LIKELY = 1.6
"""Shapes are tried that promise at least the most that another one does, divided by this."""
WEIGH_EVERY = 4
"""Steps with drafts after which the shapes are weighed again."""
TELL_AFTER, TELL_EVERY = 32, 256
"""Steps of a batch size before the first line of the log about it, and between two."""


@dataclass(slots=True)
class _Batch:
    """What is known of one batch size. age: its steps so far; held: the shape in use; tried: when each
    shape was chosen last; trial: what runs until trial_end; is_plains_turn: the next try is of not
    drafting; missing: rows that the drafting network has to catch up before it drafts; invested: plain
    steps that catching up took and that are not taken off yet; resumes: the next draft is the first one
    after a pause; told: whether the log was last told that there are drafts; tell_at: the age from
    which it may be told."""

    age: int = 0
    credit: float = FIRST_CREDIT
    purse: float = 0.0
    held: TreeShape = PLAIN
    next_try: int = NUM_PLAIN_FIRST + 1
    tried: dict[TreeShape, int] = field(default_factory=dict)
    trial: TreeShape | None = None
    trial_end: int = 0
    is_plains_turn: bool = False
    missing: int = 0
    invested: float = 0.0
    resumes: bool = False
    told: bool | None = None
    tell_at: int = TELL_AFTER
    num_prompt_rows: int = 0


class Pace:
    """Chooses the shape of each step: `choose`, then `learn` when it has landed.

    shapes: to choose among, beside not drafting. target: cost of a step by rows; drafting: of one pass
    of the drafting network by rows.
    """

    def __init__(self, shapes: Sequence[TreeShape], target: Costs, drafting: Costs) -> None:
        self.shapes = (PLAIN, *shapes)
        self._estimates = Estimates(max(shape.steps for shape in shapes), target, drafting)
        self._batches: dict[tuple[int, bool], _Batch] = {}

    def choose(self, num_sequences: int, num_prompt_rows: int = 0) -> TreeShape:
        """Return the shape of the next step. num_prompt_rows: of prompt chunks that it may have too."""
        batch = self._batch(num_sequences, num_prompt_rows)
        batch.age += 1
        if batch.trial is not None and batch.age < batch.trial_end:
            return batch.trial
        has_tried, batch.trial = batch.trial is not None, None
        if batch.credit < 0:
            self._hold(batch, PLAIN)
        drafts = batch.held != PLAIN
        is_due = batch.age >= batch.next_try and (drafts or batch.credit >= RESUMED_AT)
        if is_due or (has_tried and batch.credit >= 0) or (drafts and not batch.age % WEIGH_EVERY):
            shape = self._weigh(num_sequences, batch, is_due=is_due)
        else:
            shape = batch.held
        if batch.age >= batch.tell_at and batch.told != (batch.held != PLAIN):
            self._tell(num_sequences, batch)
        batch.tried[shape] = batch.age
        return shape

    def miss(self, num_sequences: int, num_rows: int, num_prompt_rows: int = 0) -> None:
        """So many rows are missing before the sequences of this step can have drafts."""
        self._batch(num_sequences, num_prompt_rows).missing = num_rows

    def _batch(self, num_sequences: int, num_prompt_rows: int) -> _Batch:
        """What is known of steps like this one: of a batch size, with or without prompt chunks."""
        key = bucket_of(num_sequences), num_prompt_rows > 0
        batch = self._batches.setdefault(key, _Batch())
        batch.num_prompt_rows = num_prompt_rows
        return batch

    def learn(
        self,
        num_sequences: int,
        shape: TreeShape,
        fates: Sequence[tuple[int, int]],
        seconds: float | None,
        *,
        is_chain: bool,
        is_steady: bool = True,
        sequences: Sequence[int] = (),
        num_caught_up: int = 0,
        num_prompt_rows: int = 0,
    ) -> None:
        """A step of this shape has landed.

        fates: (tokens drafted, of them accepted) of each sequence that could have had a draft. seconds:
        from step to step; None where the step stored prompts too. is_chain: the draft was a chain.
        is_steady: no step of another shape ran in that time. sequences: a number for each of `fates`;
        none is 0, 1, ... num_caught_up: missing rows that the drafting network computed first.
        num_prompt_rows: rows of the prompts that the step stored.
        """
        estimates = self._estimates
        batch = self._batch(num_sequences, num_prompt_rows)
        if seconds is not None and is_steady and not num_caught_up:
            estimates.learn_seconds(num_sequences, shape, seconds)
        if shape == PLAIN and batch.held == PLAIN:
            _book(batch, SHARE, SHARE)
            return
        progress = 1.0
        if shape != PLAIN and fates:
            estimates.learn_yield(shape, fates, is_chain=is_chain)
            progress = estimates.progress(
                num_sequences, sequences or range(len(fates)), [accepted for _, accepted in fates]
            )
        plain = self._seconds(num_sequences, batch, PLAIN)
        usual = self._seconds(num_sequences, batch, shape)
        most = MOST_OF_USUAL * (usual + estimates.catching_up(num_caught_up))
        taken = (most / MOST_OF_USUAL if seconds is None else min(seconds, most)) / plain
        credit = purse = SHARE * taken
        if num_caught_up:
            caught_up = max(0.0, taken - usual / plain)
            taken -= caught_up
            if batch.resumes:
                purse -= caught_up
            else:
                batch.invested += caught_up
        if shape != PLAIN:
            batch.resumes = False
            written_off = WRITE_OFF * batch.invested
            batch.invested -= written_off
            credit -= written_off
            if batch.held in (PLAIN, shape):  # else it is a try beside drafts that pay
                credit += progress - taken
        if shape != batch.held:
            purse += progress * self._steps_per_token(num_sequences, batch, batch.held) - taken
        _book(batch, credit, purse)

    def _weigh(self, num_sequences: int, batch: _Batch, *, is_due: bool) -> TreeShape:
        """Hold the shape that promises most. Return it, or where a try is due and can be paid, that."""
        rates = {shape: self._rate(num_sequences, batch, shape) for shape in self.shapes}
        best = max(self.shapes, key=rates.__getitem__)
        if rates[best] < MIN_GAIN * rates[PLAIN] or (
            batch.held == PLAIN
            and self._investment(num_sequences, batch) > batch.credit + batch.purse
        ):
            best = PLAIN
        if best != batch.held:
            self._hold(batch, best)
        if not is_due or batch.age < batch.next_try:
            return best
        another = self._another(num_sequences, batch, rates)
        batch.next_try = batch.age + TRY_EVERY
        if another is None:
            return best
        if best == PLAIN:
            self._resume(batch)
        batch.trial, batch.trial_end = another, batch.age + TRIAL_STEPS
        return another

    def _hold(self, batch: _Batch, shape: TreeShape) -> None:
        """Use a shape from now on."""
        if (shape == PLAIN) != (batch.held == PLAIN):
            batch.is_plains_turn = shape != PLAIN
            batch.next_try = batch.age + TRY_EVERY
            if shape == PLAIN:
                _book(batch, -batch.invested, 0.0)
                batch.invested = 0.0
            else:
                self._resume(batch)
        batch.held = shape

    def _resume(self, batch: _Batch) -> None:
        """Draft after a pause."""
        batch.resumes = True
        self._estimates.doubt()

    def _another(
        self, num_sequences: int, batch: _Batch, rates: dict[TreeShape, float]
    ) -> TreeShape | None:
        """The shape to try: while nothing is drafted that which promises most, else in turns not
        drafting and that of the likely ones which was not chosen for longest. None while its price is
        not saved; not drafting may be paid later, since all else is compared with it."""
        prices = {
            shape: self._price(num_sequences, batch, shape)
            for shape in self.shapes
            if shape != batch.held
        }
        possible = [shape for shape, price in prices.items() if shape.steps and price < MAX_PURSE]
        most = max((rates[shape] for shape in possible), default=0.0)
        likely = [shape for shape in possible if LIKELY * rates[shape] >= most]
        if batch.held == PLAIN:
            another = max(likely, key=rates.__getitem__, default=None)
        elif batch.is_plains_turn or not likely:
            another = PLAIN
        else:
            another = min(likely, key=lambda s: (batch.tried.get(s, 0), -rates[s]))
        if another is None or prices[another] > batch.purse + FIRST_CREDIT * (another == PLAIN):
            return None
        batch.is_plains_turn = PLAIN not in (batch.held, another)
        return another

    def _price(self, num_sequences: int, batch: _Batch, shape: TreeShape) -> float:
        """Plain steps that a try of a shape should lose against the shape in use."""
        plain = self._seconds(num_sequences, batch, PLAIN)
        worth = self._estimates.tokens(num_sequences, shape)
        worth *= self._steps_per_token(num_sequences, batch, batch.held)
        lost = TRIAL_STEPS * (self._seconds(num_sequences, batch, shape) / plain - worth)
        if batch.held == PLAIN:
            lost += self._investment(num_sequences, batch)
        return lost

    def _investment(self, num_sequences: int, batch: _Batch) -> float:
        """Plain steps that catching up will take before the first draft."""
        plain = self._seconds(num_sequences, batch, PLAIN)
        return self._estimates.catching_up(batch.missing) / plain

    def _seconds(self, num_sequences: int, batch: _Batch, shape: TreeShape) -> float:
        """Seconds that the trees of a step take, beside the prompt chunks of the last such step."""
        return self._estimates.seconds(num_sequences, shape, batch.num_prompt_rows)

    def _steps_per_token(self, num_sequences: int, batch: _Batch, shape: TreeShape) -> float:
        """Plain steps in which a shape yields a token."""
        return self._rate(num_sequences, batch, PLAIN) / self._rate(num_sequences, batch, shape)

    def _rate(self, num_sequences: int, batch: _Batch, shape: TreeShape) -> float:
        """Tokens of a sequence a second."""
        tokens = self._estimates.tokens(num_sequences, shape)
        return tokens / self._seconds(num_sequences, batch, shape)

    def _tell(self, num_sequences: int, batch: _Batch) -> None:
        """The log hears whether there are drafts, and why."""
        batch.told, batch.tell_at = batch.held != PLAIN, batch.age + TELL_EVERY
        rates = {
            shape: self._rate(num_sequences, batch, shape) for shape in self.shapes if shape.steps
        }
        best = batch.held if batch.told else max(rates, key=rates.__getitem__)
        estimates = self._estimates
        log.info(
            "batches of %d: %s; a step without a draft takes %.1f ms, one with %d tokens drafted (%d "
            "nodes) %.1f ms for %.2f tokens, of which %.2f count where the slowest sequence ends last: "
            "%.0f and %.0f tokens/s%s",
            num_sequences,
            "drafting" if batch.told else "not drafting",
            1000 * self._seconds(num_sequences, batch, PLAIN),
            best.steps,
            best.nodes,
            1000 * self._seconds(num_sequences, batch, best),
            1 + estimates.accepted(best),
            estimates.tokens(num_sequences, best),
            num_sequences * self._rate(num_sequences, batch, PLAIN),
            num_sequences * rates[best],
            self._obstacle(num_sequences, batch),
        )

    def _obstacle(self, num_sequences: int, batch: _Batch) -> str:
        """What keeps drafts back that promise to pay, for the log."""
        if batch.held != PLAIN:
            return ""
        if batch.credit < RESUMED_AT:
            steps = (RESUMED_AT - batch.credit) / SHARE
            return f"; drafts have lost more than they may, and are made again in {steps:.0f} steps"
        investment = self._investment(num_sequences, batch)
        if investment > batch.credit + batch.purse:
            return f"; to catch up {batch.missing} rows first would take {investment:.0f} steps"
        return ""


def _book(batch: _Batch, credit: float, purse: float) -> None:
    batch.credit = min(batch.credit + credit, MAX_CREDIT)
    batch.purse = min(batch.purse + purse, MAX_PURSE)


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
