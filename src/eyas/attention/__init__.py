"""Attention over slots: one layout, one plan, one run for prompts, trees and draft steps alike."""

from __future__ import annotations

from eyas.attention.base import AttentionBackend
from eyas.attention.reference import ReferenceAttention
from eyas.cache.kv import KVStore
from eyas.kernels import usable

__all__ = ["attention_units", "open_attention"]


def open_attention(kv: KVStore) -> AttentionBackend:
    """The backend for where the store lives."""
    if usable(kv.layers[0].device):
        from eyas.attention.triton import TritonAttention

        return TritonAttention(kv, pdl=True)
    return ReferenceAttention(kv)


def attention_units(max_length: int, width: int) -> int:
    """Most partial results that kernels keep of a row, where a step has many rows."""
    from eyas.kernels.softmax import GROUP, SPLIT

    unit = GROUP * SPLIT
    return -(-max_length // unit) + 2 + -(-width // unit)
