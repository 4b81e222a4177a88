"""The tokens that grammars allow while a draft tree grows, so that it grows where the text can go.

Promises: only where the host sees the tree as it grows (on the CPU; on a device that would wait for
every level). The automata stay where they are; what they worked out here, the step's own masks find
again.
Does not know: networks, what is done with the tree.

Legend: B sequences that draft, K frontier nodes, D draft tokens on the way to a node, R rows, V
vocabulary, U draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eyas.constraint.automaton import Automaton, Point
from eyas.constraint.fill import fill_points
from eyas.runner.batch import Batch
from eyas.sampling.process import NEVER, unpack_mask


@dataclass(slots=True, eq=False)
class LegalTokens:
    """automata: of the sequences that draft. target_ids_U: the target's id of each draft id; None where
    they are the same. A row in which nothing is legal is left as it is: what comes of it is pruned."""

    automata: Sequence[Automaton | None]
    target_ids_U: torch.Tensor | None
    vocab_size: int

    def masked(self, logits_RU: torch.Tensor, path_BKD: torch.Tensor) -> torch.Tensor:
        """The logits with -inf for what may not follow each frontier node."""
        num_nodes = path_BKD.shape[1]
        places: list[tuple[int, Point]] = []
        for b, (automaton, paths) in enumerate(zip(self.automata, path_BKD.tolist(), strict=True)):
            if automaton is None:
                continue
            for k, path in enumerate(paths):
                point = automaton.look(path)
                if point is not None:
                    places.append((b * num_nodes + k, point))
        if not places:
            return logits_RU
        fill_points((point for _, point in places), -(-self.vocab_size // 32))
        masks = [point.mask for _, point in places if point.mask is not None]
        rows = [row for row, point in places if point.mask is not None]
        if not masks:
            return logits_RU
        words_NK = torch.from_numpy(np.stack(masks))
        legal_NV = unpack_mask(words_NK, self.vocab_size)
        legal_NU = legal_NV if self.target_ids_U is None else legal_NV[:, self.target_ids_U]
        some_N1 = legal_NU.any(dim=1, keepdim=True)
        logits_RU = logits_RU.clone()
        logits_RU[rows] = logits_RU[rows].masked_fill(~legal_NU & some_N1, NEVER)
        return logits_RU


def legal_tokens(
    batch: Batch, own_B: torch.Tensor, target_ids_U: torch.Tensor | None
) -> LegalTokens | None:
    """What the drafting sequences own_B may say; None where nothing restrains them, or on a device."""
    if batch.automata is None or own_B.device.type != "cpu":
        return None
    automata = batch.automata()
    own = [automata[b] for b in own_B.tolist()]
    if all(automaton is None for automaton in own):
        return None
    return LegalTokens(own, target_ids_U, batch.params.vocab_size)
