"""Pruned trees: what a grammar refuses goes, with all below it; everything else stays what it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.draft_tree import DraftTree
from eyas.engine.prune import Refusals, refused, without
from tests.thorough import drawn


def tree_of(
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    sizes: Sequence[int],
    sources: Sequence[Sequence[int]] | None = None,
    *,
    is_chain: bool = False,
) -> DraftTree:
    return DraftTree(
        torch.tensor(tokens),
        torch.tensor(parents),
        torch.tensor(sizes),
        is_chain,
        None if sources is None else torch.tensor(sources),
    )


def pruned(
    tree: DraftTree, legal: Sequence[Sequence[bool] | None], *, prunes: bool = True
) -> tuple[DraftTree, Refusals]:
    parents, sizes = tree.parents_BW.tolist(), tree.sizes_B.tolist()
    refusals = refused(parents, sizes, legal)
    if not prunes:
        return tree, refusals
    return without(refusals, tree)


Path = tuple[int, ...]


def paths_of(tree: DraftTree, b: int) -> dict[Path, int]:
    """Every node of a sequence by its tokens from the root down, and its source."""
    tokens, parents = tree.tokens_BW[b].tolist(), tree.parents_BW[b].tolist()
    sources = [0] * tree.width if tree.source_BW is None else tree.source_BW[b].tolist()
    paths: list[Path] = []
    found = {}
    for node in range(int(tree.sizes_B[b])):
        above = paths[parents[node]] if node else ()
        paths.append((*above, tokens[node]))
        found[paths[node]] = sources[node]
    return found


CHAIN = [[7, 1, 2, 3], [8, 4, 5, 6]]
CHAIN_PARENTS = [[-1, 0, 1, 2]] * 2


def test_a_chain_is_cut_at_its_first_refusal() -> None:
    tree = tree_of(CHAIN, CHAIN_PARENTS, [4, 4], [[0, 0, 1, 1], [0, 1, 1, 1]], is_chain=True)
    left, refusals = pruned(tree, [[True, True, False, False], [True, False, False, False]])
    assert left.is_chain and left.width == 2
    assert left.sizes_B.tolist() == [2, 1]
    assert paths_of(left, 0) == {(7,): 0, (7, 1): 0} and paths_of(left, 1) == {(8,): 0}
    left_out = [[(2, 1, 2), (3, 1, 3)], [(1, 1, 1), (2, 1, 2), (3, 1, 3)]]
    assert refusals == Refusals(5, [{1}, {0}], [set(), set()], left_out)


def test_a_chain_beside_one_that_is_whole_stays_as_wide() -> None:
    tree = tree_of(CHAIN, CHAIN_PARENTS, [4, 4], is_chain=True)
    left, refusals = pruned(tree, [None, [True, True, False, False]])
    assert left.is_chain and left.width == 4 and left.source_BW is None
    assert left.sizes_B.tolist() == [4, 2]
    assert paths_of(left, 0) == paths_of(tree, 0)
    assert refusals == Refusals(2, [set(), {1}], [set(), set()], [[], [(2, 0, 2), (3, 0, 3)]])


def test_a_branch_goes_and_its_neighbours_move_up() -> None:
    tree = tree_of([[9, 1, 2, 3, 4, 5]], [[-1, 0, 0, 1, 2, 4]], [6], [[0, 0, 1, 0, 1, 2]])
    left, refusals = pruned(tree, [[True, False, True, False, True, True]])
    assert left.tokens_BW.tolist() == [[9, 2, 4, 5]]
    assert left.parents_BW.tolist() == [[-1, 0, 1, 2]]
    assert left.source_BW is not None and left.source_BW.tolist() == [[0, 1, 1, 2]]
    assert left.sizes_B.tolist() == [4] and left.is_chain
    assert refusals == Refusals(2, [{0}], [set()], [[(1, 0, 1), (3, 0, 2)]])


def test_the_parent_of_a_refusal_has_its_new_number() -> None:
    tree = tree_of([[9, 1, 2, 3]], [[-1, 0, 0, 2]], [4])
    left, refusals = pruned(tree, [[True, False, True, False]])
    assert left.tokens_BW.tolist() == [[9, 2]]
    assert refusals.below == [{0, 1}]


def test_where_nothing_is_refused_the_tree_is_the_same_one() -> None:
    tree = tree_of([[9, 1, 2]], [[-1, 0, 0]], [3])
    for legal in ([None], [[True] * 3]):
        left, refusals = pruned(tree, legal)
        assert left is tree and refusals == Refusals(0, [set()], [set()])


def test_without_pruning_refusals_are_only_told() -> None:
    tree = tree_of([[9, 1, 2, 3, 4, 5]], [[-1, 0, 0, 1, 2, 4]], [6])
    left, refusals = pruned(tree, [[True, False, True, False, True, True]], prunes=False)
    assert left is tree
    assert refusals == Refusals(2, [{0}], [{1, 3}])


@st.composite
def forests(draw: st.DrawFn) -> tuple[DraftTree, list[list[bool] | None]]:
    """Trees of some sequences with padding behind them, and what is legal in each."""
    width = draw(st.integers(1, 9))
    tokens, parents, sources, sizes, legal = [], [], [], [], []
    for b in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, width))
        above = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
        ok = [True]
        for node in range(1, size):
            ok.append(ok[above[node]] and draw(st.booleans()))
        padding = [0] * (width - size)
        tokens.append([100 * b + node for node in range(size)] + padding)
        parents.append(above + padding)
        sources.append([draw(st.integers(0, 2)) for _ in range(size)] + padding)
        sizes.append(size)
        legal.append(draw(st.sampled_from([ok, ok, ok, None])))
    is_chain = all(a[:s] == list(range(-1, s - 1)) for a, s in zip(parents, sizes, strict=True))
    if is_chain:
        parents = [list(range(-1, width - 1)) for _ in parents]
    has_sources = draw(st.booleans())
    tree = tree_of(tokens, parents, sizes, sources if has_sources else None, is_chain=is_chain)
    return tree, legal


@settings(
    max_examples=drawn(150, 400),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(forest=forests())
def test_what_is_left_is_what_is_legal(forest: tuple[DraftTree, list[list[bool] | None]]) -> None:
    tree, legal = forest
    left, refusals = pruned(tree, legal)
    num_gone = 0
    for b, ok in enumerate(legal):
        whole = paths_of(tree, b)
        kept = [path for i, path in enumerate(whole) if ok is None or ok[i]]
        assert list(paths_of(left, b)) == kept, "the order and the parents stay"
        assert paths_of(left, b) == {path: whole[path] for path in kept}, "the sources stay"
        assert len(kept) == int(left.sizes_B[b])
        gone = set(whole) - set(kept)
        num_gone += len(gone)
        above = {path[:-1] for path in gone} & set(kept)
        assert refusals.below[b] == {kept.index(path) for path in above}
        parents = left.parents_BW[b].tolist()
        assert parents[0] == -1 and all(0 <= p < i for i, p in enumerate(parents[: len(kept)]) if i)
    assert refusals.num_nodes == num_gone
    assert not any(refusals.illegal)
    rows = zip(left.parents_BW.tolist(), left.sizes_B.tolist(), strict=True)
    are_chains = all(row[:size] == list(range(-1, size - 1)) for row, size in rows)
    assert left.is_chain == (tree.is_chain or (num_gone > 0 and are_chains))
    if left.is_chain:
        assert all(row == list(range(-1, left.width - 1)) for row in left.parents_BW.tolist())
    if num_gone:
        assert left.width == int(left.sizes_B.max())
    told = pruned(tree, legal, prunes=False)[1]
    assert told.num_nodes == num_gone
    for b, ok in enumerate(legal):
        refused = {i for i in range(len(ok or ())) if not (ok or ())[i]}
        assert told.illegal[b] == refused
        assert told.below[b] == {tree.parents_BW[b].tolist()[i] for i in refused} - refused


@pytest.mark.parametrize("is_chain", [True, False])
def test_roots_stay_where_everything_else_goes(is_chain: bool) -> None:
    parents = [[-1, 0, 1]] if is_chain else [[-1, 0, 0]]
    tree = tree_of([[5, 1, 2]], parents, [3], is_chain=is_chain)
    left, refusals = pruned(tree, [[True, False, False]])
    assert left.tokens_BW.tolist() == [[5]] and left.sizes_B.tolist() == [1]
    assert refusals.num_nodes == 2 and refusals.below == [{0}]
