"""Worlds for shape policies: batches of answers on a machine whose costs and speed are known, with a
clock of their own.

A batch starts together and ends with its last sequence, as a user measures it. Time is what steps take,
so nothing here depends on the machine that the tests run on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from eyas.draft.base import TreeShape
from eyas.draft.catch_up import LONGEST_TAIL
from eyas.draft.costs import Costs
from eyas.draft.estimates import StepSize
from eyas.draft.shape_policy import PLAIN, LandedStep, ShapePolicy, usual_shapes

TARGET = Costs((1, 4, 8, 16, 32, 64, 128), (6.2, 6.6, 8.6, 12.6, 19.4, 33.6, 58.9))
DRAFTING = Costs((1, 4, 8, 16, 32, 64), (1.4, 1.4, 1.7, 2.2, 3.3, 5.4))
"""Milliseconds of a pass by rows: two CPU cores with AVX2, the built-in model and its head."""
SHAPES = usual_shapes(TreeShape(8, 4, 16))

Speed = Callable[[float, random.Random], float]
"""How much longer a step takes at a time than on the machine alone, by chance too."""


def even(now: float, draw: random.Random) -> float:
    return draw.uniform(0.97, 1.06)


def with_outliers(now: float, draw: random.Random) -> float:
    """One step in twelve is held up by something else."""
    return draw.uniform(0.95, 1.1) * (draw.choice((2.0, 4.0)) if draw.random() < 0.08 else 1.0)


def drifting(now: float, draw: random.Random) -> float:
    """Every few hundred milliseconds another program starts or ends."""
    return (1.0, 1.4, 1.1, 1.6)[int(now / 410) % 4] * draw.uniform(0.97, 1.06)


def busy(now: float, draw: random.Random) -> float:
    """Another program runs every other second."""
    return (1.0, 1.6)[int(now / 1000) % 2] * draw.uniform(0.97, 1.06)


@dataclass
class World:
    """Machine, drafter and texts.

    acceptance: of a chain's next token, of each sequence of a batch in turn. slower: drafts take so
    many times what is known from start-up. prompt: tokens of a prompt. target, drafting: milliseconds
    of a pass by rows. now: the time; worked: without what the machine's speed and chance added, so that
    neither a lucky nor an unlucky run is compared.
    """

    acceptance: Sequence[float]
    speed: Speed = even
    slower: float = 1.0
    seed: int = 0
    prompt: int = 40
    target: Costs = TARGET
    drafting: Costs = DRAFTING
    now: float = 0.0
    worked: float = 0.0
    num_steps: int = 0
    num_drafted: int = 0
    _missing: dict[int, int] = field(init=False, default_factory=dict)
    _draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def seconds(self, num: int, shape: TreeShape) -> float:
        """Of a step on a machine that does nothing else."""
        taken = self.target.at(num * shape.nodes)
        if shape.steps:
            taken += self.drafting.at(2 * num)
            taken += (shape.steps - 1) * self.drafting.at(num * shape.topk)
            taken *= self.slower
        return taken

    def accepted(self, number: int, shape: TreeShape) -> int:
        share = self.acceptance[number % len(self.acceptance)]
        if shape.topk > 1:
            share = min(0.99, share + 0.03)
        count = 0
        while count < shape.steps and self._draw.random() < share:
            count += 1
        return count

    def answer(self, policy: ShapePolicy | TreeShape, num: int, length: int = 96) -> float:
        """Answer `num` prompts that start together; return the work until the last has ended. policy: a
        shape alone is used for every step."""
        started = self.worked
        left = dict.fromkeys(range(num), length)
        self._missing = dict.fromkeys(range(num), self.prompt)
        while left:
            shape = policy if isinstance(policy, TreeShape) else policy.choose(StepSize(len(left)))
            self._step(policy, shape, left)
        return self.worked - started

    def _step(
        self, policy: ShapePolicy | TreeShape, shape: TreeShape, left: dict[int, int]
    ) -> None:
        sequences = list(left)
        taken = self.seconds(len(left), shape)
        rows = 0
        if shape.steps:
            rows = sum(self._missing[n] for n in sequences if self._missing[n] >= LONGEST_TAIL)
            taken += self.drafting.at(rows) if rows else 0.0
            self._missing.update(dict.fromkeys(sequences, 0))
        self.worked += taken
        taken *= self.speed(self.now, self._draw)
        outcomes = {n: (shape.steps, self.accepted(n, shape)) for n in sequences}
        for number, (_, count) in outcomes.items():
            left[number] -= 1 + count
            self._missing[number] += not shape.steps
            if left[number] <= 0:
                del left[number]
        self.now += taken
        self.num_steps += 1
        self.num_drafted += shape.steps > 0
        if isinstance(policy, ShapePolicy):
            size, is_chain = StepSize(len(sequences)), shape.topk == 1
            policy.set_missing_rows(size, sum(self._missing[n] for n in sequences))
            policy.learn(
                LandedStep(size, shape, outcomes, taken, is_chain=is_chain, num_caught_up=rows)
            )

    def policy(self) -> ShapePolicy:
        """Return a policy that knows what steps cost when the engine was started."""
        return ShapePolicy(SHAPES, self.target, self.drafting)

    def of_plain(self, policy: ShapePolicy, num: int, rounds: int, length: int = 96) -> float:
        """Answer `rounds` batches; return the speed over that of plain decoding."""
        own = sum(self.answer(policy, num, length) for _ in range(rounds))
        return self._work_of(PLAIN, num, rounds, length) / own

    def of_best(self, policy: ShapePolicy, num: int, rounds: int) -> float:
        """Answer `rounds` batches; return the speed over that of the best shape used for every step."""
        own = sum(self.answer(policy, num) for _ in range(rounds))
        return min(self._work_of(shape, num, rounds, 96) for shape in (PLAIN, *SHAPES)) / own

    def _work_of(self, shape: TreeShape, num: int, rounds: int, length: int) -> float:
        other = replace(self, seed=self.seed + 1000)
        return sum(other.answer(shape, num, length) for _ in range(rounds))
