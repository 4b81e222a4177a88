"""Walk down each draft tree along the tokens that its rows chose.

Promises: a walk starts at the root and continues at the child whose token was chosen, as long as
there is one; padding is never walked into.
Does not know: how a row chose.

Legend: B sequences, W nodes, X entries of a report (W tokens, W nodes, the count).
"""

from __future__ import annotations

import torch

from eyas.draft_tree import DraftTree
from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation


@Operation
def walk(chosen_BW: torch.Tensor, tree: DraftTree) -> torch.Tensor:
    """Return int64 [B, 2W + 1], `eyas.draft_tree.Verdict.report_BX` of each tree.

    chosen_BW: what each node's row chose, without gaps; -1 is a row that could not choose. It ends
    the walk before it; at the root it makes the count -1. Nodes behind the count are undefined.
    """
    if tree.is_chain:
        return _walk_chain(chosen_BW, tree.tokens_BW, tree.sizes_B)
    return _walk_tree(chosen_BW, tree.tokens_BW, tree.parents_BW, tree.sizes_B)


@walk.native
def _by_native(chosen_BW: torch.Tensor, tree: DraftTree) -> torch.Tensor:
    steps = compiled_steps(chosen_BW.device)
    if steps is None:
        return NotImplemented
    return steps.walk(chosen_BW, tree.tokens_BW, tree.branch_parents, tree.sizes_B)


@walk.kernel
def _by_kernel(chosen_BW: torch.Tensor, tree: DraftTree) -> torch.Tensor:
    from eyas.kernels.walk import walk as launch

    return launch(chosen_BW, tree.tokens_BW, tree.branch_parents, tree.sizes_B)


def _walk_chain(
    chosen_BW: torch.Tensor, tokens_BW: torch.Tensor, sizes_B: torch.Tensor
) -> torch.Tensor:
    """A chain's walk is the run of draft tokens that were chosen."""
    width = tokens_BW.shape[1]
    nodes_W = torch.arange(width, device=chosen_BW.device)
    nodes_BW = nodes_W.expand_as(chosen_BW)
    if width == 1:
        return _report(chosen_BW, nodes_BW, torch.where(chosen_BW[:, 0] >= 0, 1, -1))
    agrees = (chosen_BW[:, :-1] == tokens_BW[:, 1:]) & (nodes_W[1:] < sizes_B.unsqueeze(1))
    accepted_B = agrees.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return _up_to_faults(chosen_BW, nodes_BW, accepted_B + 1)


def _walk_tree(
    chosen_BW: torch.Tensor,
    tokens_BW: torch.Tensor,
    parents_BW: torch.Tensor,
    sizes_B: torch.Tensor,
) -> torch.Tensor:
    num, width = chosen_BW.shape
    device = chosen_BW.device
    columns_W = torch.arange(width, device=device)
    real_BW = columns_W < sizes_B.unsqueeze(1)
    at_B = torch.zeros(num, dtype=torch.int64, device=device)
    walking_B = torch.ones(num, dtype=torch.bool, device=device)
    walked_BW = torch.full_like(chosen_BW, -1)
    nodes_BW = torch.zeros_like(chosen_BW)
    counts_B = torch.zeros_like(at_B)
    for step in range(width):
        token_B1 = chosen_BW.gather(1, at_B.unsqueeze(1))
        walked_BW[:, step] = torch.where(walking_B, token_B1.squeeze(1), -1)
        nodes_BW[:, step] = at_B
        counts_B += walking_B
        is_next_BW = (parents_BW == at_B.unsqueeze(1)) & (tokens_BW == token_B1) & real_BW
        walking_B = walking_B & is_next_BW.any(dim=1)
        at_B = torch.where(walking_B, is_next_BW.to(torch.int64).argmax(dim=1), at_B)
        if device.type == "cpu" and not bool(walking_B.any()):
            break
    return _up_to_faults(walked_BW, nodes_BW, counts_B)


def _up_to_faults(
    tokens_BW: torch.Tensor, nodes_BW: torch.Tensor, counts_B: torch.Tensor
) -> torch.Tensor:
    """The report of a walk that ends before a row that could not choose."""
    last_B1 = (counts_B - 1).unsqueeze(1)
    counts_B = counts_B - (tokens_BW.gather(1, last_B1).squeeze(1) < 0).to(torch.int64)
    return _report(tokens_BW, nodes_BW, torch.where(counts_B == 0, -1, counts_B))


def _report(
    tokens_BW: torch.Tensor, nodes_BW: torch.Tensor, counts_B: torch.Tensor
) -> torch.Tensor:
    return torch.cat((tokens_BW, nodes_BW, counts_B.unsqueeze(1)), dim=1)
