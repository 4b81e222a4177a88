"""Attention over slots: prompts, trees and draft steps are planned and run in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from eyas.attention.base import AttentionBackend
from eyas.attention.reference import ReferenceAttention
from eyas.cache.kv import KVStore
from eyas.cache.store import CompressedStore, LayerStore, Store
from eyas.kernels import usable

__all__ = ["attention_units", "copied_bytes", "open_attention", "score_bytes"]


def open_attention(kv: KVStore) -> AttentionBackend:
    """Return the attention backend for the device of the store."""
    if usable(kv.device):
        from eyas.attention.triton import TritonAttention

        return TritonAttention(kv, pdl=True)
    return ReferenceAttention(kv)


def attention_units(stores: Sequence[LayerStore], max_length: int, width: int) -> int:
    """Return the most partial results that kernels store of a row, in steps of many rows."""
    from eyas.attention.triton_compressed import entry_shapes
    from eyas.kernels.softmax import GROUP, SPLIT

    unit, shapes = GROUP * SPLIT, entry_shapes(stores)
    units = [shape.num_splits(max_length) for shape in shapes.values()]
    if any(store not in shapes for store in stores):
        units.append(-(-max_length // unit) + 2 + -(-width // unit))
    return max(units)


def score_bytes(stores: Sequence[LayerStore]) -> int:
    """Return the most bytes of the scores of compressed entries that are in memory at once."""
    from eyas.attention.triton_compressed import MOST_SCORES

    has_indexer = any(isinstance(store, CompressedStore) and store.index_dim for store in stores)
    return 4 * MOST_SCORES if has_indexer else 0


def copied_bytes(
    stores: Sequence[Store], num_positions: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Return the most bytes of the copies of keys and values that prompts read on a device.

    num_positions: of all sequences. dtype: in which the model computes.
    """
    from eyas.attention.copied_prompts import MOST_BYTES, takes
    from eyas.attention.triton import shapes_of

    shapes = shapes_of(stores, dtype.itemsize)
    taken = [each for each, shape in shapes.items() if takes(shape, dtype, device)]
    widest = max((math.prod(each.slot_shape) for each in taken), default=0)
    return min(MOST_BYTES, num_positions * widest * dtype.itemsize)
