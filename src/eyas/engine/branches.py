"""A draft tree as branches: paths on which each node is the first child of the node before it.

A matcher that goes through a branch fills the masks of all of its nodes, and a tree has as many
branches as leaves. A chain is one branch. Branches come depth first: when a matcher has gone through
one, the next one leaves the path to where the matcher was asked last, so that the mask of the node
where they part is asked for again before the matcher turns off (`eyas.constraint.llguidance_draft`).

Promises: every node is in one branch. Does not know: what a grammar is.

Legend: W nodes, R rows of branches, K mask words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eyas.constraint import State
from eyas.constraint.automaton import path_to
from eyas.constraint.mask_batch import MaskRequest


@dataclass(frozen=True, slots=True)
class Branch:
    """nodes: the root's branch from the root on, another from the node on that it parts at. request:
    for the masks of all of these, so that a mask at which a branch parts is asked for twice."""

    nodes: tuple[int, ...]
    request: MaskRequest

    def put(self, rows_RK: np.ndarray, mask_WK: np.ndarray) -> None:
        """Copy the masks that are there from the request's rows to the nodes'."""
        if not self.request.is_late:
            begin, num = int(self.request.repeats_first), self.request.num_masks
            first = self.request.row
            mask_WK[list(self.nodes[begin:num])] = rows_RK[first + begin : first + num]


def branches_of(parents_W: Sequence[int], is_wanted: Sequence[bool]) -> list[tuple[int, ...]]:
    """Return the wanted nodes in branches, depth first; the first begins at the root, the others at the
    node where they part. The root is wanted, and so is the parent of each wanted node."""
    children: list[list[int]] = [[] for _ in parents_W]
    for node, parent in enumerate(parents_W[1:], 1):
        if is_wanted[node]:
            children[parent].append(node)
    branches: list[tuple[int, ...]] = []
    starts: list[tuple[int, ...]] = [(0,)]
    while starts:
        branch = list(starts.pop())
        while children[branch[-1]]:
            first, *others = children[branch[-1]]
            starts += [(branch[-1], other) for other in reversed(others)]
            branch.append(first)
        branches.append(tuple(branch))
    return branches


def requested(
    state: State,
    tokens_W: Sequence[int],
    parents_W: Sequence[int],
    is_wanted: Sequence[bool],
    row: int,
) -> list[Branch]:
    """Return a tree's branches with requests for their masks, in rows from `row` on. state: at the
    root."""
    branches: list[Branch] = []
    for nodes in branches_of(parents_W, is_wanted):
        path = tuple(tokens_W[node] for node in path_to(nodes[0], parents_W))
        tokens = tuple(tokens_W[node] for node in nodes[1:])
        request = MaskRequest(state, row, tokens, path, repeats_first=bool(branches))
        branches.append(Branch(nodes, request))
        row += len(nodes)
    return branches


def depths_of(parents_W: Sequence[int]) -> list[int]:
    """Return the levels below the root, by node."""
    depths = [0]
    for parent in parents_W[1:]:
        depths.append(depths[parent] + 1)
    return depths
