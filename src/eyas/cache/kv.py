"""The tensors of the cache: keys and values of every layer, for every slot.

Promises: one tensor [S, 2, G, H] a layer, allocated once, with keys at index 0 and values at index 1;
[S, 1, G, H] where the values are the first numbers of the keys. The layers of a model declare which,
and their sizes (`LayerStore`).
Does not know: which sequence owns a slot.

Legend: S slots, the null slot included, G key/value heads, H head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from eyas.cache.store import LayerStore

ALIGNMENT = 64
"""Bytes; the alignment of torch's own allocations."""


def zeros_on_demand(
    shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor of zeros. On a CPU memory is only used for pages that are written to: numpy gets
    zeroed pages from the operating system, where torch would write the zeros."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -pages.ctypes.data % ALIGNMENT
    return torch.from_numpy(pages[start : start + num_bytes]).view(dtype).view(shape)


class KVStore:
    """Keys and values of all layers of one model; a drafting network has a second store.

    layers: tensors [S, 2, G, H] or [S, 1, G, H]. keys, values: views [S, G, H] of them; the last
    dimension of values is the store's `output_dim`.
    """

    def __init__(
        self,
        stores: Sequence[LayerStore],
        num_slots: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.stores = tuple(stores)
        self.layers = [
            zeros_on_demand((num_slots + 1, *store.slot_shape), dtype=dtype, device=device)
            for store in stores
        ]
        self.keys = [layer.select(1, 0) for layer in self.layers]
        self.values = [
            layer.select(1, -1)[..., : store.output_dim]
            for layer, store in zip(self.layers, self.stores, strict=True)
        ]

    @staticmethod
    def bytes_per_slot(stores: Sequence[LayerStore], dtype: torch.dtype) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return sum(math.prod(store.slot_shape) * dtype.itemsize for store in stores)
