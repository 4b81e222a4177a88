"""The tensors of the cache: keys and values of every layer, for every slot.

Promises: one tensor [S, 2, G, H] a layer, allocated once, with keys at index 0 and values at index 1;
[S, 1, G, H] where the values are the first numbers of the keys. The layers of a model declare which,
and their sizes (`LayerStore`). Layers with a state per sequence have none, but an entry in `states`.
Does not know: which sequence owns a slot.

Legend: S slots, the null slot included, G key/value heads, H head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from eyas.cache.memory import zeros_on_demand
from eyas.cache.states import SequenceStates
from eyas.cache.store import LayerStore, StateStore, Store


class KVStore:
    """Keys and values of all layers of one model; a drafting network has a second store.

    layers: tensors [S, 2, G, H] or [S, 1, G, H], empty for a layer with a state. keys, values: views
    [S, G, H] of them; the last dimension of values is the store's `output_dim`. states: of the layers
    that have one per sequence; None if there are none.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        num_slots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.stores = tuple(stores)
        self.dtype = dtype
        self.device = device
        self.layers = [
            zeros_on_demand(_shape(store, num_slots), dtype=dtype, device=device)
            for store in stores
        ]
        self.keys = [layer.select(1, 0) for layer in self.layers]
        self.values = [
            layer.select(1, -1)[..., : store.output_dim] if isinstance(store, LayerStore) else layer
            for layer, store in zip(self.layers, self.stores, strict=True)
        ]
        self.states: SequenceStates | None = None
        if any(isinstance(store, StateStore) for store in stores):
            self.states = SequenceStates(stores, dtype=dtype, device=device)

    @staticmethod
    def bytes_per_slot(stores: Sequence[Store], dtype: torch.dtype) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return sum(math.prod(_shape(store, 0)) * dtype.itemsize for store in stores)


def _shape(store: Store, num_slots: int) -> tuple[int, ...]:
    """Return the shape of a layer's keys and values, the null slot included."""
    if isinstance(store, StateStore):
        return (0, 2, 0, 0)
    return (num_slots + 1, *store.slot_shape)
