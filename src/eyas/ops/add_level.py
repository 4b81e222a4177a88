"""Add the children of a frontier to the pool of a growing draft tree, and find the next frontier.

Promises: a sequence's result depends on that sequence's scores alone; of equal scores the candidate
that was found first wins. (Li, Wei, Zhang, Zhang, "EAGLE-2", arXiv 2406.16858.)
Does not know: logits, networks, where the pool's storage comes from.

Legend: B sequences, Q frontier nodes, J children a node, X entries of a pool, E candidates of a
level (Q * J), P draft tokens from below the root to a node.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation


class Frontier(NamedTuple):
    """The nodes whose children come next.

    pool_BQ: their place in the pool (-1 is the root); score_BQ: sum of log-probabilities from the
    root; path_BQP: tokens from below the root to each. Of roots (P is 0) only the shapes count.
    """

    pool_BQ: torch.Tensor
    score_BQ: torch.Tensor
    path_BQP: torch.Tensor

    @classmethod
    def of_roots(cls, num: int, device: torch.device) -> Frontier:
        """Return the frontier of `num` sequences whose trees have no node but their roots."""
        return cls(
            torch.empty((num, 1), dtype=torch.int64, device=device),
            torch.empty((num, 1), device=device),
            torch.empty((num, 1, 0), dtype=torch.int64, device=device),
        )


class PoolStorage(NamedTuple):
    """The candidates of trees, level after level; parents_BX: their parents' places, -1 for the
    root."""

    tokens_BX: torch.Tensor
    scores_BX: torch.Tensor
    parents_BX: torch.Tensor

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
    tokens_BQJ: torch.Tensor,
    scores_BQJ: torch.Tensor,
    frontier: Frontier,
    pool: PoolStorage,
    start: int,
    keep: int,
) -> tuple[Frontier, torch.Tensor]:
    """Write the children of `frontier` into `pool` from entry `start` on.

    tokens_BQJ, scores_BQJ: the children and their log-probabilities, best first. Returns the `keep`
    best of them as the next frontier, and int64 [B, keep] the index of each one's parent in
    `frontier`.
    """
    num, width, num_children = tokens_BQJ.shape
    depth = frontier.path_BQP.shape[2]
    tokens_BE, scores_BE, parents_BE = tokens_BQJ.flatten(1), scores_BQJ.flatten(1), None
    if depth:
        scores_BE = (frontier.score_BQ.unsqueeze(2) + scores_BQJ).flatten(1)
        parents_BE = frontier.pool_BQ.repeat_interleave(num_children, dim=1)
    level = slice(start, start + width * num_children)
    pool.tokens_BX[:, level] = tokens_BE
    pool.scores_BX[:, level] = scores_BE
    pool.parents_BX[:, level] = -1 if parents_BE is None else parents_BE
    if width == 1 and keep == num_children:  # already in order
        best_BQ = torch.arange(keep, device=tokens_BE.device).expand(num, -1)
        score_BQ = scores_BE
    else:
        score_BQ, best_BQ = scores_BE.sort(dim=1, descending=True, stable=True)
        score_BQ, best_BQ = score_BQ[:, :keep], best_BQ[:, :keep]
    if width == 1:
        parent_BQ = torch.zeros_like(best_BQ)
        above_BQP = frontier.path_BQP.expand(-1, best_BQ.shape[1], -1)
    else:
        parent_BQ = best_BQ // num_children
        above_BQP = frontier.path_BQP.gather(1, parent_BQ.unsqueeze(2).expand(-1, -1, depth))
    own_BQ = tokens_BE if best_BQ.shape == tokens_BE.shape else tokens_BE.gather(1, best_BQ)
    path_BQP = torch.cat([above_BQP, own_BQ.unsqueeze(2)], dim=2)
    return Frontier(start + best_BQ, score_BQ, path_BQP), parent_BQ


@add_level.native
def _by_native(
    tokens_BQJ: torch.Tensor,
    scores_BQJ: torch.Tensor,
    frontier: Frontier,
    pool: PoolStorage,
    start: int,
    keep: int,
) -> tuple[Frontier, torch.Tensor]:
    steps = compiled_steps(tokens_BQJ.device)
    if steps is None:
        return NotImplemented
    keep = min(keep, tokens_BQJ.shape[1] * tokens_BQJ.shape[2])
    *fields, parent_BQ = steps.add_level(tokens_BQJ, scores_BQJ, frontier, pool, start, keep)
    return Frontier(*fields), parent_BQ


@add_level.kernel
def _by_kernel(
    tokens_BQJ: torch.Tensor,
    scores_BQJ: torch.Tensor,
    frontier: Frontier,
    pool: PoolStorage,
    start: int,
    keep: int,
) -> tuple[Frontier, torch.Tensor]:
    from eyas.kernels.add_level import add_level as launch

    pool_BQ, score_BQ, path_BQP, parent_BQ = launch(
        tokens_BQJ,
        scores_BQJ,
        (frontier.pool_BQ, frontier.score_BQ, frontier.path_BQP),
        (pool.tokens_BX, pool.scores_BX, pool.parents_BX),
        start,
        keep,
        pdl=tokens_BQJ.is_cuda,
    )
    return Frontier(pool_BQ, score_BQ, path_BQP), parent_BQ
