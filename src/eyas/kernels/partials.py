"""Partial results of rows, in memory between the launch that writes them and the one that merges them.

Promises: a line of a tile without a row is neither stored nor loaded.
Does not know: the keys of a partial result, the order of merging.

Legend: T rows, N query heads, H head dim, Z partial results of a row, M lines of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eyas.kernels.softmax import merge


@triton.jit
def keep(
    states_TNZ2,
    values_TNZH,
    place_M,
    top_M,
    sum_M,
    value_MH,
    is_line,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
):
    """Store a partial result. place_M: its number over all rows and heads."""
    inner_1H = tl.arange(0, INNER)[None, :]
    tl.store(states_TNZ2 + place_M * 2, top_M, mask=is_line)
    tl.store(states_TNZ2 + place_M * 2 + 1, sum_M, mask=is_line)
    place_MH = values_TNZH + place_M[:, None] * HEAD_DIM + inner_1H
    tl.store(place_MH, value_MH, mask=is_line[:, None] & (inner_1H < HEAD_DIM))


@triton.jit
def merge_kept(
    top_M,
    sum_M,
    value_MH,
    states_TNZ2,
    values_TNZH,
    place_M,
    is_there,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
):
    """Merge a stored partial result into the one before it, where there is one."""
    inner_1H = tl.arange(0, INNER)[None, :]
    is_wanted = is_there[:, None] & (inner_1H < HEAD_DIM)
    place_MH = values_TNZH + place_M[:, None] * HEAD_DIM + inner_1H
    own_top_M = tl.load(states_TNZ2 + place_M * 2, mask=is_there, other=float("-inf"))
    own_sum_M = tl.load(states_TNZ2 + place_M * 2 + 1, mask=is_there, other=0.0)
    own_value_MH = tl.load(place_MH, mask=is_wanted, other=0.0)
    return merge(top_M, sum_M, value_MH, own_top_M, own_sum_M, own_value_MH)
