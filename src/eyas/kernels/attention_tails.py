"""Attention of tree nodes over the splits that hold their own paths.

Promises: a node's partial results are those that a chain, or a prompt, has at the same positions,
bit for bit. Nodes with short paths share a program, and so the loads of common keys; a tile with a
longer path processes its nodes one after the other.
Does not know: the splits before the root's, how results are merged.

Legend: M rows of a tile (nodes times query heads a key/value head), H head dim, W nodes, P steps up
a path, A seats, C columns, Z partial results of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from eyas.kernels.partials import keep
from eyas.kernels.softmax import (
    MATRIX_DEPTH,
    attend_split,
    nothing_weighted,
    own_slots,
    rest_of_queries,
    scores,
    weighted,
)


@triton.jit
def _own_columns(
    shared_stop,
    end,
    first_node,
    num_nodes,
    table,
    window_slots,
    positions_W,
    paths_WP,
    root,
    limit,
    SPLIT: tl.constexpr,
    OWN: tl.constexpr,
):
    """SPLIT columns of nodes' own, OWN each: slots, positions, whose they are, which are there."""
    place_K = tl.arange(0, SPLIT)
    owner_K = first_node + place_K // OWN
    column_K = shared_stop + place_K % OWN
    last_K = tl.load(positions_W + owner_K, mask=owner_K < num_nodes, other=-1).to(tl.int32)
    is_stored = (column_K <= tl.minimum(last_K, limit)) & (column_K < end)
    slot_K = tl.load(table + column_K, mask=is_stored & (column_K < root), other=0)
    path_K = paths_WP + owner_K * num_nodes + last_K
    slot_K += tl.load(path_K - column_K, mask=is_stored & (column_K >= root), other=0)
    return own_slots(slot_K, window_slots), column_K, owner_K, is_stored


@triton.jit
def _attend_paths(
    q_MH,
    q_MF,
    position_M,
    node_M,
    start,
    shared_stop,
    first_node,
    num_nodes,
    kv,
    table,
    window_slots,
    positions_W,
    paths_WP,
    root,
    limit,
    window,
    first_position,
    scale,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    SPLIT: tl.constexpr,
    OWN: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """The split at `start`, seen by nodes of a tree at once: what stands before `shared_stop` is read
    for all of them, the OWN positions from there on for each along its own path, in a second block of
    SPLIT columns. The columns of other nodes weigh nothing, so a node's sums are those of
    `attend_split`. shared_stop: a multiple of the matrix unit's depth, at most `root`, or `start`. The
    paths must end within their columns."""
    end = start + SPLIT
    column_K = start + tl.arange(0, SPLIT)
    is_stored = column_K < tl.minimum(shared_stop, end)
    slot_K = own_slots(tl.load(table + column_K, mask=is_stored, other=0), window_slots)
    score_MK = scores(
        q_MH, q_MF, position_M, node_M, slot_K, column_K, column_K, is_stored, kv, window,
        first_position, SIDE, HEAD_DIM, INNER, REST, True, False, HAS_WINDOW, HAS_FIRST,
    )  # fmt: skip
    own_slot_K, own_column_K, owner_K, is_own = _own_columns(
        shared_stop, end, first_node, num_nodes, table, window_slots, positions_W, paths_WP, root,
        limit, SPLIT, OWN,
    )  # fmt: skip
    own_MK = scores(
        q_MH, q_MF, position_M, node_M, own_slot_K, own_column_K, owner_K, is_own, kv, window,
        first_position, SIDE, HEAD_DIM, INNER, REST, True, True, HAS_WINDOW, HAS_FIRST,
    )  # fmt: skip
    top_M = tl.maximum(tl.max(score_MK, 1), tl.max(own_MK, 1)) * scale
    sum_M8, value_MH = nothing_weighted(q_MH.shape[0], INNER)
    sum_M8, value_MH = weighted(
        score_MK, q_MH, top_M, scale, slot_K, is_stored, kv, sum_M8, value_MH, SIDE, HEAD_DIM, INNER,
        REST, SPLIT, True,
    )  # fmt: skip
    sum_M8, value_MH = weighted(
        own_MK, q_MH, top_M, scale, own_slot_K, is_own, kv, sum_M8, value_MH, SIDE, HEAD_DIM, INNER,
        REST, SPLIT, True,
    )  # fmt: skip
    return top_M, tl.max(sum_M8, 1), value_MH


@triton.jit
def attend_tails(
    tile,
    g,
    q_TNH,
    kv,
    states_TNZ2,
    values_TNZH,
    rows_BW,
    positions_BW,
    roots_B,
    seats_B,
    slots_AC,
    window_slots,
    paths_BWP,
    q_stride,
    num_nodes,
    num_columns,
    num_units,
    limit,
    window,
    first_position,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    REST_INNER: tl.constexpr,
    HEIGHT: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    TAILS: tl.constexpr,
    NODES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """The `tile`th NODES nodes of all sequences, one key/value head: its last TAILS partial results."""
    SIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * PER_KV
    num_tiles = tl.cdiv(num_nodes, NODES)
    b = (tile // num_tiles).to(tl.int64)
    first_node = tile % num_tiles * NODES
    inner_1H = tl.arange(0, INNER)[None, :]
    line_M = tl.arange(0, HEIGHT)
    node_M = first_node + line_M // PER_KV
    is_line = (line_M < NODES * PER_KV) & (node_M < num_nodes)
    positions_W = positions_BW + b * num_nodes
    row_M = tl.load(rows_BW + b * num_nodes + node_M, mask=is_line, other=-1)
    position_M = tl.load(positions_W + node_M, mask=is_line, other=-1).to(tl.int32)
    is_line = is_line & (position_M >= 0)
    head_M = g * PER_KV + line_M % PER_KV
    is_wanted = is_line[:, None] & (inner_1H < HEAD_DIM)
    q_MH = q_TNH + row_M[:, None] * q_stride + head_M[:, None] * (HEAD_DIM + REST) + inner_1H
    q_MH = tl.load(q_MH, mask=is_wanted, other=0.0)
    q_MF = q_MH
    if REST > 0:
        q_MF = rest_of_queries(q_TNH, row_M, head_M, q_stride, is_line, HEAD_DIM, REST, REST_INNER)
    root = tl.load(roots_B + b).to(tl.int32)
    table = slots_AC + tl.load(seats_B + b) * num_columns
    paths_WP = paths_BWP + b * num_nodes * num_nodes
    unit_M = (row_M * NUM_HEADS + head_M) * num_units + num_units - TAILS
    own = tl.maximum(root, 0) // SPLIT
    stop = tl.minimum(tl.max(position_M, 0), limit) + 1
    end = tl.minimum(tl.cdiv(stop, SPLIT), own + TAILS)
    for split in tl.range(own, end, num_stages=1):
        start = split * SPLIT
        place_M = unit_M + (split - own)
        shared_stop = tl.maximum(start, root // MATRIX_DEPTH * MATRIX_DEPTH)
        is_short = tl.minimum(stop, start + SPLIT) - shared_stop <= SPLIT // NODES
        if (NODES > 1) & is_short:
            top_M, sum_M, value_MH = _attend_paths(
                q_MH, q_MF, position_M, node_M, start, shared_stop, first_node, num_nodes, kv,
                table, window_slots, positions_W, paths_WP, root, limit, window, first_position,
                scale, SIDE, HEAD_DIM, INNER, REST, SPLIT, SPLIT // NODES, HAS_WINDOW, HAS_FIRST,
            )  # fmt: skip
            keep(
                states_TNZ2, values_TNZH, place_M, top_M, sum_M, value_MH, is_line, HEAD_DIM, INNER
            )  # fmt: skip
        else:
            for node in tl.range(first_node, first_node + NODES, num_stages=1):
                own_position_M = tl.where(node_M == node, position_M, -1)
                position = tl.max(own_position_M, 0)
                own_top_M, own_sum_M, own_value_MH = attend_split(
                    q_MH, q_MF, own_position_M, start, tl.minimum(position, limit) + 1, kv, table,
                    window_slots,
                    paths_WP + node * num_nodes + position, root, window, first_position, scale, SIDE,
                    HEAD_DIM, INNER, REST, KEYS, SPLIT, True, True, HAS_WINDOW, HAS_FIRST,
                )  # fmt: skip
                keep(
                    states_TNZ2, values_TNZH, place_M, own_top_M, own_sum_M, own_value_MH,
                    is_line & (node_M == node), HEAD_DIM, INNER,
                )  # fmt: skip
