"""The policy finds the best shape in worlds whose costs and acceptance are known; what drafting may
cost where there is none is in `test_shape_policy_bounds.py`."""

from __future__ import annotations

import random

import pytest

from eyas.draft.base import TreeShape
from eyas.draft.costs import NOTHING, Costs, measure_costs
from eyas.draft.estimates import StepSize
from eyas.draft.shape_policy import PLAIN, LandedStep, ShapePolicy, usual_shapes

SHAPES = usual_shapes(TreeShape(5, 4, 16))


def learn(
    policy: ShapePolicy,
    size: int | StepSize,
    shape: TreeShape,
    outcomes: list[tuple[int, int]],
    seconds: float | None,
    *,
    is_chain: bool = True,
) -> None:
    size = size if isinstance(size, StepSize) else StepSize(size)
    by_sequence = dict(enumerate(outcomes))
    policy.learn(LandedStep(size, shape, by_sequence, seconds, is_chain=is_chain))


def live(
    policy: ShapePolicy,
    *,
    batch: int,
    acceptance: float,
    step: float,
    per_row: float,
    draft_pass: float,
    steps: int = 1500,
    seed: int = 0,
) -> dict[TreeShape, int]:
    """Run a world: a step costs `step` and `per_row` a row, a drafter's pass `draft_pass`."""
    draw = random.Random(seed)
    chosen: dict[TreeShape, int] = {}
    for i in range(steps):
        shape = policy.choose(StepSize(batch))
        if i > steps // 3:
            chosen[shape] = chosen.get(shape, 0) + 1
        share = acceptance if shape.topk == 1 else min(0.99, acceptance + 0.05)
        outcomes = []
        for _ in range(batch):
            count = 0
            while count < shape.steps and draw.random() < share:
                count += 1
            outcomes.append((shape.steps, count))
        seconds = step + per_row * batch * shape.nodes + draft_pass * shape.steps
        seconds *= draw.uniform(0.9, 1.2)
        learn(policy, batch, shape, outcomes, seconds, is_chain=shape.topk == 1)
    return chosen


def most(chosen: dict[TreeShape, int]) -> TreeShape:
    return max(chosen, key=chosen.__getitem__)


def new_policy(draft_pass: float = 0.001) -> ShapePolicy:
    """Costs that were measured wrong by a factor, as on a machine that was busy."""
    return ShapePolicy(
        SHAPES, Costs((1, 64), (0.006, 0.02)), Costs((1, 64), (draft_pass, draft_pass))
    )


def test_good_drafts_of_a_quick_drafter_are_long() -> None:
    chosen = live(new_policy(), batch=1, acceptance=0.9, step=0.004, per_row=1e-4, draft_pass=7e-4)
    assert most(chosen).steps == 5


def test_rows_that_cost_shorten_the_draft() -> None:
    quick = live(new_policy(), batch=16, acceptance=0.7, step=0.004, per_row=1e-5, draft_pass=7e-4)
    slow = live(new_policy(), batch=16, acceptance=0.7, step=0.004, per_row=8e-4, draft_pass=7e-4)
    assert most(slow).nodes < most(quick).nodes


def test_a_slow_drafter_is_left_alone() -> None:
    chosen = live(
        new_policy(0.01), batch=4, acceptance=0.8, step=0.004, per_row=1e-4, draft_pass=0.02
    )
    assert chosen[PLAIN] > 0.95 * sum(chosen.values())


@pytest.mark.parametrize("first", [0.05, 0.9])
def test_a_changed_workload_is_noticed(first: float) -> None:
    policy = new_policy()
    world = {"batch": 1, "step": 0.004, "per_row": 1e-4, "draft_pass": 7e-4}
    live(policy, acceptance=first, steps=600, **world)  # pyrefly: ignore
    chosen = live(policy, acceptance=0.95 - first, steps=3000, **world)  # pyrefly: ignore
    assert (most(chosen) == PLAIN) == (first == 0.9)


def test_a_draft_is_compared_with_plain_steps_although_first_steps_are_not_timed() -> None:
    """Steps of a shape are not timed until it is captured, at its second occurrence. A draft that takes
    three plain steps for two tokens, and was measured as quick, ends soon."""
    policy, seen, drafted = ShapePolicy([TreeShape(1, 1, 2)], *QUICK), dict[TreeShape, int](), []
    for _ in range(200):
        shape = policy.choose(StepSize(1))
        seen[shape] = seen.get(shape, 0) + 1
        drafted.append(shape != PLAIN)
        taken = 0.012 if shape.steps else 0.004
        outcomes = [(shape.steps, shape.steps)]
        learn(policy, 1, shape, outcomes, None if seen[shape] <= 2 else taken)
    assert 0 < sum(drafted[:30]) <= 8 and sum(drafted[30:]) <= 8, drafted


QUICK = (Costs((1, 64), (0.004, 0.0041)), Costs((1, 64), (0.0001, 0.0001)))
MEASURED = (
    Costs((1, 4, 8, 16, 32, 64, 128), (0.0062, 0.0066, 0.0086, 0.0126, 0.0194, 0.0336, 0.0589)),
    Costs((1, 4, 8, 16, 32, 64), (0.0014, 0.0014, 0.0017, 0.0022, 0.0033, 0.0054)),
)
"""Two CPU cores with AVX2, the built-in model and its head."""


def short_run(*, cold: float, acceptance: float, seed: int = 0) -> float:
    """Tokens a second over those of plain decoding, in the first 260 steps of a batch of 4. A step
    takes 1.15 times what was measured, the first eight `cold` times as long."""
    policy, draw = ShapePolicy(usual_shapes(TreeShape(8, 4, 16)), *MEASURED), random.Random(seed)
    target, drafting = MEASURED
    seconds = plain = 0.0
    for i in range(260):
        shape = policy.choose(StepSize(4))
        taken = target.at(4 * shape.nodes)
        if shape.steps:
            taken += drafting.at(8) + (shape.steps - 1) * drafting.at(4 * shape.topk)
        taken *= 1.15 * draw.uniform(0.97, 1.1)
        outcomes = []
        for _ in range(4):
            count = 0
            while count < shape.steps and draw.random() < acceptance:
                count += 1
            outcomes.append((shape.steps, count))
        seconds += taken
        plain += 1.15 * 1.035 * target.at(4) * (4 + sum(count for _, count in outcomes)) / 4
        slowed = taken * (cold if i < 8 else 1.0)
        learn(policy, 4, shape, outcomes, slowed, is_chain=shape.topk == 1)
    return plain / seconds


@pytest.mark.parametrize("cold", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("acceptance", [0.2, 0.5])
def test_slow_first_steps_do_not_make_drafts_look_good(cold: float, acceptance: float) -> None:
    """They were counted as what not drafting costs, and it was not measured again for long."""
    ratios = [short_run(cold=cold, acceptance=acceptance, seed=seed) for seed in range(10)]
    assert sum(ratios) / len(ratios) > 0.97


def test_good_drafts_are_found_in_a_short_run() -> None:
    ratios = [short_run(cold=1.5, acceptance=0.9, seed=seed) for seed in range(10)]
    assert sum(ratios) / len(ratios) > 1.3


def test_the_log_says_whether_there_are_drafts_and_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "eyas.draft"):
        live(new_policy(), batch=1, acceptance=0.05, step=0.004, per_row=1e-4, draft_pass=7e-4)
        live(new_policy(), batch=4, acceptance=0.9, step=0.004, per_row=1e-4, draft_pass=7e-4)
    lines = [record.getMessage() for record in caplog.records]
    assert any("batches of 1: not drafting" in line and "tokens/s" in line for line in lines)
    assert any("batches of 4: drafting" in line for line in lines)
    assert len(lines) < 20


def test_drafts_that_few_sequences_get_are_weighed_for_all() -> None:
    """Prompt lookup that finds something for one sequence in twenty, where every node costs."""
    policy = ShapePolicy(usual_shapes(TreeShape(5, 1, 6)), Costs((1, 64), (0.006, 0.026)), NOTHING)
    chosen: dict[TreeShape, int] = {}
    for i in range(1500):
        shape = policy.choose(StepSize(20))
        chosen[shape] = chosen.get(shape, 0) + (i > 500)
        outcomes = [(shape.steps, shape.steps)] + [(0, 0)] * 19
        seconds = 0.006 + 3e-4 * 20 * shape.nodes
        learn(policy, 20, shape, outcomes, seconds, is_chain=False)
    assert most(chosen) == PLAIN


def test_a_draft_cut_short_says_nothing_of_what_it_did_not_reach() -> None:
    policy, chain = new_policy(), TreeShape(5, 1, 6)
    before = policy._estimates.accepted(chain)
    for _ in range(50):
        learn(policy, 64, chain, [(3, 3)] * 64, 0.02)
    assert policy._estimates.accepted(chain) > before


def test_steps_much_dearer_than_at_start_up_are_believed() -> None:
    """Costs measured ten times too low, per row forty times: the choice is by what steps take."""
    policy = ShapePolicy(SHAPES, Costs((1, 64), (0.0004, 0.0006)), Costs((1, 64), (7e-5, 7e-5)))
    chosen = live(policy, batch=8, acceptance=0.6, step=0.004, per_row=1e-3, draft_pass=7e-4)
    assert most(chosen).steps <= 1


def test_costs_never_fall_with_more_rows_and_extend_past_what_was_measured() -> None:
    costs = measure_costs(lambda num_rows: None, 16)
    assert costs.rows == (1, 2, 4, 8, 16)
    assert list(costs.seconds) == sorted(costs.seconds)
    costs = Costs((1, 2, 4), (1.0, 1.0, 2.0))
    assert [costs.at(n) for n in (1, 2, 3, 4, 8)] == [1.0, 1.0, 1.5, 2.0, 4.0]


def test_the_first_pass_of_a_row_count_is_not_timed() -> None:
    """It compiles kernels on a device, for longer than all timed passes may take together."""
    seen: set[int] = set()

    def run(num_rows: int) -> None:
        if num_rows not in seen:
            seen.add(num_rows)
            clock[0] += 9.0
        clock[0] += 0.001 * num_rows

    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eyas.draft.costs.time.perf_counter", lambda: clock[0])
        costs = measure_costs(run, 16)
    assert costs.rows == (1, 2, 4)  # the time for first passes is up
    assert costs.seconds == pytest.approx([0.001, 0.002, 0.004])


def test_beside_prompt_rows_that_cost_as_much_drafts_are_short() -> None:
    """Alone a step of few rows takes as long as one row, so that drafts are long; beside a long prompt
    each drafted row takes time."""
    costs = Costs((1, 256, 2048), (0.004, 0.0041, 0.05))
    chosen: dict[int, set[TreeShape]] = {}
    for num_prompt_rows in (0, 1500):
        policy = ShapePolicy(usual_shapes(TreeShape(5, 1, 6)), costs, NOTHING)
        draw = random.Random(0)
        for i in range(600):
            size = StepSize(16, num_prompt_rows)
            shape = policy.choose(size)
            outcomes = []
            for _ in range(16):
                count = 0
                while count < shape.steps and draw.random() < 0.5:
                    count += 1
                outcomes.append((shape.steps, count))
            seconds = None if num_prompt_rows else costs.at(16 * shape.nodes)
            learn(policy, size, shape, outcomes, seconds)
            if i > 400:
                chosen.setdefault(num_prompt_rows, set()).add(shape)
    assert max(shape.steps for shape in chosen[0]) >= 4
    assert max(shape.steps for shape in chosen[1500]) <= 1 and PLAIN in chosen[1500]


def test_batch_sizes_that_run_one_graph_share_what_is_learned() -> None:
    """Five sequences run the graph of six; four have their own, whose first step is no guide."""
    policy, shape = new_policy(), TreeShape(5, 1, 6)

    for num in (4, 4, 6, 6):
        learn(policy, num, shape, [], 0.02)
    before = {num: policy._policy(StepSize(num))._rate(shape) for num in (4, 5, 6)}
    learn(policy, 5, shape, [], 0.01)
    after = {num: policy._policy(StepSize(num))._rate(shape) for num in (4, 5, 6)}
    assert after[4] == before[4] and after[5] > before[5] and after[6] > before[6]
