"""Prompt lookup: propose the tokens that followed an earlier occurrence of the last tokens.

(A. Saxena, "Prompt lookup decoding", 2023.)

Promises: it reads the committed tokens on the device, so no step needs to land first. The occurrence
with the longest match is used, and the latest of equally long ones. If it reaches the end of the text,
its tokens are repeated.
Does not know: models.
"""

from __future__ import annotations

from eyas.draft.base import Drafter, TreeShape, roots_alone
from eyas.draft_tree import DraftTree
from eyas.ops.lookup import lookup
from eyas.runner.batch import Batch


class NgramDrafter(Drafter):
    """Proposes chains of tokens found earlier in the text.

    num_tokens: most proposed tokens. min_match: how many of the last tokens must match; max_match: how
    many are compared. Raises ValueError unless 1 <= min_match <= max_match.
    """

    sources = ("ngram",)

    def __init__(self, num_tokens: int, *, min_match: int = 2, max_match: int = 5) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"1 <= min_match <= max_match, not {min_match} and {max_match}")
        self.shape = TreeShape(num_tokens, 1, num_tokens + 1)
        self.min_match = min_match
        self.max_match = max_match

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        width = min(shape.nodes, self.shape.nodes)
        if width == 1 or not len(batch.rooted):
            return roots_alone(batch)
        tokens_AC = batch.table.tokens_AC
        proposed = lookup(
            tokens_AC,
            batch.seats_B,
            batch.roots_B,
            min(batch.max_length, tokens_AC.shape[1]),
            width,
            self.min_match,
            self.max_match,
        )
        return DraftTree(*proposed, is_chain=True)
