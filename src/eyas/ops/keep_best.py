"""Make draft trees of the best candidates of a pool.

Promises: parents come before their children, and nodes stand in the order of the pool; of equal
scores the candidate that was found first is kept. (Li, Wei, Zhang, Zhang, "EAGLE-2", arXiv
2406.16858.)
Does not know: how candidates were scored.

Legend: B sequences, X entries of a pool, W nodes of the tree.
"""

from __future__ import annotations

import torch

from eyas.draft_tree import DraftTree
from eyas.native.steps import compiled_steps
from eyas.ops.add_level import PoolStorage
from eyas.ops.dispatch import Operation
from eyas.ops.scale_and_filter import NEVER


@Operation
def keep_best(
    roots_B1: torch.Tensor, pool: PoolStorage, size: int, nodes: int, is_chain: bool
) -> DraftTree:
    """Return the trees of the root and the best of the first `size` entries, at most `nodes` nodes
    in all.

    Entries with a score of -inf are left out. is_chain: each level has one candidate, so the first
    entries are kept; rows of parents may then be views of one row. Scores of the root and of padding
    mean nothing.
    """
    tokens_BX, scores_BX = pool.tokens_BX[:, :size], pool.scores_BX[:, :size]
    legal_BX = scores_BX > NEVER
    root_score_B1 = scores_BX.new_zeros(roots_B1.shape)
    if is_chain:
        tokens_BW = torch.cat([roots_B1, tokens_BX[:, : nodes - 1]], dim=1)
        sizes_B = 1 + legal_BX[:, : nodes - 1].sum(dim=1)
        num, width = tokens_BW.shape
        parents_W = torch.arange(-1, width - 1, device=tokens_BW.device)
        score_BW = torch.cat([root_score_B1, scores_BX[:, : nodes - 1]], dim=1)
        return DraftTree(tokens_BW, parents_W.expand(num, -1), sizes_B, True, score_BW=score_BW)
    keep = min(nodes - 1, size)
    order_BX = scores_BX.sort(dim=1, descending=True, stable=True).indices[:, :keep]
    kept_BW = torch.where(legal_BX.gather(1, order_BX), order_BX, size).sort(dim=1).values
    sizes_B = 1 + (kept_BW < size).sum(dim=1)
    places_BW = kept_BW.clamp(max=size - 1)
    above_BW = pool.parents_BX[:, :size].gather(1, places_BW)
    node_BW = torch.searchsorted(kept_BW, above_BW.clamp(min=0)) + 1
    inner_BW = torch.where(above_BW < 0, 0, node_BW)
    inner_BW = inner_BW.masked_fill(kept_BW == size, 0)
    parents_BW = torch.cat([torch.full_like(roots_B1, -1), inner_BW], dim=1)
    tokens_BW = torch.cat([roots_B1, tokens_BX.gather(1, places_BW)], dim=1)
    score_BW = torch.cat([root_score_B1, scores_BX.gather(1, places_BW)], dim=1)
    return DraftTree(tokens_BW, parents_BW, sizes_B, False, score_BW=score_BW)


@keep_best.native
def _by_native(
    roots_B1: torch.Tensor, pool: PoolStorage, size: int, nodes: int, is_chain: bool
) -> DraftTree:
    steps = compiled_steps(roots_B1.device)
    if steps is None:
        return NotImplemented
    tokens_BW, parents_BW, sizes_B, score_BW = steps.keep_best(
        roots_B1, pool, size, nodes, is_chain=is_chain
    )
    return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain, score_BW=score_BW)


@keep_best.kernel
def _by_kernel(
    roots_B1: torch.Tensor, pool: PoolStorage, size: int, nodes: int, is_chain: bool
) -> DraftTree:
    from eyas.kernels.keep_best import keep_best as launch

    storage = (pool.tokens_BX, pool.scores_BX, pool.parents_BX)
    tokens_BW, parents_BW, sizes_B, score_BW = launch(
        storage, size, roots_B1, nodes, is_chain=is_chain, pdl=roots_B1.is_cuda
    )
    return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain, score_BW=score_BW)
