"""Synthetic acceptance: the number of accepted draft tokens is drawn at random, not decided by the
model.

A drafter with random weights guesses no token, so speed with drafts is measured as in other
engines: verification runs in full, and its verdict is then replaced by one of a drawn length.
Everything else of a step is real.

Promises: the draws of a seat have the given mean, are the same in every run, and are looked up on
the device by the root's position, so that they work without waiting and inside a CUDA graph. A
verdict keeps its form: accepted nodes are real nodes on a path from the root, tokens are valid
tokens. A tree accepts no more than its depth; results report the actual mean.
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
    """Return the probability p with which a step yields `mean` tokens on average.

    Each of `steps` draft tokens is accepted with probability p if the one before it was:
    1 + p + p^2 + ... + p^steps = mean.
    """
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


def draw_lengths(mean: float, steps: int, num_seats: int, num_positions: int) -> torch.Tensor:
    """Draw the number of accepted draft tokens of each seat with a root at each position, int64 [A,
    C].

    One path of roots through the positions of a seat is drawn evenly (u grows by the golden section
    modulo 1), so that a few steps already have the mean; other positions are drawn at random until
    they meet the path.
    """
    p = continuation(mean, steps)
    reach = [p**k for k in range(1, steps + 1)]
    draw = random.Random(0)

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
    """Verification, followed by a verdict of `mean` tokens on average. An engine takes it for its
    `verify`.

    mean: including the token that every step yields. steps: levels of the drafts. alike: sequences
    at the same position accept the same number, so that sequences that start together with prompts
    of one length end together; by default each sequence draws its own numbers, and a batch ends
    with the slowest. num_calls: number of calls on the host.
    Log-probabilities are those of the tokens that the model chose. The last token of a verdict is
    the model's choice at the last accepted node for a chain, and at the root for a tree.
    """

    def __init__(self, mean: float, steps: int, *, alike: bool = False) -> None:
        continuation(mean, steps)  # raises for an impossible mean before any work
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
        """Return the draws of all seats at all positions, on the device."""
        num_seats, num_positions = table.tokens_AC.shape
        num_drawn = 1 if self._alike else num_seats
        lengths_AC = draw_lengths(self._mean, self._steps, num_drawn, num_positions)
        return lengths_AC.expand(num_seats, -1).contiguous().to(table.device)


def accept_chain(verdict: Verdict, tree: DraftTree, wanted_B: torch.Tensor) -> None:
    """Make the verdict accept this many tokens of a chain, or all if it has fewer."""
    accepted_B = torch.minimum(wanted_B, tree.sizes_B - 1)
    nodes_W = torch.arange(tree.width - 1, device=wanted_B.device)
    own_BW = verdict.tokens_BW[:, :-1]
    is_draft_BW = nodes_W < accepted_B.unsqueeze(1)
    own_BW.copy_(torch.where(is_draft_BW, tree.tokens_BW[:, 1:], own_BW))
    _finish(verdict, accepted_B)


def accept_tree(verdict: Verdict, tree: DraftTree, wanted_B: torch.Tensor, steps: int) -> None:
    """Make the verdict follow first children this far down, or to the end of the tree."""
    num, width = tree.tokens_BW.shape
    nodes_W = torch.arange(width, device=wanted_B.device)
    # Column `width` is no node; it is the parent of padding and of itself.
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
    """Set the counts of the verdict, except for roots that could not choose.

    An error of a deeper row is token 0.
    """
    verdict.tokens_BW.clamp_(min=0)
    counts_B = verdict.counts_B
    counts_B.copy_(torch.where(counts_B > 0, accepted_B + 1, counts_B))
