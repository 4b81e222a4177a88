"""Rows in, logits and tapped hidden states out.

Promises: rows are padded to what the machine needs for a fixed reduction order, once, here; logits are
float32; only wanted rows reach the output layer.
Does not know: schedules, trees, sampling.

Legend: T rows, R logits rows, V vocabulary, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from eyas.attention.base import AttentionBackend
from eyas.cache.slots import NULL_SLOT
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder
from eyas.runner.rows import PackedRows


@dataclass(slots=True, eq=False)
class Output:
    """logits_RV: float32 (None when no row wanted any); taps: [T, D] each, real rows only."""

    logits_RV: torch.Tensor | None
    taps: list[torch.Tensor]


class ModelRunner:
    """One model behind one attention backend."""

    def __init__(self, model: Decoder, backend: AttentionBackend, order: RowOrder) -> None:
        self.model = model
        self.backend = backend
        self.order = order

    @torch.inference_mode()
    def forward(self, rows: PackedRows, taps: tuple[int, ...] = ()) -> Output:
        """One pass over the rows; stores keys and values of every row on the way."""
        num_rows = len(rows.tokens_T)
        missing = self.order.pad(num_rows) - num_rows
        tokens_T, positions_T, slots_T = rows.tokens_T, rows.positions_T, rows.write_slots_T
        if missing:
            tokens_T, positions_T = pad(tokens_T, (0, missing)), pad(positions_T, (0, missing))
            slots_T = pad(slots_T, (0, missing), value=NULL_SLOT)
        attend = self.backend.plan(rows.layout, slots_T)
        hidden_TD, tapped = self.model.forward(tokens_T, positions_T, attend, taps)
        tapped = [tap[:num_rows] for tap in tapped]
        if rows.logits_rows_R is None:
            return Output(None, tapped)
        num_wanted = len(rows.logits_rows_R)
        padded = self.order.pad(num_wanted)
        if num_wanted == rows.num_node_rows and padded <= len(hidden_TD):
            hidden_RD = hidden_TD[:padded]
        else:
            hidden_RD = hidden_TD[pad(rows.logits_rows_R, (0, padded - num_wanted))]
        return Output(self.model.logits(hidden_RD)[:num_wanted], tapped)
