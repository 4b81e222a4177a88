"""Prompt lookup: propose the tokens that followed an earlier occurrence of the last tokens.

(A. Saxena, "Prompt lookup decoding", 2023.)

Promises: it reads the committed tokens on the device, so no step needs to land first. The occurrence
with the longest match is used, and the latest of equally long ones. If it reaches the end of the text,
its tokens are repeated.
Does not know: models.

Legend: B sequences, L positions, W nodes.
"""

from __future__ import annotations

import torch

from eyas.core import DraftTree
from eyas.draft.base import Drafter, TreeShape, chain, root_tokens, roots_alone
from eyas.kernels import usable
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
        if usable(batch.table.device):
            return self._propose_by_kernel(batch, width)
        history_BL, roots_B = batch.history_BL, batch.roots_B
        num_positions = history_BL.shape[1]
        columns_L = torch.arange(num_positions, device=history_BL.device)
        score_BL = torch.zeros_like(history_BL)
        agrees_BL = columns_L < roots_B.unsqueeze(1)
        for back in range(min(self.max_match, num_positions)):
            wanted_B1 = history_BL.gather(1, (roots_B - back).clamp(min=0).unsqueeze(1))
            shifted_BL = history_BL.roll(back, dims=1)
            agrees_BL = agrees_BL & (shifted_BL == wanted_B1) & (columns_L >= back)
            score_BL = score_BL + agrees_BL
        place_B = (score_BL * num_positions + columns_L).argmax(dim=1)
        found_B = score_BL.gather(1, place_B.unsqueeze(1)).squeeze(1) >= self.min_match
        if history_BL.device.type == "cpu" and not bool(found_B.any()):
            return roots_alone(batch)
        period_B1 = (roots_B - place_B).clamp(min=1).unsqueeze(1)
        offsets_W = torch.arange(width - 1, device=history_BL.device)
        source_BW = place_B.unsqueeze(1) + 1 + offsets_W % period_B1
        drafted_BW = history_BL.gather(1, source_BW.clamp(max=num_positions - 1))
        sizes_B = torch.where(found_B, width, 1)
        return chain(torch.cat([root_tokens(batch), drafted_BW], dim=1), sizes_B)

    def _propose_by_kernel(self, batch: Batch, width: int) -> DraftTree:
        """Do the work of `propose` in two launches, reading the sequence table directly."""
        from eyas.kernels.lookup import propose

        history_AC = batch.table.tokens_AC
        num_columns = min(batch.max_length, history_AC.shape[1])
        tokens_BW, parents_BW, sizes_B = propose(
            history_AC,
            batch.seats_B,
            batch.roots_B,
            num_columns,
            width,
            self.min_match,
            min(self.max_match, num_columns),
        )
        return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain=True)
