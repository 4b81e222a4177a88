"""Masks of constrained node rows, filled on the host while the device runs the forward.

Promises: a row without a constraint is all ones; rows start zeroed, so a node its automaton refuses
allows nothing; an automaton that fails takes its own sequence down and no other.
Does not know: what the automata recognise.

Legend: R node rows, K 32-bit mask words.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Series

import numpy as np
import torch

from eyas.core import DraftTree
from eyas.engine.sequence import Sequence, Status
from eyas.runner.rows import PackedRows

log = logging.getLogger(__name__)


def fill_masks(
    rooted: Series[Sequence], tree: DraftTree, rows: PackedRows, vocab_size: int
) -> tuple[torch.Tensor, np.ndarray]:
    """[R, K] int32 on the rows' device, and bool [B, W] on the host: which nodes are legal."""
    num_words = -(-vocab_size // 32)
    mask_BWK = np.zeros((len(rooted), tree.width, num_words), dtype=np.int32)
    tokens, parents, sizes = (
        tree.tokens_BW.tolist(),
        tree.parents_BW.tolist(),
        tree.sizes_B.tolist(),
    )
    for b, sequence in enumerate(rooted):
        if sequence.constraint is None:
            mask_BWK[b] = -1
            continue
        if sequence.status is not Status.RUNNING or sequence.failure is not None:
            continue
        size = sizes[b]
        try:
            sequence.constraint.fill(tokens[b][:size], parents[b][:size], mask_BWK[b, :size])
        except Exception:
            log.exception("a constraint failed; its request ends")
            sequence.failure = "the output constraint failed while it was enforced"
            mask_BWK[b] = 0
    masks = torch.from_numpy(mask_BWK).to(rows.tokens_T.device)
    is_legal_BW = _legal_nodes(mask_BWK, np.array(tokens), np.array(parents))
    return masks[rows.sampling.sequence_R, rows.node_R], is_legal_BW


def _legal_nodes(mask_BWK: np.ndarray, tokens_BW: np.ndarray, parents_BW: np.ndarray) -> np.ndarray:
    """Whether the mask of its parent allows each node; roots are."""
    rows_B1 = np.arange(len(tokens_BW))[:, None]
    word_BW = mask_BWK[rows_B1, parents_BW.clip(min=0), tokens_BW // 32]
    is_legal_BW = ((word_BW.view(np.uint32) >> (tokens_BW % 32).astype(np.uint32)) & 1).astype(bool)
    is_legal_BW[:, :1] = True
    return is_legal_BW
