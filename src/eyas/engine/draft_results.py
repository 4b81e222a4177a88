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
from eyas.engine.flight import Flight, Outcome


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
        depths = [0] * size
        for node in range(1, size):
            depths[node] = depths[parents[node]] + 1
        depth, below = max(depths), [node for node in range(1, size) if parents[node] == last]
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


def record_tree(flight: Flight, outcome: Outcome, token_ids: list[int]) -> TreeRecord | None:
    """Return the record of one sequence's tree; None if its request does not ask for it.

    token_ids: what the step added to the output.
    """
    tree = outcome.proposed
    if tree is None or flight.drafter is None:
        return None
    names, size = flight.drafter.sources, len(tree.tokens)
    refused: set[int] = set()
    places = list(range(size))
    if flight.masks is not None and flight.masks.refusals.proposed:
        refusals = flight.masks.refusals
        refused = refusals.proposed[outcome.b]
        if refused and not refusals.illegal[outcome.b]:  # the verified tree is without them
            places = [node for node in places if node not in refused]
    accepted = {places[node] for node in outcome.nodes[1 : len(token_ids) + 1]}

    def fate(node: int) -> DraftFate:
        if node == 0:
            return "root"
        if node in accepted:
            return "accepted"
        return "refused" if node in refused else "unused"

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
