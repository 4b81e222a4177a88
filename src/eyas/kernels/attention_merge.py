"""Merge the partial results of rows into their outputs.

Promises: a row's partial results are merged in order: splits within their group, groups one after the
other. Rows that are not nodes get zeros. The bits are those of one program that computes everything.
Does not know: which program made which partial result.

Legend: T rows, N query heads, G key/value heads, J query heads a key/value head, H head dim,
B sequences, W nodes, Z partial results of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eyas.kernels.launch import enter
from eyas.kernels.partials import merge_kept
from eyas.kernels.softmax import empty, finish, first_seen, merge


@triton.jit(do_not_specialize=["num_nodes", "num_units", "limit", "window", "first_position"])
def merge_splits_kernel(
    out_TNH,
    states_TNZ2,
    values_TNZH,
    nodes_T,
    positions_BW,
    roots_B,
    sinks_N,
    num_nodes,
    num_units,
    limit,
    window,
    first_position,
    value_scale,
    NUM_KV_HEADS: tl.constexpr,
    PER_KV: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
    TAILS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and key/value head: its partial results in order; zeros for what is no node."""
    enter(PDL)
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * PER_KV
    row = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1)
    line_J = tl.arange(0, HEADS)
    inner_1H = tl.arange(0, INNER)[None, :]
    head_J = g * PER_KV + line_J
    is_line = line_J < PER_KV
    is_wanted = is_line[:, None] & (inner_1H < HEAD_DIM)
    top_J, sum_J, value_JH = empty(HEADS, INNER)
    node = tl.load(nodes_T + row)
    if node >= 0:
        root = tl.load(roots_B + node // num_nodes)
        stop = tl.minimum(tl.load(positions_BW + node), limit) + 1
        first = first_seen(stop - 1, window, first_position, HAS_WINDOW) // SPLIT
        shared = tl.cdiv(stop, SPLIT)
        own = tl.maximum(root, 0) // SPLIT
        if TAILS > 0:
            shared = tl.minimum(own, shared)
        partial_J = (row * NUM_HEADS + head_J) * num_units
        for group in range(first // GROUP, tl.cdiv(stop, GROUP * SPLIT)):
            group_top_J, group_sum_J, group_value_JH = empty(HEADS, INNER)
            for i in tl.static_range(0, GROUP, UNIT):
                split = group * GROUP + i
                is_there = (split < shared) & (split + UNIT > first)
                group_top_J, group_sum_J, group_value_JH = merge_kept(
                    group_top_J, group_sum_J, group_value_JH, states_TNZ2, values_TNZH,
                    partial_J + split // UNIT, is_line & is_there, HEAD_DIM, INNER,
                )  # fmt: skip
            if TAILS > 0:
                if group >= own // GROUP:
                    for tail in tl.static_range(0, TAILS):
                        split = own + tail
                        is_there = (split // GROUP == group) & (split * SPLIT < stop)
                        is_there = is_there & (split >= first)
                        group_top_J, group_sum_J, group_value_JH = merge_kept(
                            group_top_J, group_sum_J, group_value_JH, states_TNZ2, values_TNZH,
                            partial_J + num_units - TAILS + tail, is_line & is_there, HEAD_DIM, INNER,
                        )  # fmt: skip
            top_J, sum_J, value_JH = merge(
                top_J, sum_J, value_JH, group_top_J, group_sum_J, group_value_JH
            )
    sink_J = tl.zeros((HEADS,), tl.float32)
    if HAS_SINKS:
        sink_J = tl.load(sinks_N + head_J, mask=is_line, other=0.0)
    out_JH = finish(top_J, sum_J, value_JH, sink_J, value_scale, HAS_SINKS)
    place_JH = out_TNH + (row * NUM_HEADS + head_J)[:, None] * HEAD_DIM + inner_1H
    tl.store(place_JH, out_JH.to(out_TNH.dtype.element_ty), mask=is_wanted)
