"""The networks that draft: a model of its own, or a head that reads the target's hidden states.

Promises: one door for both. A network has a row for every position from `first_position` on, made of
the token there and, for a head, of the target's feature one position before; a row's keys and values
live in the slot of its position, in a store of the network's own with the same slot numbers (and
scratch slots behind them for the inner nodes of a tree). Features are kept by slot too, so that rows
can be made late, and after a prefix hit.
Does not know: trees, schedules, how candidates are ranked.

Legend: T rows, R rows that want logits, F feature size, S slots, U draft vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch

from eyas.attention.base import AttentionBackend
from eyas.cache.kv import zeros_on_demand
from eyas.models import Decoder
from eyas.models.heads import DraftHead
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import Output, plan_rows, wanted_logits


class DraftNetwork(Protocol):
    """first_position: the first position with a row. taps: what it reads of the target; empty for a
    network that reads tokens alone. target_ids_U: the target's id of each of its own token ids."""

    first_position: int
    taps: tuple[int, ...]
    target_ids_U: torch.Tensor | None
    draft_vocab_size: int

    def remember(self, output: Output) -> None:
        """Keep the target's features of a step, by slot."""
        ...

    def recall(self, slots_T: torch.Tensor) -> torch.Tensor | None:
        """The features [T, F] that were kept for these slots."""
        ...

    def forward(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Float32 logits [R, U] of the wanted rows (None where none are wanted), and the state of
        every row: the features of the rows that continue it."""
        ...

    def beta(self, temperature: float) -> float:
        """How far its logits are trusted when candidates are ranked with the target's noise."""
        ...


class ModelNetwork:
    """A smaller model of the same vocabulary."""

    first_position = 0
    taps: tuple[int, ...] = ()
    target_ids_U: torch.Tensor | None = None

    def __init__(self, model: Decoder, backend: AttentionBackend) -> None:
        self._model, self._backend, self._order = model, backend, model.order
        self.draft_vocab_size = model.spec.vocab_size

    def remember(self, output: Output) -> None:
        return None

    def recall(self, slots_T: torch.Tensor) -> torch.Tensor | None:
        return None

    def beta(self, temperature: float) -> float:
        return 1.0

    @torch.inference_mode()
    def forward(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        planned = plan_rows(rows, self._backend, self._order)
        hidden_TD, _ = self._model.forward(planned.tokens_T, planned.positions_T, planned.attend)
        return wanted_logits(rows, hidden_TD, self._model.logits, self._order), None


MAX_PENDING_ROWS = 512
"""Rows of the target whose states wait to be fused."""


class HeadNetwork:
    """An EAGLE or MTP head. The target's states are fused into features when they are needed, or when
    many have come together: steps in which nobody drafts then cost next to nothing."""

    first_position = 1

    def __init__(self, head: DraftHead, backend: AttentionBackend, num_slots: int) -> None:
        self._head, self._backend, self._order = head, backend, head.order
        self.taps = head.spec.taps
        self.target_ids_U = head.target_ids_V
        self.draft_vocab_size = head.spec.draft_vocab_size
        self._features_SF = zeros_on_demand(
            (num_slots + 1, head.feature_size), dtype=head.dtype, device=head.device
        )
        self._betas = sorted(head.spec.calibration.items())
        self._pending: list[Output] = []
        self._num_pending = 0

    def remember(self, output: Output) -> None:
        self._pending.append(Output(None, output.taps, output.write_slots_T))
        self._num_pending += len(output.write_slots_T)
        is_replayed = (
            output.write_slots_T.device.type != "cpu"
        )  # the next step overwrites its states
        if is_replayed or self._num_pending >= MAX_PENDING_ROWS:
            self._fuse()

    def recall(self, slots_T: torch.Tensor) -> torch.Tensor | None:
        self._fuse()
        return self._features_SF.index_select(0, slots_T)

    def _fuse(self) -> None:
        """Features of what waits, all in one product; a slot written twice keeps what came last."""
        if not self._pending:
            return
        waiting, self._pending, self._num_pending = self._pending, [], 0
        taps = [
            states[0] if len(waiting) == 1 else torch.cat(states)
            for states in zip(*(output.taps for output in waiting), strict=True)
        ]
        features = self._head.combine(taps).split([len(each.write_slots_T) for each in waiting])
        for output, features_TF in zip(waiting, features, strict=True):
            self._features_SF.index_copy_(0, output.write_slots_T, features_TF)

    def beta(self, temperature: float) -> float:
        """As the head's training fitted it, from the nearest temperature that was tried."""
        if not self._betas:
            return 1.0
        return min(self._betas, key=lambda pair: abs(pair[0] - temperature))[1]

    @torch.inference_mode()
    def forward(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        assert features_TF is not None, "a head reads features"
        num_rows = len(rows.tokens_T)
        planned = plan_rows(rows, self._backend, self._order)
        missing = len(planned.tokens_T) - num_rows
        if missing:
            features_TF = torch.nn.functional.pad(features_TF, (0, 0, 0, missing))
        hidden_TD, states_TF = self._head.forward(
            planned.tokens_T, planned.positions_T, features_TF, planned.attend
        )
        logits_RU = wanted_logits(rows, hidden_TD, self._head.logits, self._order)
        return logits_RU, states_TF[:num_rows]
