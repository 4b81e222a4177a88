"""Merged trees against a trie of lists, and their order of precedence."""

from __future__ import annotations

import random

import torch

from eyas.draft.blend import merge
from eyas.draft_tree import DraftTree
from tests.laws.drafters import as_tree

Path = tuple[int, ...]


def paths(tree: DraftTree, b: int) -> dict[Path, int]:
    """Every node of a tree by the tokens from below the root to it."""
    found: dict[Path, int] = {}
    by_node: list[Path] = [()]
    tokens, parents = tree.tokens_BW[b].tolist(), tree.parents_BW[b].tolist()
    for node in range(1, int(tree.sizes_B[b])):
        assert 0 <= parents[node] < node
        path = (*by_node[parents[node]], tokens[node])
        assert path not in found, "two nodes for one continuation"
        by_node.append(path)
        found[path] = node
    return found


def random_tree(draw: random.Random, num: int, most: int) -> DraftTree:
    branches = []
    for _ in range(num):
        branch: list[tuple[int, int]] = []
        for i in range(draw.randint(0, most)):
            node = (draw.randint(max(0, i - 2), i), draw.randint(0, 3))
            if node in branch:
                break
            branch.append(node)
        branches.append(branch)
    return as_tree([9] * num, branches, chains=False)


def alone(num: int) -> DraftTree:
    tree = as_tree([9] * num, [[]] * num, chains=True)
    tree.source_BW = torch.zeros_like(tree.tokens_BW)
    return tree


def test_a_blend_is_the_union_of_its_trees() -> None:
    draw = random.Random(1)
    for _ in range(120):
        trees = [random_tree(draw, 3, 6) for _ in range(3)]
        merged = alone(3)
        for source, tree in enumerate(trees):
            merged = merge(merged, tree, source, 40)
        for b in range(3):
            wanted = [paths(tree, b) for tree in trees]
            found = paths(merged, b)
            assert found.keys() == set().union(*wanted)
            assert merged.source_BW is not None
            for path, node in found.items():
                first = next(i for i, tree in enumerate(wanted) if path in tree)
                assert int(merged.source_BW[b, node]) == first
            if merged.is_chain:
                assert merged.parents_BW[b, : int(merged.sizes_B[b])].tolist() == list(
                    range(-1, int(merged.sizes_B[b]) - 1)
                )


def test_what_finds_no_room_is_left_out_with_everything_below_it() -> None:
    draw = random.Random(2)
    num_cut = 0
    for _ in range(120):
        first, second = random_tree(draw, 2, 6), random_tree(draw, 2, 6)
        width = draw.randint(2, 8)
        merged = merge(merge(alone(2), first, 0, width), second, 1, width)
        for b in range(2):
            found, whole = paths(merged, b), paths(first, b).keys() | paths(second, b).keys()
            assert len(found) + 1 <= max(width, 1 + min(len(paths(first, b)), width - 1))
            assert found.keys() <= whole
            assert all(path[:-1] in found or len(path) == 1 for path in found)
            num_cut += found.keys() < whole
    assert num_cut > 30


def test_equal_chains_stay_a_chain() -> None:
    one = as_tree([9, 9], [[(0, 1), (1, 2)], [(0, 3)]], chains=True)
    other = as_tree([9, 9], [[(0, 1), (1, 2), (2, 5)], []], chains=True)
    merged = merge(merge(alone(2), one, 0, 8), other, 1, 8)
    assert merged.is_chain
    assert merged.tokens_BW[0].tolist() == [9, 1, 2, 5]
    assert merged.sizes_B.tolist() == [4, 2]
