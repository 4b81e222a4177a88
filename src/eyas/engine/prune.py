"""Trees without the nodes that a grammar refuses.

Promises: what is left keeps its order, its sources and its parents; a sequence without a constraint
keeps its tree. Does not know: grammars.

Legend: B sequences, W nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from eyas.core import DraftTree


@dataclass(slots=True)
class Refusals:
    """What grammars refused. num_nodes: how many, those below refused ones included.

    below: for each sequence the nodes with a refused child (by their number in the tree that is left);
    illegal: the refused nodes that are still in it.
    """

    num_nodes: int = 0
    below: list[set[int]] = field(default_factory=list)
    illegal: list[set[int]] = field(default_factory=list)


def prune(
    tree: DraftTree,
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    sizes: Sequence[int],
    legal: Sequence[Sequence[bool] | None],
    *,
    prunes: bool,
) -> tuple[DraftTree, Refusals]:
    """tokens, parents, sizes: the tree's, on the host. legal: None where everything is. Nodes stay in
    the tree unless `prunes`, but are counted all the same."""
    refusals = Refusals()
    kept: list[list[int]] = []
    for b, size in enumerate(sizes):
        nodes = range(size)
        ok = legal[b]
        left = list(nodes) if ok is None else [node for node in nodes if ok[node]]
        number = {node: place for place, node in enumerate(left)} if prunes else None
        below, illegal = set(), set()
        if ok is not None and len(left) < size:
            refusals.num_nodes += size - len(left)
            for node in nodes:
                if ok[node]:
                    continue
                if ok[parents[b][node]]:
                    parent = parents[b][node]
                    below.add(parent if number is None else number[parent])
                if number is None:
                    illegal.add(node)
        refusals.below.append(below)
        refusals.illegal.append(illegal)
        kept.append(left)
    if not prunes or not refusals.num_nodes:
        return tree, refusals
    return _kept(tree, tokens, parents, kept), refusals


def _kept(
    tree: DraftTree,
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    kept: Sequence[Sequence[int]],
) -> DraftTree:
    """The tree of the kept nodes; it may be narrower, and a chain where it was none."""
    device = tree.tokens_BW.device
    width = max(len(left) for left in kept)
    sizes_B = torch.tensor([len(left) for left in kept], device=device)
    if tree.is_chain:
        source_BW = None if tree.source_BW is None else tree.source_BW[:, :width]
        return DraftTree(
            tree.tokens_BW[:, :width],
            tree.parents_BW[:, :width],
            sizes_B,
            True,
            source_BW,
        )
    new_tokens, new_parents, order = [], [], []
    for b, left in enumerate(kept):
        number = {node: place for place, node in enumerate(left)}
        padding = width - len(left)
        new_tokens.append([tokens[b][node] for node in left] + [0] * padding)
        above = [number[parents[b][node]] for node in left[1:]]
        new_parents.append([-1, *above] + [0] * padding)
        order.append(list(left) + [0] * padding)
    order_BW = torch.tensor(order, device=device)
    is_chain = all(
        above == node - 1
        for parents_W, left in zip(new_parents, kept, strict=True)
        for node, above in enumerate(parents_W[: len(left)])
    )
    if is_chain:
        new_parents = [list(range(-1, width - 1))] * len(kept)
    return DraftTree(
        torch.tensor(new_tokens, device=device),
        torch.tensor(new_parents, device=device),
        sizes_B,
        is_chain,
        None if tree.source_BW is None else tree.source_BW.gather(1, order_BW),
    )
