"""The door of drafting: a drafter proposes a tree for every rooted sequence of a batch.

Promises: whatever a drafter proposes, the output stays what it would be without it; a drafter decides
only how many tokens one step can yield.
Does not know: the target's logits before they are there, sampling parameters beyond `batch.params`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from eyas.core import DraftTree, Verdict
from eyas.runner.batch import Batch
from eyas.runner.runner import Output


class Drafter(Protocol):
    """width: most nodes of a tree, the root included. lookback: how many of a sequence's last stored
    positions its own rows may lack (they are not shared). taps: hidden states it wants observed."""

    width: int
    lookback: int
    taps: tuple[int, ...]

    def propose(self, batch: Batch) -> DraftTree:
        """A tree of at most `batch.width` nodes for each rooted sequence; also called for batches
        that store prompt chunks only, so that a drafter with rows of its own keeps up."""
        ...

    def observe(self, batch: Batch, output: Output, verdict: Verdict) -> None:
        """See what the target made of it."""
        ...


def chain(tokens_BW: torch.Tensor, sizes_B: torch.Tensor) -> DraftTree:
    """A tree in which every node continues the one before it."""
    width = tokens_BW.shape[1]
    parents_W = torch.arange(-1, width - 1, device=tokens_BW.device)
    return DraftTree(tokens_BW, parents_W.expand(tokens_BW.shape[0], -1), sizes_B, is_chain=True)


def root_tokens(batch: Batch) -> torch.Tensor:
    """[B, 1] the last known token of each rooted sequence."""
    return batch.table.tokens_AC[batch.seats_B, batch.roots_B].unsqueeze(1)
