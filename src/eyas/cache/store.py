"""What an attention layer keeps per token; models declare it, the cache allocates it.

Promises: plain facts. Does not know: tensors, slots.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerStore:
    """What one attention layer keeps per token, and how far back its queries look.

    window: a query at position p sees keys at positions > p - window; None is everything.
    first_position: the first position that has a row at all; keys before it are never seen.
    scale: multiplies the dot products; None is head_dim ** -0.5.
    """

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    scale: float | None = None
    first_position: int = 0
