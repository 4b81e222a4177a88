"""Attention of prompt rows over slots, in one launch.

Promises: one launch processes all chunks of a forward pass, the tiles with most keys first. Every
row has the bits that it would have as a node (`kernels.softmax`).
Does not know: layouts, nodes.

Legend: T rows, N query heads, G key/value heads, H head dim, S slots, B sequences, A seats, C
columns (positions), X tiles, M rows of a tile (queries times query heads of a group), L keys of a
block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from eyas.kernels.launch import enter, launch_options
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


@triton.jit
def _tile(
    tiles_X4,
    seats_B,
    slots_AC,
    num_columns,
    q_TNH,
    q_stride,
    PER_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    REST_INNER: tl.constexpr,
    HEIGHT: tl.constexpr,
):
    """(queries, their rest, their positions, first and last of these, the sequence's slots, place and
    mask of the answers) of this program's tile and key/value head."""
    tile = tiles_X4 + tl.program_id(1) * 4
    table = slots_AC + tl.load(seats_B + tl.load(tile)) * num_columns
    row = tl.load(tile + 1)
    position = tl.load(tile + 2)
    count = tl.load(tile + 3)
    line_M = tl.arange(0, HEIGHT)
    query_M = line_M // PER_KV
    is_line = query_M < count
    inner_1H = tl.arange(0, INNER)[None, :]
    head_M = tl.program_id(0) * PER_KV + line_M % PER_KV
    inside_MH = head_M[:, None] * HEAD_DIM + inner_1H
    is_wanted = is_line[:, None] & (inner_1H < HEAD_DIM)
    row_M1 = (row + query_M)[:, None]
    query_MH = head_M[:, None] * (HEAD_DIM + REST) + inner_1H
    q_MH = tl.load(q_TNH + row_M1 * q_stride + query_MH, mask=is_wanted, other=0.0)
    q_MF = q_MH
    if REST > 0:
        q_MF = rest_of_queries(
            q_TNH, row + query_M, head_M, q_stride, is_line, HEAD_DIM, REST, REST_INNER
        )
    place_MH = row_M1 * (tl.num_programs(0) * PER_KV * HEAD_DIM) + inside_MH
    position_M = tl.where(is_line, position + query_M, -1)
    last = position + count - 1
    return q_MH, q_MF, position_M, position, last, table, head_M, place_MH, is_wanted


@triton.jit
def _ordered_splits(
    q_MH,
    q_MF,
    position_M,
    top_M,
    sum_M,
    value_MH,
    group_top_M,
    group_sum_M,
    group_value_MH,
    begin,
    end,
    stop,
    kv,
    table,
    window_slots,
    window,
    first_position,
    scale,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """Merge splits [begin, end) into the current group, and complete groups into the result. One
    loop, so that loads continue across the borders of groups."""
    for split in tl.range(begin, end, num_stages=STAGES):
        own_top_M, own_sum_M, own_value_MH = attend_split(
            q_MH, q_MF, position_M, split * SPLIT, stop, kv, table, window_slots, table, 0, window,
            first_position, scale, SIDE, HEAD_DIM, INNER, REST, KEYS, SPLIT, IS_MASKED, False,
            HAS_WINDOW, HAS_FIRST,
        )  # fmt: skip
        group_top_M, group_sum_M, group_value_MH = merge(
            group_top_M, group_sum_M, group_value_MH, own_top_M, own_sum_M, own_value_MH
        )
        if split % GROUP == GROUP - 1:
            top_M, sum_M, value_MH = merge(
                top_M, sum_M, value_MH, group_top_M, group_sum_M, group_value_MH
            )
            group_top_M, group_sum_M, group_value_MH = empty(value_MH.shape[0], INNER)
    return top_M, sum_M, value_MH, group_top_M, group_sum_M, group_value_MH


@triton.jit(do_not_specialize=["num_columns", "window", "first_position"])
def prompts_kernel(
    q_TNH,
    kv_S2GH,
    out_TNH,
    tiles_X4,
    seats_B,
    slots_AC,
    window_slots,
    sinks_N,
    q_stride,
    num_columns,
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
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a tile of queries and key/value head: splits and groups in the order of nodes."""
    enter(PDL)
    SIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    q_MH, q_MF, position_M, first, last, table, head_M, place_MH, is_wanted = _tile(
        tiles_X4, seats_B, slots_AC, num_columns, q_TNH, q_stride, PER_KV, HEAD_DIM, INNER, REST,
        REST_INNER, HEIGHT,
    )  # fmt: skip
    kv = kv_S2GH
    if REST == 0:
        kv += tl.program_id(0) * HEAD_DIM
    ALWAYS_MASKED: tl.constexpr = HAS_WINDOW or HAS_FIRST
    top_M, sum_M, value_MH = empty(HEIGHT, INNER)
    group_top_M, group_sum_M, group_value_MH = empty(HEIGHT, INNER)
    stop = last + 1
    begin = first_seen(first, window, first_position, HAS_WINDOW) // SPLIT
    middle = begin
    if not ALWAYS_MASKED:
        middle = (first + 1) // SPLIT
        top_M, sum_M, value_MH, group_top_M, group_sum_M, group_value_MH = _ordered_splits(
            q_MH, q_MF, position_M, top_M, sum_M, value_MH, group_top_M, group_sum_M,
            group_value_MH, begin, middle, stop, kv, table, window_slots, window, first_position,
            scale, SIDE, HEAD_DIM, INNER, REST, KEYS, SPLIT, GROUP, STAGES, False, False, False,
        )  # fmt: skip
    top_M, sum_M, value_MH, group_top_M, group_sum_M, group_value_MH = _ordered_splits(
        q_MH, q_MF, position_M, top_M, sum_M, value_MH, group_top_M, group_sum_M, group_value_MH,
        middle, tl.cdiv(stop, SPLIT), stop, kv, table, window_slots, window, first_position, scale,
        SIDE, HEAD_DIM, INNER, REST, KEYS, SPLIT, GROUP, STAGES, True, HAS_WINDOW, HAS_FIRST,
    )  # fmt: skip
    top_M, sum_M, value_MH = merge(top_M, sum_M, value_MH, group_top_M, group_sum_M, group_value_MH)
    sink_M = tl.zeros((HEIGHT,), tl.float32)
    if HAS_SINKS:
        sink_M = tl.load(sinks_N + head_M)
    out_MH = finish(top_M, sum_M, value_MH, sink_M, value_scale, HAS_SINKS)
    tl.store(out_TNH + place_MH, out_MH.to(out_TNH.dtype.element_ty), mask=is_wanted)


@dataclass(frozen=True, slots=True)
class PromptTiles:
    """The tiles of prompt rows. height: lines of a tile. stages: splits that are loaded at a time."""

    height: int
    num_warps: int
    stages: int


def cut(runs: Sequence[tuple[int, int, int, int]], queries: int) -> np.ndarray:
    """Return [X, 4]: sequence, row, position and count of tiles of `queries` queries, most keys first.

    runs: the same four numbers of whole chunks.
    """
    parts = []
    for sequence, row, position, count in runs:
        offsets = np.arange(0, count, queries, dtype=np.int64)
        part = np.empty((len(offsets), 4), dtype=np.int64)
        part[:, 0] = sequence
        part[:, 1] = row + offsets
        part[:, 2] = position + offsets
        part[:, 3] = np.minimum(count - offsets, queries)
        parts.append(part)
    tiles = np.concatenate(parts)
    return tiles[np.argsort(-tiles[:, 2], kind="stable")]


def attend_prompts(
    q_TNH: torch.Tensor,
    kv_S2GH: torch.Tensor,
    out_TNH: torch.Tensor,
    tiles_X4: torch.Tensor,
    seats_B: torch.Tensor,
    slots_AC: torch.Tensor,
    shape: HeadShape,
    tiles: PromptTiles,
    *,
    sinks_N: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    window_slots_S: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Write the outputs of the rows of `tiles_X4` (`cut`) to out_TNH; its other rows are not changed.

    key_scale, value_scale: what is stored times this is a key or value. window_slots_S: the place in
    `kv_S2GH` of each slot; None if it is the slot.

    Reference: `dense` in tests/attention/scenes.py.
    """
    prompts_kernel[(shape.num_kv_heads, len(tiles_X4))](
        q_TNH,
        kv_S2GH,
        out_TNH,
        tiles_X4,
        seats_B,
        slots_AC,
        window_slots_S,
        seats_B if sinks_N is None else sinks_N,
        q_TNH.stride(0),
        slots_AC.stride(0),
        0 if shape.window is None else shape.window,
        shape.first_position,
        shape.scale * key_scale,
        value_scale,
        NUM_KV_HEADS=shape.num_kv_heads,
        PER_KV=shape.per_kv,
        HEAD_DIM=shape.head_dim,
        INNER=shape.inner,
        REST=shape.rest,
        REST_INNER=shape.rest_inner,
        HEIGHT=tiles.height,
        KEYS=shape.keys,
        SPLIT=SPLIT,
        GROUP=GROUP,
        STAGES=tiles.stages,
        HAS_WINDOW=shape.window is not None,
        HAS_FIRST=shape.first_position > 0,
        HAS_SINKS=sinks_N is not None,
        num_warps=tiles.num_warps,
        num_stages=tiles.stages,
        PDL=pdl,
        **UNFUSED,
        **launch_options(pdl),
    )
