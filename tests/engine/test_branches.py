"""A tree's nodes in branches."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np

from eyas.engine.branches import Branch, branches_of, depths_of, requested


def random_parents(draw: random.Random, size: int) -> list[int]:
    return [-1] + [draw.choice([node - 1, draw.randrange(node)]) for node in range(1, size)]


def all_branches(parents: list[int]) -> list[tuple[int, ...]]:
    return branches_of(parents, [True] * len(parents))


def test_every_node_is_in_one_branch_and_follows_its_parent_there() -> None:
    draw = random.Random(0)
    assert all_branches([-1]) == [(0,)] and all_branches([-1, 0, 1, 2]) == [(0, 1, 2, 3)]
    assert all_branches([-1, 0, 0, 1, 2, 1]) == [(0, 1, 3), (1, 5), (0, 2, 4)]
    for _ in range(100):
        parents = random_parents(draw, draw.randint(1, 20))
        branches = all_branches(parents)
        own = [branches[0], *(branch[1:] for branch in branches[1:])]
        assert sorted(node for branch in own for node in branch) == list(range(len(parents)))
        assert len(branches) == len(set(range(len(parents))) - set(parents)), "as many as leaves"
        for branch in branches:
            assert all(parents[b] == a for a, b in itertools.pairwise(branch))


def test_a_branch_parts_on_the_way_to_the_end_of_the_one_before_it() -> None:
    draw = random.Random(1)
    for _ in range(100):
        parents = random_parents(draw, draw.randint(2, 20))
        for before, branch in itertools.pairwise(all_branches(parents)):
            above = {before[-1]}
            while max(above) and parents[min(above)] >= 0:
                above.add(parents[min(above)])
            assert branch[0] in above


def test_what_is_not_wanted_is_in_no_branch() -> None:
    parents = [-1, 0, 0, 1, 2, 1]
    wanted = [True, True, True, False, True, True]
    assert branches_of(parents, wanted) == [(0, 1, 5), (0, 2, 4)]
    assert branches_of(parents, [True] + [False] * 5) == [(0,)]


def test_requests_lead_from_the_root_and_have_rows_one_after_the_other() -> None:
    state: Any = object()
    branches = requested(state, [9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 1], [True] * 6, 10)
    asked = [(each.request.row, each.request.path, each.request.tokens) for each in branches]
    assert asked == [(10, (), (1, 3)), (13, (1,), (5,)), (15, (), (2, 4))]
    assert [each.request.repeats_first for each in branches] == [False, True, True]


def test_rows_of_branches_go_where_their_nodes_are() -> None:
    state: Any = object()
    branches = requested(state, [0] * 5, [-1, 0, 0, 2, 1], [True] * 5, 0)
    assert [each.nodes for each in branches] == [(0, 1, 4), (0, 2, 3)]
    rows = np.arange(1, 7, dtype=np.int32).reshape(6, 1)
    mask = np.zeros((5, 1), dtype=np.int32)
    branches[0].request.num_masks, branches[1].request.num_masks = 3, 2
    put_all(branches, rows, mask)
    assert mask[:, 0].tolist() == [1, 2, 5, 0, 3], "the last row has no mask"
    mask[:] = 0
    branches[0].request.is_late = True
    put_all(branches, rows, mask)
    assert mask[:, 0].tolist() == [0, 0, 5, 0, 0], "what is late is not read"


def put_all(branches: list[Branch], rows: np.ndarray, mask: np.ndarray) -> None:
    for each in branches:
        each.put(rows, mask)


def test_depths_are_levels_below_the_root() -> None:
    assert depths_of([-1]) == [0] and depths_of([-1, 0, 0, 1, 2, 3]) == [0, 1, 1, 2, 2, 3]
