"""Which engine a prompt goes to, and how many engines there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="`make ray` has it")

from eyas.deploy.ray_policies import desired_replicas, ranked


def test_engines_that_come_or_go_move_no_other_prompts() -> None:
    prompts, names = [f"prompt {i}" for i in range(200)], ["a", "b", "c"]
    first = {prompt: ranked(prompt, names) for prompt in prompts}
    for name in names:  # about a third each
        assert 40 < sum(order[0] == name for order in first.values()) < 95
    fewer = {prompt: ranked(prompt, ["a", "c"]) for prompt in prompts}
    more = {prompt: ranked(prompt, [*names, "d"]) for prompt in prompts}
    for prompt, order in first.items():
        assert fewer[prompt] == [name for name in order if name != "b"]
        assert more[prompt][0] in (order[0], "d")


@pytest.mark.parametrize(
    ("running", "waiting", "held_back", "wanted"),
    [([0, 0], [0, 0], 0, 0), ([4, 3], [0, 0], 0, 2), ([8, 8], [5, 0], 3, 6), ([1], [0], 0, 1)],
)
def test_the_number_of_engines_is_that_of_their_answers(
    running: list[int], waiting: list[int], held_back: int, wanted: int
) -> None:
    context: Any = SimpleNamespace(
        aggregated_metrics={
            "num_running": dict(enumerate(running)),
            "num_waiting": dict(enumerate(waiting)),
        },
        total_queued_requests=held_back,
        config=SimpleNamespace(target_ongoing_requests=4),
        policy_state={},
    )
    assert desired_replicas(context) == (wanted, {})
