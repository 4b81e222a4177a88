"""Trees without the nodes that a grammar refuses.

Promises: the remaining nodes keep their order, sources and parents; a sequence without a constraint
keeps its tree. Does not know: grammars.

Legend: B sequences, W nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from eyas.draft_tree import DraftTree
from eyas.engine.branches import depths_of


class LeftOut(NamedTuple):
    """A refused node that the verified tree is without. node: its number in the proposed tree."""

    node: int
    source: int
    depth: int


@dataclass(slots=True)
class Refusals:
    """What grammars refused. num_nodes: number of refused nodes, with those below them.

    below: for each sequence the nodes with a refused child; illegal: the refused nodes. Both number the
    nodes of the tree that is verified. left_out: for each sequence the refused nodes that are not in
    that tree, in order; empty if it has all of them.
    """

    num_nodes: int = 0
    below: list[set[int]] = field(default_factory=list)
    illegal: list[set[int]] = field(default_factory=list)
    left_out: list[list[LeftOut]] = field(default_factory=list)

    def left_out_nodes(self, b: int) -> set[int]:
        """Return the numbers, in the proposed tree, of the nodes that the verified tree of sequence b
        is without."""
        return {each.node for each in self.left_out[b]} if self.left_out else set()


def refused(
    parents: Sequence[Sequence[int]],
    sizes: Sequence[int],
    legal: Sequence[Sequence[bool] | None],
) -> Refusals:
    """Return the refusals in trees that keep all of their nodes. legal: by node; None where everything
    is."""
    refusals = Refusals()
    for above, size, ok in zip(parents, sizes, legal, strict=True):
        illegal = set() if ok is None else {node for node in range(size) if not ok[node]}
        refusals.num_nodes += len(illegal)
        refusals.illegal.append(illegal)
        refusals.below.append({above[node] for node in illegal if above[node] not in illegal})
    return refusals


def without(refusals: Refusals, tree: DraftTree) -> tuple[DraftTree, Refusals]:
    """Return the tree without what was refused, and the refusals with that tree's node numbers. Its
    tensors are the host's."""
    if not refusals.num_nodes:
        return tree, refusals
    kept, below = [], []
    sizes, parents = tree.sizes_B.tolist(), tree.parents_BW.tolist()
    for size, illegal, above in zip(sizes, refusals.illegal, refusals.below, strict=True):
        kept.append([node for node in range(size) if node not in illegal])
        below.append({kept[-1].index(node) for node in above})
    nothing: list[set[int]] = [set() for _ in sizes]
    left_out = _left_out(refusals, tree, parents)
    return _kept(tree, kept), Refusals(refusals.num_nodes, below, nothing, left_out)


def _left_out(
    refusals: Refusals, tree: DraftTree, parents: Sequence[Sequence[int]]
) -> list[list[LeftOut]]:
    """Return the refused nodes of each sequence, which will be left out."""
    sources = [[0] * tree.width] * len(parents)
    if tree.source_BW is not None:
        sources = tree.source_BW.tolist()
    left_out = []
    for illegal, above, source in zip(refusals.illegal, parents, sources, strict=False):
        depths = depths_of(above) if illegal else []
        left_out.append([LeftOut(node, source[node], depths[node]) for node in sorted(illegal)])
    return left_out


def _kept(tree: DraftTree, kept: Sequence[Sequence[int]]) -> DraftTree:
    """Return the tree of the kept nodes; it may be narrower, and become a chain."""
    width = max(len(left) for left in kept)
    sizes_B = torch.tensor([len(left) for left in kept])
    if tree.is_chain:
        source_BW = None if tree.source_BW is None else tree.source_BW[:, :width]
        tokens_BW, parents_BW = tree.tokens_BW[:, :width], tree.parents_BW[:, :width]
        return DraftTree(tokens_BW, parents_BW, sizes_B, True, source_BW)
    tokens, parents = tree.tokens_BW.tolist(), tree.parents_BW.tolist()
    new_tokens, new_parents, order = [], [], []
    for b, left in enumerate(kept):
        number = {node: place for place, node in enumerate(left)}
        padding = width - len(left)
        new_tokens.append([tokens[b][node] for node in left] + [0] * padding)
        above = [number[parents[b][node]] for node in left[1:]]
        new_parents.append([-1, *above] + [0] * padding)
        order.append(list(left) + [0] * padding)
    order_BW = torch.tensor(order)
    is_chain = all(
        above == node - 1
        for parents_W, left in zip(new_parents, kept, strict=True)
        for node, above in enumerate(parents_W[: len(left)])
    )
    if is_chain:
        new_parents = [list(range(-1, width - 1))] * len(kept)
    return DraftTree(
        torch.tensor(new_tokens),
        torch.tensor(new_parents),
        sizes_B,
        is_chain,
        None if tree.source_BW is None else tree.source_BW.gather(1, order_BW),
    )
