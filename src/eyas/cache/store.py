"""The description of what an attention layer stores per token. Models declare it, the cache allocates
it.

Promises: plain data.
Does not know: tensors, slots.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerStore:
    """What one attention layer stores per token, and which keys its queries attend to.

    window: a query at position p attends to keys at positions > p - window; None is all of them.
    scale: factor of the dot products; None is head_dim ** -0.5.
    first_position: first position that has keys; earlier positions are never attended to.
    """

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    scale: float | None = None
    first_position: int = 0
