"""Attention over slots: one layout, one plan, one run for prompts, trees and draft steps alike."""

from __future__ import annotations

from eyas.attention.base import AttentionBackend
from eyas.attention.reference import ReferenceAttention
from eyas.cache.kv import KVStore
from eyas.kernels import usable

__all__ = ["attention_units", "open_attention"]

UNIT = 512
"""Positions that a partial result covers where there are many rows."""


def open_attention(kv: KVStore, *, exact: bool = False) -> AttentionBackend:
    """The backend for where the store lives. exact: a row has the same bits however it is computed,
    also where another way would be faster."""
    if usable(kv.layers[0].device):
        from eyas.attention.triton import TritonAttention

        return TritonAttention(kv, exact=exact, pdl=True)
    return ReferenceAttention(kv)


def attention_units(max_length: int, width: int) -> int:
    """Most partial results of a row of a large step."""
    return -(-max_length // UNIT) + 2 + -(-width // UNIT)
