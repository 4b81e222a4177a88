"""Growing draft trees as EAGLE-2 does (Li, Wei, Zhang, Zhang, arXiv 2406.16858).

Each level expands the best candidates of the level before. All candidates go into a pool, and the best
of the pool, by the sum of log-probabilities from the root, make the tree.

Above temperature 0 candidates are ranked with the noise that the target will choose with: their scores
are log_softmax(beta * (q / T + g)), where q are the drafter's processed logits, T is the temperature, g
is the noise of the position, and beta is fitted in training (the coupling is that of Daliri, Musco,
Suresh, arXiv 2408.07978).

Promises: the tree of a sequence depends on the scores of that sequence only. Parents come before their
children. Of candidates with equal scores the one found first is taken. With kernels each function is
one or two launches that can be captured, and with noise all candidates are ranked instead of a
shortlist.
Does not know: networks, caches, where logits come from.

Legend: B sequences, K frontier nodes, C children a node, P pool entries, R rows, V vocabulary, U draft
vocabulary, D draft tokens from the root to a node, W nodes of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.core import DraftTree
from eyas.draft.base import chain
from eyas.kernels import usable
from eyas.sampling.noise import gumbel_at
from eyas.sampling.params import BatchParams
from eyas.sampling.process import NEVER, SamplingRows, process

SHORTLIST = 64
"""Most likely candidates of a node that are ranked with noise; the others are not considered."""


def rank(
    logits_RU: torch.Tensor,
    target_ids_U: torch.Tensor | None,
    rows: SamplingRows | None,
    params: BatchParams,
    beta_B: torch.Tensor | None,
    num_children: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best next tokens of each row: target ids [R, C] and scores [R, C], best first. The
    scores are log-probabilities; -inf for tokens that may not be chosen.

    target_ids_U: the target's token id of each draft id; None if they are the same. rows: None if no
    sampling parameter has an effect. beta_B: by sequence; None ranks without noise (plain top-k).
    """
    if usable(logits_RU.device):
        return _rank_by_kernel(logits_RU, target_ids_U, rows, params, beta_B, num_children)
    if rows is None:
        scores_RC, best_RC = logits_RU.log_softmax(dim=1).topk(num_children, dim=1)
        return (best_RC if target_ids_U is None else target_ids_U[best_RC]), scores_RC
    x_RV = process(_of_target(logits_RU, target_ids_U, params.vocab_size), rows, params, None)
    x_RV = x_RV.log_softmax(dim=1)
    if beta_B is None or not any(params.noisy):
        scores_RC, ids_RC = x_RV.topk(num_children, dim=1)
        return ids_RC, scores_RC
    values_RS, ids_RS = x_RV.topk(min(max(SHORTLIST, num_children), x_RV.shape[1]), dim=1)
    of_R = rows.sequence_R
    noise_RS = gumbel_at(params.seed_B[of_R], rows.position_R, params.choice_B[of_R], ids_RS)
    is_noisy_R1 = (params.temperature_B[of_R] > 0).unsqueeze(1)
    seen_RS = (beta_B[of_R].unsqueeze(1) * (values_RS + noise_RS)).log_softmax(dim=1)
    scores_RS = torch.where(is_noisy_R1, seen_RS, values_RS)
    scores_RC, best_RC = scores_RS.topk(num_children, dim=1)
    return ids_RS.gather(1, best_RC), scores_RC


def _of_target(
    logits_RU: torch.Tensor, target_ids_U: torch.Tensor | None, vocab_size: int
) -> torch.Tensor:
    """Return the logits [R, V] by the target's token ids; ids outside the draft vocabulary get -inf."""
    if target_ids_U is None:
        return logits_RU
    logits_RV = logits_RU.new_full((len(logits_RU), vocab_size), NEVER)
    return logits_RV.index_copy_(1, target_ids_U, logits_RU)


def _rank_by_kernel(
    logits_RU: torch.Tensor,
    target_ids_U: torch.Tensor | None,
    rows: SamplingRows | None,
    params: BatchParams,
    beta_B: torch.Tensor | None,
    num_children: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the work of `rank` in two launches. If no other parameter needs `process`, top-k, top-p and
    min-p are not applied: they cut unlikely tokens, and drafts cannot change the output."""
    from eyas.kernels.rank import top

    if rows is None:
        scores_RC, ids_RC = top(
            logits_RU, num_children, target_ids_U=target_ids_U, pdl=logits_RU.is_cuda
        )
        return ids_RC, scores_RC
    temperature_B = params.temperature_B if any(params.noisy) else None
    if params.is_changed_before_temperature:
        logits_RU = _of_target(logits_RU, target_ids_U, params.vocab_size)
        logits_RU, target_ids_U = process(logits_RU, rows, params, None), None
        if temperature_B is not None:  # they are divided by it already
            temperature_B = (temperature_B > 0).to(torch.float32)
    scores_RC, ids_RC = top(
        logits_RU,
        num_children,
        target_ids_U=target_ids_U,
        sequence_R=rows.sequence_R,
        position_R=rows.position_R,
        temperature_B=temperature_B,
        seed_B=params.seed_B,
        choice_B=params.choice_B,
        beta_B=beta_B,
        pdl=logits_RU.is_cuda,
    )
    return ids_RC, scores_RC


_Storage = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Tokens, scores and parents [B, P] of a pool, with kernels."""


@dataclass(slots=True)
class Frontier:
    """The nodes that are expanded next.

    pool_BK: their indices in the pool; -1 is the root. score_BK: sums of log-probabilities from the
    root. path_BKD: tokens on the path to each node, the root's excluded.
    """

    pool_BK: torch.Tensor
    score_BK: torch.Tensor
    path_BKD: torch.Tensor

    @classmethod
    def of_roots(cls, num: int, device: torch.device) -> Frontier:
        """Return the frontier of the roots, one node a sequence. Kernels do not read its values."""
        if usable(device):
            return cls(
                torch.empty((num, 1), dtype=torch.int64, device=device),
                torch.empty((num, 1), device=device),
                torch.empty((num, 1, 0), dtype=torch.int64, device=device),
            )
        return cls(
            torch.full((num, 1), -1, dtype=torch.int64, device=device),
            torch.zeros((num, 1), device=device),
            torch.empty((num, 1, 0), dtype=torch.int64, device=device),
        )


class Pool:
    """All candidates of B trees, level by level. capacity: most candidates of a tree."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._storage: _Storage | None = None
        self._tokens: list[torch.Tensor] = []
        self._parents: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []
        self._size = 0

    def add(
        self, frontier: Frontier, tokens_BKC: torch.Tensor, scores_BKC: torch.Tensor, keep: int
    ) -> tuple[Frontier, torch.Tensor]:
        """Add the children of a frontier to the pool. Returns the `keep` best of them as the next
        frontier, and the indices [B, keep] of their parents in the old frontier."""
        num, width, num_children = tokens_BKC.shape
        if usable(tokens_BKC.device):
            return self._add_by_kernel(frontier, tokens_BKC, scores_BKC, keep)
        cumulative_BE = (frontier.score_BK.unsqueeze(2) + scores_BKC).flatten(1)
        tokens_BE = tokens_BKC.flatten(1)
        self._tokens.append(tokens_BE)
        self._scores.append(cumulative_BE)
        self._parents.append(frontier.pool_BK.repeat_interleave(num_children, dim=1))
        start = self._size
        self._size += width * num_children
        if width == 1 and keep == num_children:  # already in order
            best_BK = torch.arange(keep, device=tokens_BE.device).expand(num, -1)
            score_BK = cumulative_BE
        else:
            score_BK, best_BK = cumulative_BE.sort(dim=1, descending=True, stable=True)
            score_BK, best_BK = score_BK[:, :keep], best_BK[:, :keep]
        depth = frontier.path_BKD.shape[2]
        if width == 1:
            parent_BK = torch.zeros_like(best_BK)
            above_BKD = frontier.path_BKD.expand(-1, best_BK.shape[1], -1)
        else:
            parent_BK = best_BK // num_children
            above_BKD = frontier.path_BKD.gather(1, parent_BK.unsqueeze(2).expand(-1, -1, depth))
        own_BK = tokens_BE if best_BK.shape == tokens_BE.shape else tokens_BE.gather(1, best_BK)
        path_BKD = torch.cat([above_BKD, own_BK.unsqueeze(2)], dim=2)
        return Frontier(start + best_BK, score_BK, path_BKD), parent_BK

    def tree(self, roots_B1: torch.Tensor, nodes: int, *, is_chain: bool) -> DraftTree:
        """Return the tree of the root and the best candidates of the pool, at most `nodes` in all."""
        if self._storage is not None:
            from eyas.kernels.grow import finish

            grown = finish(
                self._storage,
                self._size,
                roots_B1,
                nodes,
                is_chain=is_chain,
                pdl=roots_B1.is_cuda,
            )
            return DraftTree(*grown, is_chain=is_chain)
        tokens_BP, scores_BP = torch.cat(self._tokens, dim=1), torch.cat(self._scores, dim=1)
        legal_BP = scores_BP > NEVER
        if is_chain:
            tokens_BW = torch.cat([roots_B1, tokens_BP[:, : nodes - 1]], dim=1)
            sizes_B = 1 + legal_BP[:, : nodes - 1].sum(dim=1)
            return chain(tokens_BW, sizes_B)
        keep = min(nodes - 1, tokens_BP.shape[1])
        order_BP = scores_BP.sort(dim=1, descending=True, stable=True).indices[:, :keep]
        num_pool = tokens_BP.shape[1]
        kept_BW = torch.where(legal_BP.gather(1, order_BP), order_BP, num_pool).sort(dim=1).values
        sizes_B = 1 + (kept_BW < num_pool).sum(dim=1)
        places_BW = kept_BW.clamp(max=num_pool - 1)
        parents_BP = torch.cat(self._parents, dim=1)
        above_BW = parents_BP.gather(1, places_BW)  # index into the pool, -1 for the root
        node_BW = torch.searchsorted(kept_BW, above_BW.clamp(min=0)) + 1
        inner_BW = torch.where(above_BW < 0, 0, node_BW)
        padding_BW = kept_BW == num_pool
        parents_BW = torch.cat(
            [torch.full_like(roots_B1, -1), inner_BW.masked_fill(padding_BW, 0)], dim=1
        )
        tokens_BW = torch.cat([roots_B1, tokens_BP.gather(1, places_BW)], dim=1)
        return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain=False)

    def _add_by_kernel(
        self, frontier: Frontier, tokens_BKC: torch.Tensor, scores_BKC: torch.Tensor, keep: int
    ) -> tuple[Frontier, torch.Tensor]:
        from eyas.kernels.grow import extend

        num, width, num_children = tokens_BKC.shape
        if self._storage is None:
            shape, device = (num, self._capacity), tokens_BKC.device
            self._storage = (
                torch.empty(shape, dtype=torch.int64, device=device),
                torch.empty(shape, dtype=torch.float32, device=device),
                torch.empty(shape, dtype=torch.int64, device=device),
            )
        start = self._size
        self._size += width * num_children
        assert self._size <= self._capacity, "more candidates than there is room for"
        above = (frontier.pool_BK, frontier.score_BK, frontier.path_BKD)
        pool_BK, score_BK, path_BKD, parent_BK = extend(
            tokens_BKC, scores_BKC, above, self._storage, start, keep, pdl=tokens_BKC.is_cuda
        )
        return Frontier(pool_BK, score_BK, path_BKD), parent_BK
