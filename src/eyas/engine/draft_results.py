"""Results of a draft: its depth, the sources of accepted nodes, the reason why the walk ended.

Promises: numbers for people and metrics; no decision depends on them.
Does not know: how trees are grown or walked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eyas.core import DraftCounts, DraftFate, DraftNode, TreeRecord
from eyas.engine.branches import depths_of
from eyas.engine.flight import Flight, Outcome, ProposedTree
from eyas.wire import NodeCounts


@dataclass(slots=True)
class DraftResult:
    """depth: of the tree. drafted: nodes by source; accepted: sources of those accepted, in order."""

    depth: int
    drafted: Mapping[str, int]
    accepted: Sequence[str]
    ending: str


def describe_draft(flight: Flight, outcome: Outcome) -> DraftResult | None:
    """Return the result of one sequence's draft; None where nothing was drafted or chosen."""
    size, parents = outcome.size, outcome.parents
    if size < 2 or outcome.count < 1 or flight.drafter is None:
        return None
    names, last = flight.drafter.sources, outcome.nodes[-1]
    if parents is None:
        depth, below = size - 1, [last + 1] if last + 1 < size else []
    else:
        depth = max(depths_of(parents[:size]))
        below = [node for node in range(1, size) if parents[node] == last]
    drafted: Mapping[str, int]
    if outcome.sources is None:
        drafted = {names[0]: size - 1}
    else:
        drafted = Counter(names[source] for source in outcome.sources[1:size])
    accepted = [names[source] for source in outcome.accepted_sources]
    refusals = None if flight.masks is None else flight.masks.refusals
    illegal = refusals.illegal[outcome.b] if refusals is not None else set()
    if any(node not in illegal for node in below):
        ending = "target"
    elif refusals is not None and last in refusals.below[outcome.b]:
        ending = "grammar"
    else:
        ending = "leaf"
    return DraftResult(depth, drafted, accepted, ending)


def record_tree(
    flight: Flight, outcome: Outcome, tree: ProposedTree, token_ids: list[int]
) -> TreeRecord:
    """Return the record of one sequence's tree. token_ids: what the step added to the output."""
    assert flight.drafter is not None, "a proposed tree has a drafter"
    names, size = flight.drafter.sources, len(tree.tokens)
    left_out: set[int] = set()
    refused: set[int] = set()
    if flight.masks is not None:
        left_out = flight.masks.refusals.left_out_nodes(outcome.b)
        refused = left_out | flight.masks.refusals.illegal[outcome.b]
    places = [node for node in range(size) if node not in left_out]
    walked = [places[node] for node in outcome.nodes[: len(token_ids) + 1]]
    accepted = set(walked[1:])
    end, chosen = walked[-1], token_ids[len(accepted) : len(accepted) + 1]

    def fate(node: int) -> DraftFate:
        if node == 0:
            return "root"
        if node in accepted:
            return "accepted"
        if node in refused:
            return "refused"
        return "chosen" if tree.parents[node] == end and [tree.tokens[node]] == chosen else "unused"

    nodes = []
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        source = 0 if tree.sources is None else tree.sources[node]
        score = math.nan if tree.scores is None or node == 0 else tree.scores[node]
        nodes.append(
            DraftNode(
                token,
                parent,
                names[source] if node else "",
                score if math.isfinite(score) else None,
                fate(node),
            )
        )
    return TreeRecord(nodes, token_ids)


def count_draft(counts: DraftCounts, draft: DraftResult, num_accepted: int) -> None:
    """Add a draft of which `num_accepted` tokens were used."""
    counts.num_drafts += 1
    missing = draft.depth - len(counts.drafted_by_depth)
    if missing > 0:
        counts.drafted_by_depth += [0] * missing
        counts.accepted_by_depth += [0] * missing
    for depth in range(draft.depth):
        counts.drafted_by_depth[depth] += 1
    for depth in range(min(num_accepted, draft.depth)):
        counts.accepted_by_depth[depth] += 1
    for name, num in draft.drafted.items():
        counts.drafted_by_source[name] = counts.drafted_by_source.get(name, 0) + num
    for name in draft.accepted[:num_accepted]:
        counts.accepted_by_source[name] = counts.accepted_by_source.get(name, 0) + 1
    counts.endings[draft.ending] = counts.endings.get(draft.ending, 0) + 1


def count_nodes(counts: NodeCounts, flight: Flight, outcome: Outcome, num_accepted: int) -> None:
    """Add the nodes of one sequence's tree, of which the first `num_accepted` on the walk were used,
    and those that a grammar had refused before the forward pass."""
    if outcome.count < 1 or flight.drafter is None:
        return
    names, size = flight.drafter.sources, outcome.size
    refusals = None if flight.masks is None else flight.masks.refusals
    if refusals is not None and refusals.left_out:
        for node in refusals.left_out[outcome.b]:
            _add(counts.proposed, names[node.source], node.depth)
            _add(counts.illegal, names[node.source], node.depth)
    if size < 2:
        return
    depths = range(size) if outcome.parents is None else depths_of(outcome.parents[:size])
    sources = [0] * size if outcome.sources is None else outcome.sources
    for node in range(1, size):
        _add(counts.proposed, names[sources[node]], depths[node])
    for node in outcome.nodes[1 : num_accepted + 1]:
        _add(counts.accepted, names[sources[node]], depths[node])
    if refusals is not None:
        for node in refusals.illegal[outcome.b]:
            _add(counts.illegal, names[sources[node]], depths[node])


def _add(counts: dict[str, list[int]], name: str, depth: int) -> None:
    by_depth = counts.setdefault(name, [])
    if len(by_depth) < depth:
        by_depth += [0] * (depth - len(by_depth))
    by_depth[depth - 1] += 1
