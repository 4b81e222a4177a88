"""Synthetic acceptance: how many draft tokens a step accepts is drawn, not decided by the model.

With random weights a drafter guesses nothing, so speed with drafts is measured as other engines do it:
verification runs in full, then its verdict is replaced by one of a drawn length. Everything else of a
step stays real.

Promises: the draws of a seat have the asked mean, are the same in every run, and are looked up on the
device by the root's position, without waiting for it and so also inside a CUDA graph. A verdict keeps
its shape: accepted nodes are real nodes on one path from the root, tokens are tokens. What a tree is
too shallow for cannot be accepted; results tell the mean that came about.
Does not know: drafters, schedules, what is measured.

Legend: R rows, V vocabulary, K mask words, B sequences, W nodes, A seats, C positions, D steps of a
draft.
"""

from __future__ import annotations

import random

import torch

from eyas.core import DraftTree, Verdict
from eyas.engine.verifier import verify
from eyas.runner.batch import Batch
from eyas.runner.rows import PackedRows
from eyas.runner.table import SequenceTable

NAME = "synthetic acceptance"
ALIKE = f"{NAME}, all sequences alike"
_GOLDEN = (5**0.5 - 1) / 2


def continuation(mean: float, steps: int) -> float:
    """p such that a step yields `mean` tokens when each of `steps` draft tokens is accepted with
    probability p if the one before it was: 1 + p + p^2 + ... + p^steps = mean."""
    if not 1 <= mean <= steps + 1:
        raise ValueError(
            f"synthetic_acceptance: between 1 and {steps + 1} tokens a step are possible with "
            f"{steps} draft steps, not {mean:g}"
        )
    low, high = 0.0, 1.0
    for _ in range(100):
        p = (low + high) / 2
        if 1 + sum(p**k for k in range(1, steps + 1)) < mean:
            low = p
        else:
            high = p
    return 1.0 if mean == steps + 1 else low


def draw_lengths(
    mean: float, steps: int, num_seats: int, num_positions: int, seed: int = 0
) -> torch.Tensor:
    """int64 [A, C]: how many draft tokens are accepted by a seat whose root stands at a position.

    One path of roots through each seat's positions is drawn evenly (u grows by the golden section,
    modulo 1), so that already few steps have the mean; positions beside the path, where a step that
    could not accept as much leads to, are drawn at random until they meet it.
    """
    p = continuation(mean, steps)
    reach = [p**k for k in range(1, steps + 1)]
    draw = random.Random(seed)

    def quantile(u: float) -> int:
        return sum(u < share for share in reach)

    rows = []
    for _ in range(num_seats):
        row = [quantile(draw.random()) for _ in range(num_positions)]
        at, u = 0, draw.random()
        while at < num_positions:
            row[at] = quantile(u)
            at += row[at] + 1
            u = (u + _GOLDEN) % 1
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


class SyntheticAcceptance:
    """Verification as it is, and then a verdict of `mean` tokens on average, the one that every step
    yields included. An engine takes it for its `verify`.

    steps: levels of its drafts. alike: sequences at the same position accept the same number, so those
    that start together with prompts of one length end together; otherwise each draws for itself, and a
    batch ends with its slowest. num_calls: how often it ran on the host. Log-probabilities stay those
    of the tokens that the model chose. The last token of a chain's verdict is the model's choice at the
    last accepted node, of a tree's the model's choice at the root.
    """

    def __init__(self, mean: float, steps: int, *, alike: bool = False) -> None:
        continuation(mean, steps)  # what cannot be is refused before any work
        self._mean, self._steps, self._alike = mean, steps, alike
        self._lengths_AC: torch.Tensor | None = None
        self.num_calls = 0

    def __call__(
        self,
        logits_RV: torch.Tensor,
        tree: DraftTree,
        rows: PackedRows,
        batch: Batch,
        mask_RK: torch.Tensor | None,
    ) -> Verdict:
        verdict = verify(logits_RV, tree, rows, batch, mask_RK)
        if self._lengths_AC is None:  # a stage runs once before it is captured
            self._lengths_AC = self._drawn(batch.table)
        if tree.width > 1:
            self.num_calls += 1
            wanted_B = self._lengths_AC[batch.seats_B, batch.roots_B]
            if tree.is_chain:
                accept_chain(verdict, tree, wanted_B)
            else:
                accept_tree(verdict, tree, wanted_B, self._steps)
        return verdict

    def _drawn(self, table: SequenceTable) -> torch.Tensor:
        """The draws of all seats at all positions, on the device."""
        num_seats, num_positions = table.tokens_AC.shape
        num_drawn = 1 if self._alike else num_seats
        lengths_AC = draw_lengths(self._mean, self._steps, num_drawn, num_positions)
        return lengths_AC.expand(num_seats, -1).contiguous().to(table.device)


def accept_chain(verdict: Verdict, tree: DraftTree, wanted_B: torch.Tensor) -> None:
    """Make the verdict accept so many tokens of a chain, as far as it has them."""
    accepted_B = torch.minimum(wanted_B, tree.sizes_B - 1)
    nodes_W = torch.arange(tree.width - 1, device=wanted_B.device)
    own_BW = verdict.tokens_BW[:, :-1]
    is_draft_BW = nodes_W < accepted_B.unsqueeze(1)
    own_BW.copy_(torch.where(is_draft_BW, tree.tokens_BW[:, 1:], own_BW))
    _finish(verdict, accepted_B)


def accept_tree(verdict: Verdict, tree: DraftTree, wanted_B: torch.Tensor, steps: int) -> None:
    """Make the verdict follow the first child of every node so far down, as far as the tree goes."""
    num, width = tree.tokens_BW.shape
    nodes_W = torch.arange(width, device=wanted_B.device)
    # Column `width` stands for no node: padding counts as its child, and it is its own.
    above_BW = torch.where(nodes_W < tree.sizes_B.unsqueeze(1), tree.parents_BW, width)
    above_BW[:, 0] = width
    first_BW = above_BW.new_full((num, width + 1), width)
    first_BW.scatter_reduce_(1, above_BW, nodes_W.expand(num, -1), "amin")
    first_BW[:, width] = width
    path = [torch.zeros_like(wanted_B).unsqueeze(1)]
    for _ in range(min(steps, width - 1)):
        path.append(first_BW.gather(1, path[-1]))
    path_BD = torch.cat(path, dim=1)
    levels_D = nodes_W[: path_BD.shape[1]]
    accepted_B = torch.minimum(wanted_B, (path_BD < width).sum(dim=1) - 1)
    nodes_BD = torch.where(levels_D <= accepted_B.unsqueeze(1), path_BD, 0)
    drafted_BD = tree.tokens_BW.gather(1, nodes_BD)
    own_B1 = verdict.tokens_BW[:, :1]
    is_draft_BD = levels_D[:-1] < accepted_B.unsqueeze(1)
    tokens_BD = torch.cat([torch.where(is_draft_BD, drafted_BD[:, 1:], own_B1), own_B1], dim=1)
    verdict.tokens_BW[:, : path_BD.shape[1]].copy_(tokens_BD)
    verdict.nodes_BW[:, : path_BD.shape[1]].copy_(nodes_BD)
    _finish(verdict, accepted_B)


def _finish(verdict: Verdict, accepted_B: torch.Tensor) -> None:
    """The counts, but for roots that could not choose; a deeper row's fault shows as token 0."""
    verdict.tokens_BW.clamp_(min=0)
    counts_B = verdict.counts_B
    counts_B.copy_(torch.where(counts_B > 0, accepted_B + 1, counts_B))
