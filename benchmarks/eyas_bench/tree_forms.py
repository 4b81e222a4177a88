"""Forms of trees as a good head would grow them, and the path of a text through a tree.

A head with random weights finds every token equally likely, so its trees have two levels. A form is
the tree that results if candidates are as likely as CANDIDATES says, independently of the nodes
above them; a chain is the form with one candidate.

Promises: parents come before their children, siblings in the order of their candidates; the host
does not wait for the device. Does not know: tokens, texts.

Legend: B sequences, W nodes, D nodes of a path.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch

from eyas.draft_tree import DraftTree

CANDIDATES = (0.65, 0.13, 0.06, 0.04, 0.025, 0.018, 0.013, 0.01, 0.008, 0.006)
"""The probability of each candidate of a node, about as in EAGLE heads; later candidates have the
last one."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a tree.

    parents_W, ranks_W, depths_W: int64; a rank is the index among siblings. follows_main_W: bool;
    whether all nodes from the root to the parent are first children.
    """

    parents_W: torch.Tensor
    ranks_W: torch.Tensor
    depths_W: torch.Tensor
    follows_main_W: torch.Tensor


def form_of(width: int, steps: int, topk: int, device: torch.device) -> Form:
    """Return the most likely tree of up to `width` nodes, `steps` levels below the root and `topk`
    children per node. Padding nodes are children of the root.
    """
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
    """Return each node's levels below the root, int64 [B, W], for trees of up to `steps` levels."""
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
    """Follow the chosen tokens from the root.

    chosen_BW: int64 [B, W], the token chosen at each node; -1 for none.
    Returns the nodes of the path [B, D], int64, 0 after the last one, and the number of them
    without the root [B], int64. D is the smaller of the tree's width and steps + 1.
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
