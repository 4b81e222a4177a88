"""The tensors of the cache: keys and values of every layer, for every slot.

Promises: one tensor [S, 2, G, H] a layer, allocated once, with keys at index 0 and values at index 1;
[S, 1, G, H] where the values are the first numbers of the keys. The layers of a model declare which,
and their sizes (`LayerStore`). Layers with a state per sequence have none, but an entry in `states`.
The number format may be narrower than the model's; then each layer has scales.
Does not know: which sequence owns a slot, how numbers are rounded.

Legend: S slots, the null slot included, G key/value heads, H head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from eyas.cache.memory import zeros_on_demand
from eyas.cache.states import SequenceStates
from eyas.cache.store import KVScales, LayerStore, StateStore, Store
from eyas.transfer import send


def _ignore(name: str, *arguments: np.ndarray) -> None:
    """Leave a change of window slots alone."""


@dataclass(slots=True, eq=False)
class WindowMap:
    """Where layers with a window store what belongs to a slot, if they have fewer slots than others.

    window: the widest of theirs. slots_S: int64, the window slot of each slot; any valid one where no
    query sees what the slot holds. on_change: called with the name and the arguments of each method
    before it changes window slots.
    """

    num_window_slots: int
    window: int
    slots_S: torch.Tensor
    on_change: Callable[..., None] = _ignore

    def assign(self, slots: np.ndarray, window_slots: np.ndarray) -> None:
        """Set the window slots of these slots, each of which occurs once; int64."""
        if len(slots):
            self.on_change("assign", slots, window_slots)
            both = send(np.stack((slots, window_slots)), self.slots_S.device)
            self.slots_S.index_copy_(0, both[0], both[1])

    def assign_first(self) -> None:
        """Give the first slots window slots of their own numbers, for work that reserves none."""
        self.on_change("assign_first")
        count = min(self.num_window_slots, len(self.slots_S) - 1)
        self.slots_S[: count + 1] = torch.arange(count + 1, device=self.slots_S.device)

    def clear(self) -> None:
        """Take all window slots away."""
        self.on_change("clear")
        self.slots_S.zero_()


class KVStore:
    """Keys and values of all layers of one model; a drafting network has a second store.

    layers: tensors [S, 2, G, H] or [S, 1, G, H], empty for a layer with a state. keys, values: views
    [S, G, H] of them; the last dimension of values is the store's `output_dim`. states: of the layers
    that have one per sequence; None if there are none. dtype: in which the model computes.
    stored_dtype: of keys and values. scales: of each layer. windows: None if all layers have all slots.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        num_slots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        stored_dtype: torch.dtype | None = None,
        scales: Sequence[KVScales] = (),
        num_window_slots: int | None = None,
    ) -> None:
        """Allocate the tensors. stored_dtype: None is `dtype`. scales: empty is 1 for all layers.
        num_window_slots: slots of layers with a window; None is `num_slots`."""
        self.stores = tuple(stores)
        self.dtype = dtype
        self.stored_dtype = stored_dtype or dtype
        self.scales = _of_parts(scales or [KVScales()] * len(self.stores), self.stores)
        self.device = device
        self.windows: WindowMap | None = None
        if num_window_slots is not None:
            window = max(_window(store) or 0 for store in self.stores)
            slots_S = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
            self.windows = WindowMap(num_window_slots, window, slots_S)
        own = num_slots if num_window_slots is None else num_window_slots
        counts = [num_slots if _window(store) is None else own for store in self.stores]
        self.layers = [
            zeros_on_demand(_shape(store, count), dtype=self.stored_dtype, device=device)
            for store, count in zip(self.stores, counts, strict=True)
        ]
        self.keys = [layer.select(1, 0) for layer in self.layers]
        self.values = [
            layer.select(1, -1)[..., : store.output_dim] if isinstance(store, LayerStore) else layer
            for layer, store in zip(self.layers, self.stores, strict=True)
        ]
        self.states: SequenceStates | None = None
        if any(isinstance(store, StateStore) for store in stores):
            self.states = SequenceStates(stores, dtype=dtype, device=device)

    def window_slots(self, layer: int) -> torch.Tensor | None:
        """Return the window slot of each slot, if the layer's tensor is indexed by these."""
        if self.windows is None or _window(self.stores[layer]) is None:
            return None
        return self.windows.slots_S

    @staticmethod
    def bytes_per_slot(stores: Sequence[Store], dtype: torch.dtype) -> int:
        """Return the bytes of keys and values of one token in all layers. dtype: of the cache."""
        return sum(math.prod(_shape(store, 0)) * dtype.itemsize for store in stores)


def _window(store: Store) -> int | None:
    """Return how many of the last tokens a layer's queries see; None if it has no such window."""
    return store.window if isinstance(store, LayerStore) else None


def _of_parts(scales: Sequence[KVScales], stores: Sequence[Store]) -> tuple[KVScales, ...]:
    """Return the scales of layers, those of values that are part of keys being the keys' own."""
    return tuple(
        replace(scale, value=scale.key)
        if isinstance(store, LayerStore) and store.value_dim is not None
        else scale
        for scale, store in zip(scales, stores, strict=True)
    )


def _shape(store: Store, num_slots: int) -> tuple[int, ...]:
    """Return the shape of a layer's keys and values, the null slot included."""
    if isinstance(store, StateStore):
        return (0, 2, 0, 0)
    return (num_slots + 1, *store.slot_shape)
