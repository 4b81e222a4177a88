"""The drafter that proposes nothing: a tree is its root. This is plain decoding.

Promises: width 1. Does not know: anything.
"""

from __future__ import annotations

from eyas.core import DraftTree
from eyas.draft.base import Drafter, TreeShape, roots_alone
from eyas.runner.batch import Batch


class RootDrafter(Drafter):
    """Just the roots."""

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        return roots_alone(batch)
