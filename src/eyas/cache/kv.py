"""The tensors behind the slots: keys and values of every layer, for every slot.

Promises: one tensor [S, 2, G, H] a layer, S slots (the null slot included), 0 keys and 1 values; a
model's layers declare what they keep (`LayerStore`), and this room allocates it once.
Does not know: which slot belongs to whom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from eyas.cache.store import LayerStore

ALIGNMENT = 64
"""Bytes: torch's own."""


def zeros_on_demand(
    shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Zeros; on a CPU the memory is taken page by page as it is written (numpy asks the system for
    zeroed pages, torch would write them)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -pages.ctypes.data % ALIGNMENT
    return torch.from_numpy(pages[start : start + num_bytes]).view(dtype).view(shape)


class KVStore:
    """Keys and values of all layers of one model (a draft model has a store of its own).

    layers: [S, 2, G, H] each; keys, values: views of them [S, G, H].
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
            zeros_on_demand(
                (num_slots + 1, 2, store.num_kv_heads, store.head_dim), dtype=dtype, device=device
            )
            for store in stores
        ]
        self.keys = [layer.select(1, 0) for layer in self.layers]
        self.values = [layer.select(1, 1) for layer in self.layers]

    @staticmethod
    def bytes_per_slot(stores: Sequence[LayerStore], dtype: torch.dtype) -> int:
        return sum(2 * s.num_kv_heads * s.head_dim * dtype.itemsize for s in stores)
