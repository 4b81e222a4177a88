"""Keys that order scores, with ties to the lowest index.

Promises: keys of different indices differ; a larger key is a higher score, or an equal one of a lower
index.
Does not know: what scores are of.

Legend: E entries.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**63))
"""Below every key."""


@triton.jit
def key_of(score, index):
    """int64 keys that are ordered as the scores are; of equal scores the lower index has the larger
    key."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def score_of(key):
    """The score of a key."""
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    """The index of a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def largest(keys_E, NUM: tl.constexpr, NUM_PADDED: tl.constexpr):
    """The NUM largest of distinct keys in descending order, padded with LOWEST."""
    column = tl.arange(0, NUM_PADDED)
    found = tl.full((NUM_PADDED,), LOWEST, tl.int64)
    for i in range(NUM):
        top = tl.max(keys_E, axis=0)
        found = tl.where(column == i, top, found)
        keys_E = tl.where(keys_E == top, LOWEST, keys_E)
    return found
