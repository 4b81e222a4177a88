"""Chooses the tree shape of each step: the one with the most tokens a second, drafting time included.

Each batch size has two budgets. Their unit is the *plain step*: the time of a step without a draft.
`SHARE` of all time is added to both.

- The draft budget is what drafts may still lose. A step with a draft adds the tokens that it yielded
  and subtracts the time that it took. While the budget is negative nothing is drafted. So drafts that
  are estimated to pay and do not cost a little once, and `SHARE` of the time from then on.
- The trial budget is what trials of other shapes may lose against the current shape, and what catching
  up after a pause may take. A trial runs once the budget covers its estimated cost, so a changed
  workload is noticed at a bounded cost.

(Exploration that must not fall behind a baseline: Wu et al., "Conservative Bandits", arXiv 1602.04282.
A model of goodput that may choose 0: Liu et al., "SmartSpec", arXiv 2406.14066.)

Promises: the above, in the time that steps are reported to take.
Does not know: networks, requests, how steps are predicted (`eyas.draft.estimates`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eyas.draft.base import TreeShape
from eyas.draft.costs import Costs
from eyas.draft.estimates import Estimates, StepSize
from eyas.draft.timing import PLAIN
from eyas.runner.step_inputs import bucket_of

log = logging.getLogger("eyas.draft")

TREE_NODES = (8, 16)
"""Sizes of the trees to choose among."""
SHARE = 0.01
"""Share of the time that may be lost to drafts that do not pay, and as much to trials."""
INITIAL_DRAFT_BUDGET, MAX_DRAFT_BUDGET = 2.0, 8.0
"""Plain steps. The lower the maximum, the sooner drafting ends when drafts have become bad."""
RESUME_BUDGET = 1.0
"""Draft budget at which drafting resumes after it has lost too much."""
AMORTIZED_SHARE = 1 / 32
"""Share of the unamortized catch-up time that each step with a draft takes off the draft budget. The
rest is taken off when drafting ends."""
MAX_TRIAL_BUDGET = 64.0
"""Plain steps."""
MAX_SLOWDOWN = 1.5
"""A step's time counts up to this multiple of its estimate: the rest has other causes."""
MIN_GAIN = 1.05
"""Least estimated speed of a shape over that of not drafting."""
NUM_PLAIN_FIRST, MAX_PLAIN_FIRST = 3, 8
"""Timed steps of a batch size without a draft before any shape is considered, and the most steps."""
TRIAL_STEPS = 4
"""Timed steps of a trial: the first may have to catch up, the last overlaps with the step after it."""
MAX_TRIAL_STEPS = 8
"""Steps of a trial with those that are not timed, because they prepare or capture what is new."""
STEPS_BETWEEN_TRIALS = 16
"""Least number of steps, also where trials cost nothing. The first trial after drafting begins is of
not drafting: all shapes are compared with it, and it may have been timed on cold caches or while
something else ran."""
TRIAL_RANGE = 1.6
"""Shapes are tried whose estimated speed, times this, reaches that of the best other shape."""
STEPS_BETWEEN_CHOICES = 4
"""Steps with drafts after which the shapes are compared again."""
FIRST_LOG, STEPS_BETWEEN_LOGS = 32, 256
"""Steps of a batch size before its first log line, and between two."""


@dataclass(frozen=True, slots=True)
class LandedStep:
    """A step whose results are known.

    outcomes: by sequence, for those that could have a draft: (tokens drafted, of them accepted). The
    keys are numbers that a sequence has in all steps. seconds: since the step before; None if the step
    also stored prompt chunks, captured a graph, or ran before its shape is captured. is_chain: the
    draft was a chain. is_steady: no step of another shape ran in that time. num_caught_up: missing rows
    that the drafting network computed first.
    """

    size: StepSize
    shape: TreeShape
    outcomes: Mapping[int, tuple[int, int]]
    seconds: float | None
    is_chain: bool = True
    is_steady: bool = True
    num_caught_up: int = 0


class ShapePolicy:
    """Chooses the shape of each step: `choose`, then `learn` when the step has landed.

    shapes: to choose among, beside not drafting. target: cost of a step by rows. drafting, catching_up:
    cost of one pass of the drafting network by rows, as in `Estimates`.
    """

    def __init__(
        self,
        shapes: Sequence[TreeShape],
        target: Costs,
        drafting: Costs,
        catching_up: Costs | None = None,
    ) -> None:
        self.shapes = (PLAIN, *shapes)
        most = max(shape.steps for shape in shapes)
        self._estimates = Estimates(most, target, drafting, catching_up)
        self._policies: dict[tuple[int, bool], _SizePolicy] = {}

    def choose(self, size: StepSize) -> TreeShape:
        """Return the shape of the next step."""
        return self._policy(size).choose()

    def set_missing_rows(self, size: StepSize, num_rows: int) -> None:
        """Set how many rows must be caught up before the sequences of this step can have drafts."""
        self._policy(size).num_missing = num_rows

    def learn(self, step: LandedStep) -> None:
        """Update budgets and estimates with a landed step."""
        self._policy(step.size).learn(step)

    def _policy(self, size: StepSize) -> _SizePolicy:
        """Return the policy of a batch size, with or without prompt chunks, set to this step."""
        key = bucket_of(size.num_sequences), size.num_prompt_rows > 0
        policy = self._policies.get(key)
        if policy is None:
            policy = self._policies[key] = _SizePolicy(self.shapes, self._estimates)
        policy.size = size
        return policy


class _SizePolicy:
    """The budgets, the current shape and the trials of one batch size.

    size: of the step that is chosen or learnt from. num_missing: rows to catch up before a draft. age:
    steps so far. next_trial: the age from which a trial may begin. trial_end, last_trial_end: the age
    at which it ends, and at which it would if none of its steps could be timed. unamortized: plain
    steps of catching up that are not yet taken off the draft budget. is_resuming: the next draft is the
    first after a pause.
    """

    def __init__(self, shapes: Sequence[TreeShape], estimates: Estimates) -> None:
        self._shapes, self._estimates = shapes, estimates
        self.size = StepSize(1)
        self.num_missing = 0
        self._age = 0
        self._current = PLAIN
        self._draft_budget = INITIAL_DRAFT_BUDGET
        self._trial_budget = 0.0
        self._unamortized = 0.0
        self._is_resuming = False
        self._trial: TreeShape | None = None
        self._trial_end = self._last_trial_end = 0
        self._next_trial = NUM_PLAIN_FIRST + 1
        self._next_trial_is_plain = False
        self._last_chosen: dict[TreeShape, int] = {}
        self._next_log = FIRST_LOG
        self._logged: bool | None = None

    def choose(self) -> TreeShape:
        """Return the shape of the next step."""
        self._age += 1
        if self._trial is not None and self._age < self._trial_end:
            return self._trial
        trial_ended, self._trial = self._trial is not None, None
        if self._draft_budget < 0:
            self._use(PLAIN)
        drafts = self._current != PLAIN
        trial_is_due = self._age >= self._next_trial and (
            drafts or self._draft_budget >= RESUME_BUDGET
        )
        is_due = trial_is_due or (drafts and self._age % STEPS_BETWEEN_CHOICES == 0)
        shape = self._current
        if is_due or (trial_ended and self._draft_budget >= 0):
            shape = self._best_or_trial(trial_is_due=trial_is_due)
        if self._age >= self._next_log and self._logged != (self._current != PLAIN):
            self._log()
        self._last_chosen[shape] = self._age
        return shape

    def learn(self, step: LandedStep) -> None:
        """Update budgets and estimates with a landed step."""
        shape, estimates = step.shape, self._estimates
        if step.seconds is None and not step.size.num_prompt_rows:
            self._wait_for_times(shape)
            estimates.skip_seconds(step.size.num_sequences, shape)
        if step.seconds is not None and step.is_steady and not step.num_caught_up:
            estimates.learn_seconds(step.size.num_sequences, shape, step.seconds)
        if shape == PLAIN and self._current == PLAIN:
            self._add(SHARE, SHARE)
            return
        tokens = 1.0
        if shape != PLAIN and step.outcomes:
            estimates.learn_yield(shape, list(step.outcomes.values()), is_chain=step.is_chain)
            accepted = {sequence: count for sequence, (_, count) in step.outcomes.items()}
            tokens = estimates.progress(step.size.num_sequences, accepted)
        taken = self._plain_steps(step)
        draft_change = trial_change = SHARE * taken
        if step.num_caught_up:
            caught_up = max(0.0, taken - self._seconds(shape) / self._seconds(PLAIN))
            taken -= caught_up
            if self._is_resuming:
                trial_change -= caught_up
            else:
                self._unamortized += caught_up
        if shape != PLAIN:
            self._is_resuming = False
            amortized = AMORTIZED_SHARE * self._unamortized
            self._unamortized -= amortized
            draft_change -= amortized
            if self._current in (PLAIN, shape):  # else it is a trial beside drafts that pay
                draft_change += tokens - taken
        if shape != self._current:
            trial_change += tokens * self._plain_steps_per_token(self._current) - taken
        self._add(draft_change, trial_change)

    def _wait_for_times(self, shape: TreeShape) -> None:
        """Continue a trial, or the steps before the first one, by a step for one that was not timed."""
        if shape == self._trial:
            self._trial_end = min(self._trial_end + 1, self._last_trial_end)
        elif self._age <= MAX_PLAIN_FIRST:
            self._next_trial = min(self._next_trial + 1, MAX_PLAIN_FIRST + 1)

    def _plain_steps(self, step: LandedStep) -> float:
        """Return the time of a landed step, catching up included, in plain steps."""
        expected = self._seconds(step.shape) + self._estimates.catching_up(step.num_caught_up)
        seconds = expected
        if step.seconds is not None:
            seconds = min(step.seconds, MAX_SLOWDOWN * expected)
        return seconds / self._seconds(PLAIN)

    def _add(self, draft_change: float, trial_change: float) -> None:
        """Change the budgets."""
        self._draft_budget = min(self._draft_budget + draft_change, MAX_DRAFT_BUDGET)
        self._trial_budget = min(self._trial_budget + trial_change, MAX_TRIAL_BUDGET)

    def _best_or_trial(self, *, trial_is_due: bool) -> TreeShape:
        """Make the fastest shape the current one. Return it, or if a trial is due and the budget covers
        its cost, the shape to try."""
        rates = {shape: self._rate(shape) for shape in self._shapes}
        best = max(self._shapes, key=rates.__getitem__)
        if rates[best] < MIN_GAIN * rates[PLAIN] or not self._can_catch_up():
            best = PLAIN
        self._use(best)
        if not trial_is_due or self._age < self._next_trial:
            return best
        self._next_trial = self._age + STEPS_BETWEEN_TRIALS
        trial = self._choose_trial(rates)
        if trial is None:
            return best
        if best == PLAIN:
            self._resume()
        self._trial, self._trial_end = trial, self._age + TRIAL_STEPS
        self._last_trial_end = self._age + MAX_TRIAL_STEPS
        return trial

    def _use(self, shape: TreeShape) -> None:
        """Make a shape the current one."""
        if (shape == PLAIN) != (self._current == PLAIN):
            self._next_trial_is_plain = shape != PLAIN
            self._next_trial = self._age + STEPS_BETWEEN_TRIALS
            if shape == PLAIN:
                self._add(-self._unamortized, 0.0)
                self._unamortized = 0.0
            else:
                self._resume()
        self._current = shape

    def _resume(self) -> None:
        """Begin to draft after a pause."""
        self._is_resuming = True
        self._estimates.discount_history()

    def _choose_trial(self, rates: Mapping[TreeShape, float]) -> TreeShape | None:
        """Return the shape to try; None while the budget does not cover its cost.

        While nothing is drafted it is the fastest shape. Else not drafting takes turns with the fast
        shape that was not chosen for longest; its trial may overdraw the budget a little.
        """
        costs = {shape: self._trial_cost(shape) for shape in self._shapes if shape != self._current}
        possible = [shape for shape in costs if shape.steps and costs[shape] < MAX_TRIAL_BUDGET]
        fastest = max((rates[shape] for shape in possible), default=0.0)
        fast = [shape for shape in possible if TRIAL_RANGE * rates[shape] >= fastest]
        if self._current == PLAIN:
            trial = max(fast, key=rates.__getitem__, default=None)
        elif self._next_trial_is_plain or not fast:
            trial = PLAIN
        else:
            trial = min(fast, key=lambda s: (self._last_chosen.get(s, 0), -rates[s]))
        overdraft = INITIAL_DRAFT_BUDGET if trial == PLAIN else 0.0
        if trial is None or costs[trial] > self._trial_budget + overdraft:
            return None
        self._next_trial_is_plain = PLAIN not in (self._current, trial)
        return trial

    def _trial_cost(self, shape: TreeShape) -> float:
        """Return the plain steps that a trial of a shape should lose against the current shape."""
        tokens = self._estimates.tokens(self.size.num_sequences, shape)
        gained = tokens * self._plain_steps_per_token(self._current)
        lost = TRIAL_STEPS * (self._seconds(shape) / self._seconds(PLAIN) - gained)
        return lost + self._catch_up_cost() if self._current == PLAIN else lost

    def _catch_up_cost(self) -> float:
        """Return the plain steps that catching up would take before the first draft."""
        return self._estimates.catching_up(self.num_missing) / self._seconds(PLAIN)

    def _can_catch_up(self) -> bool:
        """Whether drafting goes on, or the budgets cover the cost of catching up."""
        budget = self._draft_budget + self._trial_budget
        return self._current != PLAIN or self._catch_up_cost() <= budget

    def _seconds(self, shape: TreeShape) -> float:
        """Return the estimated seconds that the trees add to a step of this size."""
        return self._estimates.seconds(self.size, shape)

    def _rate(self, shape: TreeShape) -> float:
        """Return the estimated tokens of a sequence a second."""
        return self._estimates.tokens(self.size.num_sequences, shape) / self._seconds(shape)

    def _plain_steps_per_token(self, shape: TreeShape) -> float:
        """Return the plain steps in which a shape yields a token of a sequence."""
        return self._rate(PLAIN) / self._rate(shape)

    def _log(self) -> None:
        """Log whether there are drafts, and why."""
        drafts = self._current != PLAIN
        self._logged, self._next_log = drafts, self._age + STEPS_BETWEEN_LOGS
        best = self._current
        if not drafts:
            best = max((shape for shape in self._shapes if shape.steps), key=self._rate)
        num_sequences = self.size.num_sequences
        log.info(
            "batches of %d: %s; a step without a draft takes %.1f ms, one with %d tokens drafted (%d "
            "nodes) %.1f ms for %.2f tokens, of which %.2f count where the slowest sequence ends last: "
            "%.0f and %.0f tokens/s%s",
            num_sequences,
            "drafting" if drafts else "not drafting",
            1000 * self._seconds(PLAIN),
            best.steps,
            best.nodes,
            1000 * self._seconds(best),
            1 + self._estimates.accepted(best),
            self._estimates.tokens(num_sequences, best),
            num_sequences * self._rate(PLAIN),
            num_sequences * self._rate(best),
            self._obstacle(),
        )

    def _obstacle(self) -> str:
        """Return why nothing is drafted although a shape is estimated to pay, for the log."""
        if self._current != PLAIN:
            return ""
        if self._draft_budget < RESUME_BUDGET:
            steps = (RESUME_BUDGET - self._draft_budget) / SHARE
            return f"; drafts have lost more than they may, and are made again in {steps:.0f} steps"
        if not self._can_catch_up():
            steps = self._catch_up_cost()
            return f"; to catch up {self.num_missing} rows first would take {steps:.0f} steps"
        return ""


def usual_shapes(largest: TreeShape) -> list[TreeShape]:
    """Return the shapes to choose among: all chains, and trees of a few sizes, up to `largest`."""
    steps, topk, nodes = largest.steps, largest.topk, largest.nodes
    shapes = [TreeShape(depth, 1, depth + 1) for depth in range(1, min(steps, nodes - 1) + 1)]
    if topk > 1:
        most = min(nodes, 1 + largest.num_candidates)
        shapes += [
            TreeShape(min(steps, count - 1), topk, count) for count in TREE_NODES if count <= most
        ]
    return shapes
