"""What became of a draft: how deep it went, who had proposed what was accepted, why the walk ended.

Promises: numbers for people and metrics; nothing here acts on anything.
Does not know: how trees are grown or walked.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.core import DraftCounts
from eyas.engine.flight import Flight, Landed


@dataclass(slots=True)
class DraftFate:
    """depth: of the tree. drafted, accepted: sources of the nodes, accepted ones in order."""

    depth: int
    drafted: list[str]
    accepted: list[str]
    ending: str


def describe_draft(flight: Flight, landed: Landed, b: int) -> DraftFate | None:
    """The fate of the draft of rooted sequence `b`; None where nothing was drafted or chosen."""
    size, count = landed.sizes[b], landed.counts[b]
    if size < 2 or count < 1 or flight.drafter is None:
        return None
    names = flight.drafter.sources
    sources = landed.sources[b] if landed.sources is not None else [0] * size
    parents = landed.parents[b] if landed.parents is not None else range(-1, size - 1)
    depths = [0] * size
    for node in range(1, size):
        depths[node] = depths[parents[node]] + 1
    path = landed.nodes[b][1:count]
    last = landed.nodes[b][count - 1]
    refusals = None if flight.masks is None else flight.masks.refusals
    illegal = refusals.illegal[b] if refusals is not None else set()
    below = [node for node in range(1, size) if parents[node] == last and node not in illegal]
    if below:
        ending = "target"
    elif refusals is not None and last in refusals.below[b]:
        ending = "grammar"
    else:
        ending = "leaf"
    return DraftFate(
        max(depths),
        [names[sources[node]] for node in range(1, size)],
        [names[sources[node]] for node in path],
        ending,
    )


def count_draft(counts: DraftCounts, draft: DraftFate, num_accepted: int) -> None:
    """Add a draft of which `num_accepted` tokens were used."""
    counts.num_drafts += 1
    missing = draft.depth - len(counts.drafted_by_depth)
    counts.drafted_by_depth += [0] * missing
    counts.accepted_by_depth += [0] * missing
    for depth in range(draft.depth):
        counts.drafted_by_depth[depth] += 1
        counts.accepted_by_depth[depth] += depth < num_accepted
    for name in draft.drafted:
        counts.drafted_by_source[name] = counts.drafted_by_source.get(name, 0) + 1
    for name in draft.accepted[:num_accepted]:
        counts.accepted_by_source[name] = counts.accepted_by_source.get(name, 0) + 1
    counts.endings[draft.ending] = counts.endings.get(draft.ending, 0) + 1
