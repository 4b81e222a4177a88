"""Attention of tree nodes over slots: partial softmaxes, which a second launch merges in order.

Promises: a row's bits depend on its own prefix alone, whatever the batch, the tree around it, the
height of tiles and how keys are divided among programs (`kernels.softmax`). Keys that all nodes of
a sequence see are read once a tile; in the splits that hold nodes, each node reads its own path.
Launch sizes depend on shapes and on the host's upper bound of positions, so launches can be
captured.
Does not know: layouts, which forward pass stored a key.

Legend: T rows, N query heads, G key/value heads, J query heads a key/value head, H head dim, B
sequences, W nodes, P steps up a path, A seats, C columns (positions), S slots, Z partial results of
a row, M rows of a tile (queries times J).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from eyas.kernels.attention_merge import merge_splits_kernel
from eyas.kernels.attention_tails import attend_tails
from eyas.kernels.launch import enter, launch_options
from eyas.kernels.partials import keep
from eyas.kernels.softmax import (
    GROUP,
    SPLIT,
    UNFUSED,
    HeadShape,
    attend_split,
    empty,
    finish,
    first_seen,
    merge,
    rest_of_queries,
)

TAIL_LINES = 16
"""Height of a tile of nodes that attend along their own paths."""
TAIL_NODES = 4
"""Most nodes of such a tile; each has SPLIT / TAIL_NODES columns for its own path."""
MERGED_A_WARP = 256
"""Numbers of a row that a warp merges."""
PROGRAMS = 2048
"""The programs of a launch up to which each processes one unit of keys; beyond, each processes
several."""


@triton.jit
def _group(
    q_MH,
    q_MF,
    position_M,
    begin,
    end,
    stop,
    kv,
    table,
    window_slots,
    root,
    window,
    first_position,
    scale,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    HEIGHT: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """The partial softmax of a tile over splits [begin, end) of one group, merged in order."""
    top_M, sum_M, value_MH = empty(HEIGHT, INNER)
    for split in tl.range(begin, end, num_stages=STAGES):
        own_top_M, own_sum_M, own_value_MH = attend_split(
            q_MH, q_MF, position_M, split * SPLIT, stop, kv, table, window_slots, table, root,
            window, first_position, scale, SIDE, HEAD_DIM, INNER, REST, KEYS, SPLIT, True, False,
            HAS_WINDOW, HAS_FIRST,
        )  # fmt: skip
        top_M, sum_M, value_MH = merge(top_M, sum_M, value_MH, own_top_M, own_sum_M, own_value_MH)
    return top_M, sum_M, value_MH


@triton.jit(
    do_not_specialize=[
        "num_nodes",
        "num_columns",
        "num_tiles",
        "num_stripes",
        "num_shared",
        "num_units",
        "limit",
        "window",
        "first_position",
    ]
)
def attend_splits_kernel(
    q_TNH,
    kv_S2GH,
    out_TNH,
    sinks_N,
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
    num_tiles,
    num_stripes,
    num_shared,
    num_units,
    limit,
    window,
    first_position,
    scale,
    value_scale,
    NUM_KV_HEADS: tl.constexpr,
    PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    REST_INNER: tl.constexpr,
    HEIGHT: tl.constexpr,
    TAIL_HEIGHT: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    UNIT: tl.constexpr,
    TAILS: tl.constexpr,
    TAIL_NODES: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Partial results of all nodes: Z = units of UNIT splits, then TAILS splits of a node's own.

    The last `num_shared` programs: a tile of nodes, a key/value head, every num_stripes-th unit of
    what the tile shares: everything for a chain, the splits before its root's for a tree. Those before
    them (trees), which take longer: TAIL_NODES nodes, one head, the splits that may hold nodes of their
    paths. IS_WHOLE: one group is all there is, so that a program has its rows' answers at once.
    """
    enter(PDL)
    SIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    NEXT_HEAD: tl.constexpr = HEAD_DIM if REST == 0 else 0
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * PER_KV
    program = tl.program_id(0)
    inner_1H = tl.arange(0, INNER)[None, :]
    num_tails = tl.num_programs(0) - num_shared
    if program >= num_tails:
        program -= num_tails
        QUERIES: tl.constexpr = HEIGHT // PER_KV
        g = program % NUM_KV_HEADS
        tile = (program // NUM_KV_HEADS) % num_tiles
        place = program // (NUM_KV_HEADS * num_tiles)
        stripe = place % num_stripes
        b = (place // num_stripes).to(tl.int64)
        root = tl.load(roots_B + b)
        table = slots_AC + tl.load(seats_B + b) * num_columns
        line_M = tl.arange(0, HEIGHT)
        node_M = tile * QUERIES + line_M // PER_KV
        is_line = (line_M < QUERIES * PER_KV) & (node_M < num_nodes)
        row_M = tl.load(rows_BW + b * num_nodes + node_M, mask=is_line, other=-1)
        position_M = tl.load(positions_BW + b * num_nodes + node_M, mask=is_line, other=-1)
        is_line = is_line & (position_M >= 0)
        head_M = g * PER_KV + line_M % PER_KV
        is_wanted = is_line[:, None] & (inner_1H < HEAD_DIM)
        q_MH = q_TNH + row_M[:, None] * q_stride + head_M[:, None] * (HEAD_DIM + REST) + inner_1H
        q_MH = tl.load(q_MH, mask=is_wanted, other=0.0)
        q_MF = q_MH
        if REST > 0:
            q_MF = rest_of_queries(
                q_TNH, row_M, head_M, q_stride, is_line, HEAD_DIM, REST, REST_INNER
            )
        first = root
        stop = tl.maximum(tl.minimum(tl.max(position_M, 0), limit) + 1, 0)
        if TAILS > 0:
            stop = tl.minimum(stop, tl.maximum(root, 0) // SPLIT * SPLIT)
        else:
            first += tile * QUERIES
        first = first_seen(tl.minimum(first, limit), window, first_position, HAS_WINDOW)
        kv = kv_S2GH + g * NEXT_HEAD
        partial_M = (row_M * NUM_HEADS + head_M) * num_units
        begin = first // (UNIT * SPLIT) + stripe
        end = tl.cdiv(stop, UNIT * SPLIT)
        if IS_WHOLE:
            top_M, sum_M, value_MH = _group(
                q_MH, q_MF, position_M, first // SPLIT, tl.cdiv(stop, SPLIT), stop, kv, table,
                window_slots, root, window, first_position, scale, SIDE, HEAD_DIM, INNER, REST,
                HEIGHT, KEYS, SPLIT, STAGES, HAS_WINDOW, HAS_FIRST,
            )  # fmt: skip
            sink_M = tl.zeros((HEIGHT,), tl.float32)
            if HAS_SINKS:
                sink_M = tl.load(sinks_N + head_M, mask=is_line, other=0.0)
            out_MH = finish(top_M, sum_M, value_MH, sink_M, value_scale, HAS_SINKS)
            answer_MH = out_TNH + (row_M * NUM_HEADS + head_M)[:, None] * HEAD_DIM + inner_1H
            is_row = (row_M >= 0)[:, None] & (inner_1H < HEAD_DIM)
            tl.store(answer_MH, out_MH.to(out_TNH.dtype.element_ty), mask=is_row)
        else:
            for unit in tl.range(begin, end, num_stripes, num_stages=STAGES if UNIT == 1 else 1):
                if UNIT == 1:
                    top_M, sum_M, value_MH = attend_split(
                        q_MH, q_MF, position_M, unit * SPLIT, stop, kv, table, window_slots, table,
                        root, window, first_position, scale, SIDE, HEAD_DIM, INNER, REST, KEYS,
                        SPLIT, True, False, HAS_WINDOW, HAS_FIRST,
                    )  # fmt: skip
                else:
                    top_M, sum_M, value_MH = _group(
                        q_MH, q_MF, position_M, tl.maximum(unit * UNIT, first // SPLIT),
                        tl.minimum(unit * UNIT + UNIT, tl.cdiv(stop, SPLIT)), stop, kv, table,
                        window_slots, root, window, first_position, scale, SIDE, HEAD_DIM, INNER,
                        REST, HEIGHT, KEYS, SPLIT, STAGES, HAS_WINDOW, HAS_FIRST,
                    )  # fmt: skip
                keep(
                    states_TNZ2, values_TNZH, partial_M + unit, top_M, sum_M, value_MH, is_line,
                    HEAD_DIM, INNER,
                )  # fmt: skip
    elif TAILS > 0:
        g = program % NUM_KV_HEADS
        attend_tails(
            program // NUM_KV_HEADS, g, q_TNH, kv_S2GH + g * NEXT_HEAD, states_TNZ2, values_TNZH,
            rows_BW, positions_BW, roots_B, seats_B, slots_AC, window_slots, paths_BWP, q_stride,
            num_nodes, num_columns, num_units, limit, window, first_position, scale, NUM_KV_HEADS,
            PER_KV, HEAD_DIM, INNER, REST, REST_INNER, TAIL_HEIGHT, KEYS, SPLIT, TAILS, TAIL_NODES,
            HAS_WINDOW, HAS_FIRST,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Nodes:
    """The node rows of a forward pass: the results of `node_paths`, and how the work is divided.

    unit: splits a program does at once, 1 or GROUP. num_units: partial results of a row, `tails` of its
    own among them. is_full: every row is a node.
    """

    rows_BW: torch.Tensor
    positions_BW: torch.Tensor
    nodes_T: torch.Tensor
    paths_BWP: torch.Tensor | None
    roots_B: torch.Tensor
    seats_B: torch.Tensor
    slots_AC: torch.Tensor
    limit: int
    unit: int
    tails: int
    num_units: int
    is_full: bool
    states: torch.Tensor
    values: torch.Tensor

    @property
    def is_whole(self) -> bool:
        """Whether a row has one partial result, which is its output."""
        return self.num_units == 1 and self.is_full


def attend_nodes(
    q_TNH: torch.Tensor,
    kv_S2GH: torch.Tensor,
    out_TNH: torch.Tensor,
    nodes: Nodes,
    shape: HeadShape,
    height: int,
    *,
    sinks_N: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    window_slots_S: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Write the outputs of the rows of `nodes.nodes_T` to the first rows of out_TNH; zeros where it
    is -1.

    key_scale, value_scale: what is stored times this is a key or value. window_slots_S: the place in
    `kv_S2GH` of each slot; None if it is the slot.

    Reference: `dense` in tests/attention/scenes.py.
    """
    num, width = nodes.rows_BW.shape
    heads, per_kv = shape.num_kv_heads, shape.per_kv
    num_tiles = -(-width // (height // per_kv))
    num_lanes = num * num_tiles * heads
    num_stripes = min(-(-PROGRAMS // num_lanes), nodes.num_units - nodes.tails)
    num_shared = num_lanes * num_stripes
    window = 0 if shape.window is None else shape.window
    table = nodes.slots_AC
    paths_BWP = table if nodes.paths_BWP is None else nodes.paths_BWP
    tail_nodes = _tail_nodes(shape)
    num_tails = num * -(-width // tail_nodes) * heads if nodes.tails else 0
    sinks_or_none = nodes.states if sinks_N is None else sinks_N
    attend_splits_kernel[(num_shared + num_tails,)](
        q_TNH,
        kv_S2GH,
        out_TNH,
        sinks_or_none,
        nodes.states,
        nodes.values,
        nodes.rows_BW,
        nodes.positions_BW,
        nodes.roots_B,
        nodes.seats_B,
        table,
        window_slots_S,
        paths_BWP,
        q_TNH.stride(0),
        width,
        table.stride(0),
        num_tiles,
        num_stripes,
        num_shared,
        nodes.num_units,
        nodes.limit,
        window,
        shape.first_position,
        shape.scale * key_scale,
        value_scale,
        NUM_KV_HEADS=heads,
        PER_KV=per_kv,
        HEAD_DIM=shape.head_dim,
        INNER=shape.inner,
        REST=shape.rest,
        REST_INNER=shape.rest_inner,
        HEIGHT=height,
        TAIL_HEIGHT=max(TAIL_LINES, triton.next_power_of_2(per_kv)),
        KEYS=shape.keys,
        SPLIT=SPLIT,
        UNIT=nodes.unit,
        TAILS=nodes.tails,
        TAIL_NODES=tail_nodes,
        STAGES=shape.stages,
        IS_WHOLE=nodes.is_whole,
        HAS_WINDOW=shape.window is not None,
        HAS_FIRST=shape.first_position > 0,
        HAS_SINKS=sinks_N is not None,
        num_warps=shape.num_warps(height),
        num_stages=shape.stages,
        PDL=pdl,
        **UNFUSED,
        **launch_options(pdl),
    )
    if nodes.is_whole:
        return
    if shape.rest:  # wide values: a program a head, since one for all heads of a row takes long
        heads, per_kv = heads * per_kv, 1
    lines = triton.next_power_of_2(per_kv)
    merge_splits_kernel[(len(nodes.nodes_T), heads)](
        out_TNH,
        nodes.states,
        nodes.values,
        nodes.nodes_T,
        nodes.positions_BW,
        nodes.roots_B,
        sinks_or_none,
        width,
        nodes.num_units,
        nodes.limit,
        window,
        shape.first_position,
        value_scale,
        NUM_KV_HEADS=heads,
        PER_KV=per_kv,
        HEADS=lines,
        HEAD_DIM=shape.head_dim,
        INNER=shape.inner,
        SPLIT=SPLIT,
        GROUP=GROUP,
        UNIT=nodes.unit,
        TAILS=nodes.tails,
        HAS_WINDOW=shape.window is not None,
        HAS_SINKS=sinks_N is not None,
        num_warps=max(1, min(4, lines * shape.inner // MERGED_A_WARP)),
        PDL=pdl,
        **UNFUSED,
        **launch_options(pdl),
    )


def _tail_nodes(shape: HeadShape) -> int:
    """Return the number of nodes whose own splits one program processes: a power of two."""
    if shape.keys < SPLIT:
        return 1
    return min(TAIL_NODES, 1 << (max(1, TAIL_LINES // shape.per_kv).bit_length() - 1))
