"""Run the model over rows: logits and tapped hidden states.

Promises: this is the one place where rows are padded to a count with a fixed reduction order.
Logits are float32, and only rows that want logits reach the output layer.
Does not know: schedules, trees, sampling.

Legend: T rows, R logits rows, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from eyas.attention.base import AttentionBackend, OutputRows, PlannedRows
from eyas.cache.slots import NULL_SLOT
from eyas.kernels import usable
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder
from eyas.runner.leader import Leader
from eyas.runner.rows import ForwardRows
from eyas.runner.sequence_share import AllRows, SequenceRanks
from eyas.runner.step_inputs import MOST_ROWS_WITH_PROMPTS


@dataclass(slots=True, eq=False)
class Output:
    """The result of a forward pass.

    logits_RV: float32; None if no row wanted logits. taps: hidden states [T, D] of each tapped layer,
    without padding rows. write_slots_T: the slot of each row.
    """

    logits_RV: torch.Tensor | None
    taps: list[torch.Tensor]
    write_slots_T: torch.Tensor


def plan_rows(
    rows: ForwardRows,
    backend: AttentionBackend,
    order: RowOrder,
    rank_rows: tuple[int, ...] = (),
    *,
    ends_early: bool = False,
) -> PlannedRows:
    """Pad the rows of a forward pass to a count with a fixed reduction order, and plan its
    attention. rank_rows: as `PlannedRows`. ends_early: the network computes no outputs that are not
    read."""
    tokens_T, positions_T, slots_T = rows.tokens_T, rows.positions_T, rows.write_slots_T
    missing = order.pad(len(tokens_T)) - len(tokens_T)
    if missing:
        tokens_T, positions_T = pad(tokens_T, (0, missing)), pad(positions_T, (0, missing))
        slots_T = pad(slots_T, (0, missing), value=NULL_SLOT)
    attend, outputs = backend.plan(rows.layout, slots_T), None
    if ends_early and rows.num_outputs is not None:
        num_rows = order.pad(rows.num_outputs) if rows.num_outputs else 0
        if num_rows < len(tokens_T):
            layout, slots_R = rows.layout.without_chunks(), slots_T[:num_rows]
            outputs = OutputRows(num_rows, backend.plan(layout, slots_R) if num_rows else attend)
    return PlannedRows(tokens_T, positions_T, attend, rank_rows, outputs)


def wanted_logits(
    rows: ForwardRows,
    hidden_TD: torch.Tensor,
    logits: Callable[[torch.Tensor], torch.Tensor],
    order: RowOrder,
) -> torch.Tensor | None:
    """Return the logits [R, V] of the rows that want them; None if there are none."""
    if rows.logits_rows_R is None:
        return None
    num_wanted = len(rows.logits_rows_R)
    padded = order.pad(num_wanted)
    if num_wanted == rows.num_leading and padded <= len(hidden_TD):
        hidden_RD = hidden_TD[:padded]
    else:
        hidden_RD = hidden_TD[pad(rows.logits_rows_R, (0, padded - num_wanted))]
    return logits(hidden_RD)[:num_wanted]


MOST_SHARED_ROWS = 4096
"""The most rows of logits for which the shared buffer is used."""


class ModelRunner:
    """A model with an attention backend.

    On a device all forward passes write their logits to one buffer: the logits of one are read
    before the next one runs. leader: announces forward passes to the other ranks; None where there are
    none, and on these ranks. sequences: divides the rows where ranks have sequences of their own; None
    runs all rows here.
    """

    def __init__(
        self,
        model: Decoder,
        backend: AttentionBackend,
        leader: Leader | None = None,
        sequences: SequenceRanks | None = None,
    ) -> None:
        self.model = model
        self.backend = backend
        self.leader = leader
        self._sequences = sequences
        if leader is not None and backend.kv.states is not None:
            backend.kv.states.on_change = leader.change_states
        if leader is not None and backend.kv.windows is not None:
            backend.kv.windows.on_change = leader.change_windows
        self.order = model.order
        self._logits_RV: torch.Tensor | None = None
        self._taps: list[torch.Tensor] = []

    @property
    def captures_prompts(self) -> bool:
        """Whether forward passes with prompt chunks can be captured as CUDA graphs."""
        is_alone = self.leader is None and self._sequences is None
        return is_alone and self.backend.plans_chunks

    @torch.inference_mode()
    def forward(self, rows: ForwardRows, taps: tuple[int, ...] = ()) -> Output:
        """Run one pass over the rows; store the keys and values of every row.

        taps: for each number k, the residual stream after k layers is returned (0 is the embedding).
        """
        if self.leader is None:
            return self._forward(rows, taps)
        with self.leader.forward(rows, taps):
            return self._forward(rows, taps)

    def _forward(self, rows: ForwardRows, taps: tuple[int, ...]) -> Output:
        share = AllRows(rows) if self._sequences is None else self._sequences.own(rows)
        ends_early = self._sequences is None and self.model.ends_early(taps)
        planned = plan_rows(
            share.rows, self.backend, self.order, share.rank_rows, ends_early=ends_early
        )
        hidden_TD, tapped = self.model.forward(planned, taps)
        if rows.logits_rows_R is not None:
            hidden_TD = share.everywhere(hidden_TD)
        return Output(
            wanted_logits(rows, hidden_TD, self._logits, self.order),
            self._shared_taps(rows, [share.on_first(tap) for tap in tapped]),
            rows.write_slots_T,
        )

    def _shared_taps(self, rows: ForwardRows, taps: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return hidden states in buffers that captured forward passes with prompt chunks have in
        common: there are many of them, and each would keep its own."""
        if rows.layout.chunks is None or not taps or not usable(taps[0].device):
            return taps
        num_rows = len(taps[0])
        if not self._taps or len(self._taps[0]) < num_rows:
            if taps[0].is_cuda and torch.cuda.is_current_stream_capturing():
                return taps  # the buffers would be memory of that graph
            most = max(num_rows, MOST_ROWS_WITH_PROMPTS)
            self._taps = [tap.new_empty((most, tap.shape[1])) for tap in taps]
        shared = [buffer[:num_rows] for buffer in self._taps]
        for buffer, tap in zip(shared, taps, strict=True):
            buffer.copy_(tap)
        return shared

    def _logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        num_rows = len(hidden_RD)
        if not usable(hidden_RD.device) or num_rows > MOST_SHARED_ROWS:
            return self.model.logits(hidden_RD)
        if self._logits_RV is None or len(self._logits_RV) < num_rows:
            shape = (num_rows, self.model.spec.vocab_size)
            self._logits_RV = torch.empty(shape, dtype=torch.float32, device=hidden_RD.device)
        return self.model.logits(hidden_RD, self._logits_RV[:num_rows])
