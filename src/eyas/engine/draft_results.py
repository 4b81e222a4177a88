"""Results of a draft: its depth, the sources of accepted nodes, the reason why the walk ended.

Promises: numbers for people and metrics; no decision depends on them.
Does not know: how trees are grown or walked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eyas.core import DraftCounts
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
