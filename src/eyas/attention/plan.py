"""What the plans of all backends share: the destination of rows, and the states of sequences.

Promises: the window slots of a forward pass are looked up once.
Does not know: how queries attend.

Legend: T rows, S slots, X numbers of a row's inputs.
"""

from __future__ import annotations

import torch

from eyas.attention.base import AttentionLayout
from eyas.attention.state_plan import StatePlan
from eyas.cache.kv import KVStore
from eyas.ops.delta_rule import DeltaRule
from eyas.ops.rotate_and_store import KVDestination


class Plan:
    """The parts of `Attend` that do not depend on the backend, for one forward pass."""

    def __init__(self, kv: KVStore, layout: AttentionLayout, write_slots_T: torch.Tensor) -> None:
        self._kv = kv
        self._layout = layout
        self._write_slots_T = write_slots_T
        self._window_slots_T: torch.Tensor | None = None
        self._states = None if kv.states is None else StatePlan(layout, kv.states)

    def destination(self, layer: int) -> KVDestination:
        """As `Attend.destination`."""
        kv, scales, slots_T = self._kv, self._kv.scales[layer], self._write_slots_T
        window_slots_S = kv.window_slots(layer)
        if window_slots_S is not None:
            if self._window_slots_T is None:
                self._window_slots_T = window_slots_S[slots_T]
            slots_T = self._window_slots_T
        return KVDestination(
            kv.layers[layer],
            slots_T,
            kv.keys[layer],
            kv.values[layer],
            scales.key,
            scales.value,
        )

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        """As `Attend.recur`."""
        assert self._states is not None, "the layer has declared a state"
        return self._states.recur(layer, inputs_TX, rule)
