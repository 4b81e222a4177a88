"""The loss of a head: divergence from the target's distribution at every level of training-time
test.

Promises: the loss of a level is the mean KL divergence from the target's softmax over the draft
vocabulary, over rows where the target's choice is in that vocabulary; the weight of a level is
`decay` times that of the level before. Accuracy and acceptance length count every answer row.
Does not know: where batches come from, optimizers.

Legend: R trained rows, P positions whose target distribution is used, U draft vocabulary, D hidden
size, V vocabulary, Z levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eyas.train.head.batches import Batch
from eyas.train.head.features import States
from eyas.train.head.network import TrainableHead
from eyas.train.head.target import float_logits

_MAX_STORED_LOGITS = 1 << 28
"""If a level has more logits than this, the backward pass computes them again."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over a batch, on the device.

    total: the loss. divergence_Z: by level, over rows_Z rows whose target choice is in the draft
    vocabulary. counted_Z: trained rows. hits_Z: trained rows whose most likely token is the
    target's choice. run: consecutive hits from level 0 on, summed over rows.
    """

    total: Tensor
    divergence_Z: Tensor
    rows_Z: Tensor
    counted_Z: Tensor
    hits_Z: Tensor
    run: Tensor


class HeadLoss:
    """The loss function.

    target_UD: rows of the target's logits head for the draft vocabulary. draft_of_V: draft id of
    each target id, -1 for none. decay: weight of a level relative to the level before.
    """

    def __init__(
        self, target_UD: Tensor, draft_of_V: Tensor, decay: float, num_levels: int
    ) -> None:
        self.target_UD = target_UD
        self.draft_of_V = draft_of_V
        scale_Z = torch.tensor([decay**level for level in range(num_levels)])
        self._scale_Z = scale_Z.to(target_UD.device)

    def __call__(self, head: TrainableHead, batch: Batch, states: States) -> LossSums:
        """Run all levels of training-time test on a batch, and return the sums."""
        with torch.no_grad(), torch.autocast(self.target_UD.device.type, enabled=False):
            final_PD = states.final_PD.to(self.target_UD.dtype)
            logits_PU = float_logits(final_PD, self.target_UD)
            chances_PU = logits_PU.log_softmax(-1)
            choice_P = self.draft_of_V[states.choice_P]
        losses, counts, counted, hits = [], [], [], []
        running_R = torch.ones_like(batch.row_R, dtype=torch.bool)
        run = torch.zeros((), device=running_R.device)
        for level, hidden_RD in enumerate(head.levels(batch, states.tapped)):
            at_R = batch.target_ZR[level]
            is_trained_R = batch.is_trained_ZR[level]
            choice_R = choice_P[at_R]
            keep_R = (is_trained_R & (choice_R >= 0)).float()
            arguments = (hidden_RD, head.head.weight, chances_PU, at_R, keep_R)
            if len(at_R) * len(self.target_UD) > _MAX_STORED_LOGITS and torch.is_grad_enabled():
                summed, best_R = checkpoint(_level, *arguments, use_reentrant=False)
            else:
                summed, best_R = _level(*arguments)
            losses.append(summed)
            counts.append(keep_R.sum())
            hit_R = (best_R == choice_R) & is_trained_R
            running_R = running_R & hit_R
            counted.append(is_trained_R.sum())
            hits.append(hit_R.sum())
            run = run + running_R.sum()
        divergence_Z, rows_Z = torch.stack(losses), torch.stack(counts)
        total = (self._scale_Z * divergence_Z / rows_Z.clamp(min=1)).sum()
        return LossSums(
            total,
            divergence_Z.detach(),
            rows_Z,
            torch.stack(counted),
            torch.stack(hits),
            run,
        )


def _level(
    hidden_RD: Tensor, weight_UD: Tensor, chances_PU: Tensor, at_R: Tensor, keep_R: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sum of divergences over the rows of `keep_R`, and the most likely draft ids [R]."""
    logits_RU = F.linear(hidden_RD, weight_UD).float()
    own_RU = logits_RU.log_softmax(-1)
    wanted_RU = chances_PU[at_R]
    divergence_R = (wanted_RU.exp() * (wanted_RU - own_RU)).sum(-1)
    return (divergence_R * keep_R).sum(), logits_RU.detach().argmax(-1)
