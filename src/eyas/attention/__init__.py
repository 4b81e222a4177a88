"""Attention over slots: prompts, trees and draft steps are planned and run in the same way."""

from __future__ import annotations

from eyas.attention.base import AttentionBackend
from eyas.attention.reference import ReferenceAttention
from eyas.cache.kv import KVStore
from eyas.kernels import usable

__all__ = ["attention_units", "open_attention"]


def open_attention(kv: KVStore) -> AttentionBackend:
    """Return the attention backend for the device of the store."""
    if usable(kv.device):
        from eyas.attention.triton import TritonAttention

        return TritonAttention(kv, pdl=True)
    return ReferenceAttention(kv)


def attention_units(max_length: int, width: int) -> int:
    """Return the most partial results that kernels store of a row, in steps of many rows."""
    from eyas.kernels.softmax import GROUP, SPLIT

    unit = GROUP * SPLIT
    return -(-max_length // unit) + 2 + -(-width // unit)
