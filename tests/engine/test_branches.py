"""A tree's nodes in runs."""

from __future__ import annotations

import itertools
import random

import numpy as np

from eyas.engine.branches import Branch, branches_of, depths_of, in_node_order


def random_parents(draw: random.Random, size: int) -> list[int]:
    return [-1] + [draw.choice([node - 1, draw.randrange(node)]) for node in range(1, size)]


def test_every_node_is_in_one_run_and_follows_its_parent_there() -> None:
    draw = random.Random(0)
    assert branches_of([-1]) == [(0,)] and branches_of([-1, 0, 1, 2]) == [(0, 1, 2, 3)]
    assert branches_of([-1, 0, 0, 1, 2, 1]) == [(0, 1, 3), (2, 4), (5,)]
    for _ in range(100):
        parents = random_parents(draw, draw.randint(1, 20))
        branches = branches_of(parents)
        assert sorted(node for branch in branches for node in branch) == list(range(len(parents)))
        assert len(branches) == len(set(range(len(parents))) - set(parents)), "as many as leaves"
        seen: set[int] = set()
        for branch in branches:
            assert parents[branch[0]] in seen or branch[0] == 0
            assert all(parents[b] == a for a, b in itertools.pairwise(branch))
            seen.update(branch)


def test_rows_of_runs_go_where_their_nodes_are() -> None:
    rows = np.arange(12, dtype=np.int32).reshape(6, 2)
    in_node_order(rows, [Branch((0, 2), None), Branch((1, 4), None), Branch((3,), None)])
    assert rows[:, 0].tolist() == [0, 4, 2, 8, 6, 10]


def test_depths_are_levels_below_the_root() -> None:
    assert depths_of([-1]) == [0] and depths_of([-1, 0, 0, 1, 2, 3]) == [0, 1, 1, 2, 2, 3]
