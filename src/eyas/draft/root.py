"""The drafter without a draft: each tree is its root. This is plain decoding.

Promises: trees of one node.
Does not know: tokens, networks.
"""

from __future__ import annotations

from eyas.draft.base import Drafter, TreeShape, roots_alone
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch


class RootDrafter(Drafter):
    """Proposes trees of one node, the root."""

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        return roots_alone(batch)
