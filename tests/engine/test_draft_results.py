"""What became of a tree's nodes is counted by source and depth, wherever a grammar refused them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from eyas.engine.draft_results import count_nodes, record_tree
from eyas.engine.flight import Outcome, ProposedTree
from eyas.engine.prune import LeftOut, Refusals
from eyas.wire import NodeCounts

CHAIN = Outcome(0, 3, [5, 6, 7], [0, 1, 2], 4, None, None, None)
TREE = Outcome(0, 2, [5, 6], [0, 2], 6, [-1, 0, 0, 2, 2, 3], [0, 1, 0, 0, 1, 1], None)


def counted(outcome: Outcome, refusals: Refusals | None, num_accepted: int) -> NodeCounts:
    masks = None if refusals is None else SimpleNamespace(refusals=refusals)
    drafter = SimpleNamespace(sources=("head", "ngram"))
    flight: Any = SimpleNamespace(drafter=drafter, masks=masks)
    counts = NodeCounts()
    count_nodes(counts, flight, outcome, num_accepted)
    return counts


def test_a_chain_is_of_the_first_source() -> None:
    assert counted(CHAIN, None, 2) == NodeCounts(
        proposed={"head": [1, 1, 1]}, accepted={"head": [1, 1]}
    )


def test_what_a_stop_dropped_was_not_accepted() -> None:
    assert counted(CHAIN, None, 1).accepted == {"head": [1]}


def test_nodes_of_a_tree_are_told_by_source_and_depth() -> None:
    refused_inside = Refusals(2, [{2}], [{4, 5}])
    assert counted(TREE, refused_inside, 1) == NodeCounts(
        proposed={"ngram": [1, 1, 1], "head": [1, 1]},
        accepted={"head": [1]},
        illegal={"ngram": [0, 1, 1]},
    )


def test_nodes_that_left_the_tree_before_the_forward_count() -> None:
    root_alone = Outcome(0, 1, [5], [0], 1, None, None, None)
    all_refused = Refusals(2, [{0}], [set()], [[LeftOut(1, 1, 1), LeftOut(2, 0, 2)]])
    assert counted(root_alone, all_refused, 0) == NodeCounts(
        proposed={"ngram": [1], "head": [0, 1]}, illegal={"ngram": [1], "head": [0, 1]}
    )
    none_left_out = Refusals(0, [set()], [set()])
    assert counted(root_alone, none_left_out, 0) == NodeCounts()


def test_a_record_has_the_same_fates_whether_refused_nodes_left_the_tree_or_not() -> None:
    proposed = ProposedTree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 3], [0, 1, 0, 0, 1], None)
    inside = Refusals(2, [{0, 3}], [{1, 4}])
    whole = Outcome(0, 3, [3, 4, 9], [0, 2, 3], 5, proposed.parents, proposed.sources, None)
    left_out = Refusals(2, [{0, 2}], [set()], [[LeftOut(1, 1, 1), LeftOut(4, 1, 3)]])
    pruned = Outcome(0, 3, [3, 4, 9], [0, 1, 2], 3, None, None, None)
    for refusals, outcome in ((inside, whole), (left_out, pruned)):
        masks = SimpleNamespace(refusals=refusals)
        flight: Any = SimpleNamespace(drafter=SimpleNamespace(sources=("a", "b")), masks=masks)
        record = record_tree(flight, outcome, proposed, outcome.tokens)
        fates = [node.fate for node in record.nodes]
        assert fates == ["root", "refused", "accepted", "accepted", "refused"]
        assert [node.source for node in record.nodes] == ["", "b", "a", "a", "b"]


def test_a_chosen_token_that_was_drafted_and_not_walked_into_is_told() -> None:
    """The end of an output is no node of the verified tree if the grammar has ended before it."""
    proposed = ProposedTree([1, 3, 9, 9], [-1, 0, 1, 0], None, None)
    flight: Any = SimpleNamespace(drafter=SimpleNamespace(sources=("a",)), masks=None)
    whole = Outcome(0, 2, [3, 9], [0, 1], 4, proposed.parents, None, None)
    for taken, fates in (
        ([3, 9], ["root", "accepted", "chosen", "unused"]),
        ([3], ["root", "accepted", "unused", "unused"]),
    ):
        record = record_tree(flight, whole, proposed, taken)
        assert [node.fate for node in record.nodes] == fates
