"""Token embedding: rows of a table.

Promises: exact copies of the checkpoint's rows. Does not know: the tokenizer.

Legend: T rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch

from eyas.layers.compute import Compute


class Embedding:
    """The table of token embeddings; a head that shares the weight reads `weight_VD`.

    scale: multiplies the rows.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        compute: Compute,
        *,
        scale: float = 1.0,
    ) -> None:
        self._scale = (
            None if scale == 1 else torch.tensor(scale, dtype=compute.dtype, device=compute.device)
        )
        self.weight_VD = compute.empty(vocab_size, hidden_size)

    def __call__(self, tokens_T: torch.Tensor) -> torch.Tensor:
        rows_TD = self.weight_VD.index_select(0, tokens_T)
        return rows_TD if self._scale is None else rows_TD * self._scale
