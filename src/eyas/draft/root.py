"""The drafter that proposes nothing: a tree is its root. This is plain decoding.

Promises: width 1. Does not know: anything.
"""

from __future__ import annotations

import torch

from eyas.core import DraftTree, Verdict
from eyas.draft.base import chain, root_tokens
from eyas.runner.batch import Batch
from eyas.runner.runner import Output


class RootDrafter:
    """Just the roots."""

    width = 1
    lookback = 0
    taps: tuple[int, ...] = ()

    def propose(self, batch: Batch) -> DraftTree:
        tokens_B1 = root_tokens(batch)
        return chain(tokens_B1, torch.ones_like(tokens_B1[:, 0]))

    def observe(self, batch: Batch, output: Output, verdict: Verdict) -> None:
        return None
