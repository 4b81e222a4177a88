"""Drafting networks: a smaller model, or a head that reads the target's hidden states.

Promises: both have one interface. A network has a row for each position from `first_position` on,
computed from the token at the position and, for a head, from the target's feature at the position
before. Keys and values of a row are stored in the slot of its position, in a store of the network with
the same slot numbers; scratch slots after them hold inner nodes of trees. Features, or the hidden
states that they are made of, are stored by slot too, so that rows can be computed later, and after a
prefix cache hit.
Does not know: trees, when rows are computed, how candidates are ranked.

Legend: T rows, R rows that want logits, F feature size, S slots, U draft vocabulary, X stored
values of a slot.
"""

from __future__ import annotations

from typing import Protocol

import torch

from eyas.attention.base import AttentionBackend
from eyas.cache.memory import zeros_on_demand
from eyas.models import Decoder
from eyas.models.heads import DraftHead, HeadSpec
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import Output, plan_rows, wanted_logits


class DraftNetwork(Protocol):
    """The interface of drafting networks.

    first_position: the first position with a row. taps: layers of the target whose hidden states it
    reads; empty if it reads tokens only. target_ids_U: the target's token id of each id of the draft
    vocabulary; None if they are the same.
    """

    first_position: int
    taps: tuple[int, ...]
    target_ids_U: torch.Tensor | None
    draft_vocab_size: int

    def remember(self, output: Output, *, may_hold: bool) -> None:
        """Store the target's features of a step, by slot. may_hold: later steps leave the output as it
        is, so it may be stored when features are next read; else nothing may be held (`store_held`)."""
        ...

    def store_held(self) -> None:
        """Store what is held."""
        ...

    def recall(self, slots_T: torch.Tensor) -> torch.Tensor | None:
        """Return the stored features [T, F] of these slots; None if the network reads none."""
        ...

    def forward(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Run the network over rows and store their keys and values.

        Returns the float32 logits [R, U] of the wanted rows (None if none are wanted) and the states
        [T, F] of all rows, or of those whose outputs are read: the features for rows of the next
        position (None if the network reads none).
        """
        ...

    def slot_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return what is stored by slot: tensors whose first dimension is slots. What was remembered is
        stored first."""
        ...

    def beta(self, temperature: float) -> float:
        """Return the factor on logits plus noise when candidates are ranked with the target's noise
        (see `eyas.draft.grow`). Values below 1 make the scores of candidates more equal."""
        ...


class ModelNetwork:
    """A smaller model with the target's vocabulary."""

    first_position = 0
    taps: tuple[int, ...] = ()
    target_ids_U: torch.Tensor | None = None

    def __init__(self, model: Decoder, backend: AttentionBackend) -> None:
        self._model, self._backend, self._order = model, backend, model.order
        self.draft_vocab_size = model.spec.vocab_size

    def remember(self, output: Output, *, may_hold: bool) -> None:
        return None

    def store_held(self) -> None:
        return None

    def recall(self, slots_T: torch.Tensor) -> torch.Tensor | None:
        return None

    def slot_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._backend.kv.layers)

    def beta(self, temperature: float) -> float:
        return 1.0

    @torch.inference_mode()
    def forward(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        ends_early = self._model.ends_early()
        planned = plan_rows(rows, self._backend, self._order, ends_early=ends_early)
        hidden_TD, _ = self._model.forward(planned)
        return wanted_logits(rows, hidden_TD, self._model.logits, self._order), None


MAX_HELD_ROWS = 512
"""Most rows of the target whose hidden states are held before they are stored."""


def stored_size(spec: HeadSpec, device: torch.device) -> int:
    """Return the number of values that a head stores for each slot.

    On a CPU these are the target's hidden states, which are fused into features when rows of the head
    are computed: what is never read costs no product. Elsewhere memory is scarcer than time, and
    features are stored.
    """
    if device.type == "cpu":
        return len(spec.taps) * spec.tap_size
    return spec.feature_size


class HeadNetwork:
    """An EAGLE or MTP head."""

    first_position = 1

    def __init__(self, head: DraftHead, backend: AttentionBackend, num_slots: int) -> None:
        self._head, self._backend, self._order = head, backend, head.order
        self.taps = head.spec.taps
        self.target_ids_U = head.target_ids_V
        self.draft_vocab_size = head.spec.draft_vocab_size
        self._stores_states = head.device.type == "cpu"
        size = stored_size(head.spec, head.device)
        self._stored_SX = zeros_on_demand(
            (num_slots + 1, size), dtype=head.dtype, device=head.device
        )
        self._betas = sorted(head.spec.calibration.items())
        self._held: list[Output] = []
        self._num_held_rows = 0

    def remember(self, output: Output, *, may_hold: bool) -> None:
        if not may_hold:
            assert not self._held, "older features would be stored after these"
            self._store(output)
            return
        self._held.append(Output(None, output.taps, output.write_slots_T))
        self._num_held_rows += len(output.write_slots_T)
        if self._num_held_rows >= MAX_HELD_ROWS:
            self.store_held()

    def store_held(self) -> None:
        # In order: later rows may have slots of earlier ones.
        held, self._held, self._num_held_rows = self._held, [], 0
        for output in held:
            self._store(output)

    def recall(self, slots_T: torch.Tensor) -> torch.Tensor | None:
        self.store_held()
        stored_TX = self._stored_SX.index_select(0, slots_T)
        if not self._stores_states:
            return stored_TX
        return self._head.combine(stored_TX.chunk(len(self.taps), dim=-1))

    def slot_tensors(self) -> tuple[torch.Tensor, ...]:
        self.store_held()
        return (*self._backend.kv.layers, self._stored_SX)

    def _store(self, output: Output) -> None:
        if self._stores_states:
            stored_TX = torch.cat(output.taps, -1)
        else:
            stored_TX = self._head.combine(output.taps)
        self._stored_SX.index_copy_(0, output.write_slots_T, stored_TX)

    def beta(self, temperature: float) -> float:
        """Return the value that was fitted in training at the nearest temperature; 1 without any."""
        if not self._betas:
            return 1.0
        return min(self._betas, key=lambda pair: abs(pair[0] - temperature))[1]

    @torch.inference_mode()
    def forward(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        assert features_TF is not None, "a head reads features"
        num_rows = len(rows.tokens_T)
        ends_early = self._head.ends_early
        planned = plan_rows(rows, self._backend, self._order, ends_early=ends_early)
        missing = len(planned.tokens_T) - num_rows
        if missing:
            features_TF = torch.nn.functional.pad(features_TF, (0, 0, 0, missing))
        hidden_TD, states_TF = self._head.forward(planned, features_TF)
        logits_RU = wanted_logits(rows, hidden_TD, self._head.logits, self._order)
        return logits_RU, states_TF[:num_rows]
