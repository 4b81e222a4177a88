"""Add the children of a frontier to the pool of a growing draft tree, and find the next frontier.

Promises: a sequence's result depends on that sequence's scores alone; of equal scores the candidate
that was found first wins. (Li, Wei, Zhang, Zhang, "EAGLE-2", arXiv 2406.16858.)
Does not know: logits, networks, where the pool's storage comes from.

Legend: B sequences, K frontier nodes, C children a node, P entries of a pool, E candidates of a
level (K * C), D draft tokens from below the root to a node.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.ops.dispatch import Operation


class Frontier(NamedTuple):
    """The nodes whose children come next.

    pool_BK: their place in the pool (-1 is the root); score_BK: sum of log-probabilities from the
    root; path_BKD: tokens from below the root to each. Of roots (D is 0) only the shapes count.
    """

    pool_BK: torch.Tensor
    score_BK: torch.Tensor
    path_BKD: torch.Tensor

    @classmethod
    def of_roots(cls, num: int, device: torch.device) -> Frontier:
        """Return the frontier of `num` sequences whose trees have no node but their roots."""
        return cls(
            torch.empty((num, 1), dtype=torch.int64, device=device),
            torch.empty((num, 1), device=device),
            torch.empty((num, 1, 0), dtype=torch.int64, device=device),
        )


class PoolStorage(NamedTuple):
    """The candidates of trees, level after level; parents_BP: their parents' places, -1 for the
    root."""

    tokens_BP: torch.Tensor
    scores_BP: torch.Tensor
    parents_BP: torch.Tensor

    @classmethod
    def new(cls, num: int, capacity: int, device: torch.device) -> PoolStorage:
        """Return uninitialised storage for `capacity` candidates of each of `num` sequences."""
        shape = (num, capacity)
        return cls(
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.int64, device=device),
        )


@Operation
def add_level(
    tokens_BKC: torch.Tensor,
    scores_BKC: torch.Tensor,
    frontier: Frontier,
    pool: PoolStorage,
    start: int,
    keep: int,
) -> tuple[Frontier, torch.Tensor]:
    """Write the children of `frontier` into `pool` from entry `start` on.

    tokens_BKC, scores_BKC: the children and their log-probabilities, best first. Returns the `keep`
    best of them as the next frontier, and int64 [B, keep] the index of each one's parent in
    `frontier`.
    """
    num, width, num_children = tokens_BKC.shape
    depth = frontier.path_BKD.shape[2]
    tokens_BE, scores_BE, parents_BE = tokens_BKC.flatten(1), scores_BKC.flatten(1), None
    if depth:
        scores_BE = (frontier.score_BK.unsqueeze(2) + scores_BKC).flatten(1)
        parents_BE = frontier.pool_BK.repeat_interleave(num_children, dim=1)
    level = slice(start, start + width * num_children)
    pool.tokens_BP[:, level] = tokens_BE
    pool.scores_BP[:, level] = scores_BE
    pool.parents_BP[:, level] = -1 if parents_BE is None else parents_BE
    if width == 1 and keep == num_children:  # already in order
        best_BK = torch.arange(keep, device=tokens_BE.device).expand(num, -1)
        score_BK = scores_BE
    else:
        score_BK, best_BK = scores_BE.sort(dim=1, descending=True, stable=True)
        score_BK, best_BK = score_BK[:, :keep], best_BK[:, :keep]
    if width == 1:
        parent_BK = torch.zeros_like(best_BK)
        above_BKD = frontier.path_BKD.expand(-1, best_BK.shape[1], -1)
    else:
        parent_BK = best_BK // num_children
        above_BKD = frontier.path_BKD.gather(1, parent_BK.unsqueeze(2).expand(-1, -1, depth))
    own_BK = tokens_BE if best_BK.shape == tokens_BE.shape else tokens_BE.gather(1, best_BK)
    path_BKD = torch.cat([above_BKD, own_BK.unsqueeze(2)], dim=2)
    return Frontier(start + best_BK, score_BK, path_BKD), parent_BK


@add_level.kernel
def _by_kernel(
    tokens_BKC: torch.Tensor,
    scores_BKC: torch.Tensor,
    frontier: Frontier,
    pool: PoolStorage,
    start: int,
    keep: int,
) -> tuple[Frontier, torch.Tensor]:
    from eyas.kernels.grow import extend

    pool_BK, score_BK, path_BKD, parent_BK = extend(
        tokens_BKC,
        scores_BKC,
        (frontier.pool_BK, frontier.score_BK, frontier.path_BKD),
        (pool.tokens_BP, pool.scores_BP, pool.parents_BP),
        start,
        keep,
        pdl=tokens_BKC.is_cuda,
    )
    return Frontier(pool_BK, score_BK, path_BKD), parent_BK
