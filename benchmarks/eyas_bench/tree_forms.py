"""Trees of a form that a good head would give them, and the path that a text takes through one.

A head of random weights finds every token as likely as the next, so its trees have two levels. A form
is the tree that grows where candidates are as likely as CANDIDATES says, whatever stands above them; a
chain is the form of one candidate.

Promises: parents stand before their children, siblings in the order of their candidates; nothing waits
for the device. Does not know: tokens, texts.

Legend: B sequences, W nodes, D nodes of a path.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch

from eyas.core import DraftTree

CANDIDATES = (0.65, 0.13, 0.06, 0.04, 0.025, 0.018, 0.013, 0.01, 0.008, 0.006)
"""How likely each candidate of a node is, about as EAGLE's heads have it; later ones like the last."""


@dataclass(frozen=True, slots=True)
class Form:
    """parents_W, ranks_W, depths_W: int64; ranks among siblings, the first is 0. follows_main_W: bool;
    from the root to its parent there are only first children."""

    parents_W: torch.Tensor
    ranks_W: torch.Tensor
    depths_W: torch.Tensor
    follows_main_W: torch.Tensor


def form_of(width: int, steps: int, topk: int, device: torch.device) -> Form:
    """The likeliest tree of up to `width` nodes, `steps` levels below the root and `topk` children of a
    node; padding nodes, where there is no more, are children of the root."""
    parents, ranks, depths, follows_main = [-1], [0], [0], [False]
    # (minus how likely, number, parent, rank); a node brings its first child and its next sibling.
    heap: list[tuple[float, int, int, int]] = []
    likely = [1.0]

    def offer(parent: int, rank: int) -> None:
        if depths[parent] < steps and rank < topk:
            chance = likely[parent] * CANDIDATES[min(rank, len(CANDIDATES) - 1)]
            heapq.heappush(heap, (-chance, len(parents), parent, rank))

    offer(0, 0)
    while heap and len(parents) < width:
        chance, _, parent, rank = heapq.heappop(heap)
        parents.append(parent)
        ranks.append(rank)
        depths.append(depths[parent] + 1)
        follows_main.append(parent == 0 or (follows_main[parent] and ranks[parent] == 0))
        likely.append(-chance)
        offer(len(parents) - 1, 0)
        offer(parent, rank + 1)
    missing = width - len(parents)
    return Form(
        torch.tensor(parents + [0] * missing, device=device),
        torch.tensor(ranks + [0] * missing, device=device),
        torch.tensor(depths + [1] * missing, device=device),
        torch.tensor(follows_main + [True] * missing, device=device),
    )


def depths(tree: DraftTree, steps: int) -> torch.Tensor:
    """int64 [B, W]: levels below the root, for trees of up to `steps`."""
    if tree.is_chain:
        nodes_W = torch.arange(tree.width, device=tree.tokens_BW.device)
        return nodes_W.expand_as(tree.tokens_BW)
    depths_BW = torch.zeros_like(tree.parents_BW)
    above_BW = tree.parents_BW
    for _ in range(steps):
        depths_BW = depths_BW + (above_BW >= 0)
        further_BW = tree.parents_BW.gather(1, above_BW.clamp(min=0))
        above_BW = torch.where(above_BW >= 0, further_BW, -1)
    return depths_BW


def path(tree: DraftTree, chosen_BW: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(nodes_BD int64 [B, D], accepted_B int64 [B]): from the root on the nodes whose token is the one
    chosen at their parent, 0 behind the last, and how many these are without the root.

    chosen_BW: int64 [B, W], after each node; no token is -1. D: the smaller of the tree's width and
    steps + 1.
    """
    nodes_W = torch.arange(tree.width, device=chosen_BW.device)
    size = min(tree.width, steps + 1)
    above_BW = tree.parents_BW.clamp(min=0)
    agrees_BW = tree.tokens_BW == chosen_BW.gather(1, above_BW)
    agrees_BW &= nodes_W < tree.sizes_B.unsqueeze(1)
    agrees_BW[:, 0] = True
    if tree.is_chain:
        agrees_BW = agrees_BW.to(torch.int64).cumprod(dim=1).to(torch.bool)
    else:
        for _ in range(steps - 1):  # and so do all above it
            agrees_BW = agrees_BW & agrees_BW.gather(1, above_BW)
    # One node of a level at most, since siblings differ; the last column takes all others.
    levels_BW = torch.where(agrees_BW, depths(tree, steps), size)
    nodes_BD = chosen_BW.new_zeros(len(chosen_BW), size + 1)
    nodes_BD.scatter_(1, levels_BW, nodes_W.expand_as(levels_BW))
    return nodes_BD[:, :size], agrees_BW.sum(dim=1) - 1
