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

Legend: B sequences, Q frontier nodes, J children a node, X pool entries, R rows, V vocabulary, U draft
vocabulary, P draft tokens from the root to a node, W nodes of the tree.
"""

from __future__ import annotations

import torch

from eyas.draft_tree import DraftTree
from eyas.ops.add_level import Frontier, PoolStorage, add_level
from eyas.ops.keep_best import keep_best
from eyas.ops.top_tokens import at_target_ids, top_tokens
from eyas.sampling.params import BatchParams
from eyas.sampling.process import SamplingRows, process


def best_tokens(
    logits_RU: torch.Tensor,
    target_ids_U: torch.Tensor | None,
    rows: SamplingRows | None,
    params: BatchParams,
    beta_B: torch.Tensor | None,
    num_children: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best next tokens of each row: target ids [R, J] and scores [R, J], best first. The
    scores are log-probabilities; -inf for tokens that may not be chosen.

    target_ids_U: the target's token id of each draft id; None if they are the same. rows: None if no
    sampling parameter has an effect. beta_B: by sequence; None ranks without noise (plain top-k).
    """
    temperature_B = params.temperature_B if any(params.noisy) else None
    filters = params.filters
    if rows is not None and params.is_changed_before_temperature:
        logits_RU = at_target_ids(logits_RU, target_ids_U, params.vocab_size)
        logits_RU, target_ids_U = process(logits_RU, rows, params, None), None
        filters = None
        if temperature_B is not None:  # the logits are divided by it already
            temperature_B = (temperature_B > 0).to(torch.float32)
    return top_tokens(
        logits_RU,
        target_ids_U,
        num_children,
        params.vocab_size,
        None if rows is None else rows.sequence_R,
        None if rows is None else rows.position_R,
        temperature_B,
        params.seed_B,
        params.choice_B,
        beta_B,
        filters,
    )


class Pool:
    """All candidates of B trees, level by level. capacity: most candidates of a tree."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._storage: PoolStorage | None = None
        self._size = 0

    def add(
        self, frontier: Frontier, tokens_BQJ: torch.Tensor, scores_BQJ: torch.Tensor, keep: int
    ) -> tuple[Frontier, torch.Tensor]:
        """Add the children of a frontier. Returns the `keep` best of them as the next frontier, and
        [B, keep] the index of each one's parent in the old one."""
        num, width, num_children = tokens_BQJ.shape
        if self._storage is None:
            self._storage = PoolStorage.new(num, self._capacity, tokens_BQJ.device)
        start = self._size
        self._size += width * num_children
        assert self._size <= self._capacity, "more candidates than there is room for"
        return add_level(tokens_BQJ, scores_BQJ, frontier, self._storage, start, keep)

    def tree(self, roots_B1: torch.Tensor, nodes: int, *, is_chain: bool) -> DraftTree:
        """Return the trees of the root and the best of the pool, at most `nodes` nodes in all."""
        assert self._storage is not None, "a pool without a level has no tree"
        return keep_best(roots_B1, self._storage, self._size, nodes, is_chain)
