"""What a drafting network stores of a prefix, for moving it to another engine.

Promises: the tensors hold all that the network needs to continue a prefix: its own keys and values and,
for a head, what it reads of the target. Rows that are not computed yet are computed later, where the
prefix is continued.
Does not know: where a prefix comes from, trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from eyas.draft.catch_up import RowTracker
from eyas.draft.network import DraftNetwork


@dataclass(frozen=True, slots=True)
class PrefixRows:
    """The stored rows of one network, and which of them are computed."""

    network: DraftNetwork
    tracker: RowTracker

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors, whose first dimension is slots, up to date."""
        return self.network.slot_tensors()

    def num_made(self, slots: np.ndarray) -> int:
        """Return how many leading positions of a prefix have rows. slots: of the prefix."""
        return self.tracker.num_made(slots)

    def mark(self, slots: np.ndarray, num_made: int) -> None:
        """Note that the first `num_made` of these slots hold rows, and the others do not."""
        self.tracker.mark(slots[:num_made], is_made=True)
        self.tracker.mark(slots[num_made:], is_made=False)
