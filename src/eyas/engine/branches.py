"""A draft tree as runs of nodes, of which each is the first child of the one before it.

An automaton that goes to the first node of a run has masks of all of them by one request, and a tree
has as many runs as leaves. A chain is one run.

Promises: a run's rows follow each other in the order of the runs. Does not know: what a grammar is.

Legend: W nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import GrammarNode
from eyas.constraint.mask_batch import MaskRequest


@dataclass(slots=True, eq=False)
class Branch:
    """nodes: from the first on. point: where that stands; None: not legal. tokens: of the nodes behind
    it whose masks are asked for with its own. is_seen: its nodes are not too deep to be looked at.
    request: for its masks."""

    nodes: tuple[int, ...]
    point: GrammarNode | None
    tokens: tuple[int, ...] = ()
    is_seen: bool = True
    request: MaskRequest | None = None

    @property
    def first_refused(self) -> int | None:
        """The node that is not legal while those before it are, as far as they were looked at."""
        if self.point is None:
            return self.nodes[0] if self.is_seen else None
        if self.request is None or self.request.is_late or not self.request.num_masks:
            return None
        num = self.request.num_legal
        return self.nodes[1 + num] if num < len(self.tokens) else None


def branches_of(parents_W: Sequence[int]) -> list[tuple[int, ...]]:
    """All nodes, each in one run; that of the root is the first, and a run comes behind the one that
    its first node hangs on."""
    branches: list[list[int]] = [[0]]
    ends = {0: branches[0]}
    for node, parent in enumerate(parents_W[1:], 1):
        branch = ends.pop(parent, None)
        if branch is None:
            branch = []
            branches.append(branch)
        branch.append(node)
        ends[node] = branch
    return [tuple(branch) for branch in branches]


def depths_of(parents_W: Sequence[int]) -> list[int]:
    """Levels below the root, by node."""
    depths = [0]
    for parent in parents_W[1:]:
        depths.append(depths[parent] + 1)
    return depths


def in_node_order(rows_WK: np.ndarray, branches: Sequence[Branch]) -> None:
    """Put rows that follow each other as the runs' nodes do where those nodes' rows are."""
    order = [node for branch in branches for node in branch.nodes]
    rows_WK[order] = rows_WK[: len(order)].copy()
