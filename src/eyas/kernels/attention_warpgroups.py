"""Attention of prompt rows whose keys and values lie in consecutive rows, for a Hopper device.

Promises: the bits of `attention_prefill.attend_prompts`, by products of the same columns and the same
`merge`, in the same order, wherever the matrix instructions of warpgroups add up the weights as those
of warps do (`attention.copied_prompts` tries it). Two warpgroups of a program have 64 lines each and
read the same splits, which a warp of its own brings: while one takes the softmax of a split the other
multiplies.
Does not know: slots (`copies` copies from them), layers with a window, how values are stored.

Method: a warpgroup multiplies the weights of a split with the values and then, at once, the queries
with the keys of the next split; while that is under way it merges. The result of complete groups is
in shared memory, since it is touched once a group, and the registers hold scores, a split's values
and the group's.

Legend: T rows, N query heads, G key/value heads, H head dim, P copied positions, X tiles, M lines of
a warpgroup (queries times query heads of a group), L keys of a split, Q stages, W warpgroups.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra import cuda

from eyas.kernels.softmax import finish, merge

_merge = gluon.jit(merge.fn)
_finish = gluon.jit(finish.fn)
"""The same texts in this language."""


@gluon.jit
def _laps(num_tiles):
    """How many tiles this program has."""
    num_programs = gl.num_programs(0)
    laps = (num_tiles + num_programs - 1) // num_programs
    return gl.where(_tile_of(laps - 1) < num_tiles, laps, laps - 1)


@gluon.jit
def _tile_of(lap):
    """The tile of this program in a lap. Tiles are in the order of how many splits they have, so every
    other lap gives them out in reverse."""
    num_programs = gl.num_programs(0)
    program = gl.program_id(0)
    return lap * num_programs + gl.where(lap % 2 == 0, program, num_programs - 1 - program)


@gluon.jit
def _place(tiles_X4, tile, NUM_KV_HEADS: gl.constexpr):
    """(head, row, position, count, first copied position) of a tile and key/value head."""
    numbers = tiles_X4 + tile // NUM_KV_HEADS * 4
    row = gl.load(numbers)
    position = gl.load(numbers + 1).to(gl.int32)
    count = gl.load(numbers + 2).to(gl.int32)
    base = gl.load(numbers + 3).to(gl.int32)
    return tile % NUM_KV_HEADS, row, position, count, base


@gluon.jit
def _load_splits(
    kv_blocks, tiles_X4, num_tiles, memory, NUM_KV_HEADS: gl.constexpr, PDL: gl.constexpr
):
    """Ask the copy engine for the keys and values of all splits, each as soon as both warpgroups have
    left its stage."""
    k_QLH, v_QLH = memory[2], memory[3]
    k_full_Q, v_full_Q, k_empty_Q, v_empty_Q = memory[4], memory[5], memory[6], memory[7]
    STAGES: gl.constexpr = k_QLH.shape[0]
    SPLIT: gl.constexpr = k_QLH.shape[1]
    HEAD_DIM: gl.constexpr = k_QLH.shape[2]
    BYTES: gl.constexpr = SPLIT * HEAD_DIM * 2
    if PDL:
        cuda.gdc_wait()
    loaded = 0
    for lap in range(_laps(num_tiles)):
        head, _, position, count, base = _place(tiles_X4, _tile_of(lap), NUM_KV_HEADS)
        column = head * HEAD_DIM
        for line in range(base, base + position + count, SPLIT):
            stage = loaded % STAGES
            left = (loaded // STAGES & 1) ^ 1
            mbarrier.wait(k_empty_Q.index(stage), left)
            mbarrier.expect(k_full_Q.index(stage), BYTES)
            tma.async_copy_global_to_shared(
                kv_blocks, [line, column], k_full_Q.index(stage), k_QLH.index(stage)
            )
            mbarrier.wait(v_empty_Q.index(stage), left)
            mbarrier.expect(v_full_Q.index(stage), BYTES)
            tma.async_copy_global_to_shared(
                kv_blocks,
                [line, NUM_KV_HEADS * HEAD_DIM + column],
                v_full_Q.index(stage),
                v_QLH.index(stage),
            )
            loaded += 1


@gluon.jit
def _score(q_MH, k_QLH, done, scores: gl.constexpr):
    """Begin to multiply the queries with the keys of a split, which are there."""
    LINES: gl.constexpr = q_MH.shape[0]
    SPLIT: gl.constexpr = k_QLH.shape[1]
    return warpgroup_mma(
        q_MH,
        k_QLH.index(done % k_QLH.shape[0]).permute((1, 0)),
        gl.zeros((LINES, SPLIT), gl.float32, scores),
        use_acc=False,
        is_async=True,
    )


@gluon.jit
def _weights(score_ML, position_M, first, split, scale, dtype: gl.constexpr):
    """(maximum, weights) of a split, as in `softmax.scores` and `softmax.weighted`."""
    SPLIT: gl.constexpr = score_ML.shape[1]
    if (split + 1) * SPLIT > first + 1:  # not every line sees all of it
        column_L = gl.arange(0, SPLIT, layout=gl.SliceLayout(0, score_ML.type.layout))
        is_seen_ML = (split * SPLIT + column_L)[None, :] <= position_M[:, None]
        score_ML = gl.where(is_seen_ML, score_ML, float("-inf"))
    top_M = gl.max(score_ML, 1) * scale
    finite_top_M = gl.where(top_M == float("-inf"), 0.0, top_M)
    weight_ML = gl.exp2(gl.fma(score_ML, scale, -finite_top_M[:, None])).to(dtype)
    return top_M, weight_ML


@gluon.jit
def _multiply(weight_ML, v_QLH, ones_L8, done, values: gl.constexpr):
    """(weighted values, sums of weights) of a split, which are there."""
    narrow: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16]
    )
    LINES: gl.constexpr = weight_ML.shape[0]
    HEAD_DIM: gl.constexpr = v_QLH.shape[2]
    value_MH = warpgroup_mma(
        gl.convert_layout(weight_ML, gl.DotOperandLayout(0, values, 2)),
        v_QLH.index(done % v_QLH.shape[0]),
        gl.zeros((LINES, HEAD_DIM), gl.float32, values),
        use_acc=False,
        is_async=True,
    )
    sum_M8 = warpgroup_mma(
        gl.convert_layout(weight_ML, gl.DotOperandLayout(0, narrow, 2)),
        ones_L8,
        gl.zeros((LINES, 8), gl.float32, narrow),
        use_acc=False,
        is_async=True,
    )
    return warpgroup_mma_wait(num_outstanding=0, deps=[value_MH, sum_M8])


@gluon.jit
def _merge_split(group, state, result_MH, top_M, sum_M8, value_MH, split, GROUP: gl.constexpr):
    """Merge a split into its group, and a complete group into the result. group: a partial softmax.
    state: (maximum, sum) of the result, whose values are in shared memory."""
    lines: gl.constexpr = group[0].type.layout
    top_M = gl.convert_layout(top_M, lines)
    sum_M = gl.convert_layout(gl.max(sum_M8, 1), lines)
    group_top_M, group_sum_M, group_value_MH = _merge(
        group[0], group[1], group[2], top_M, sum_M, value_MH
    )
    total_top_M, total_sum_M = state
    if split % GROUP == GROUP - 1:
        total_top_M, total_sum_M, total_value_MH = _merge(
            total_top_M, total_sum_M, result_MH.load(group_value_MH.type.layout),
            group_top_M, group_sum_M, group_value_MH,
        )  # fmt: skip
        result_MH.store(total_value_MH)
        group_top_M = gl.full_like(group_top_M, float("-inf"))
        group_sum_M = gl.zeros_like(group_sum_M)
        group_value_MH = gl.zeros_like(group_value_MH)
    return (group_top_M, group_sum_M, group_value_MH), (total_top_M, total_sum_M)


@gluon.jit
def _attend(
    pointers,
    num_tiles,
    memory,
    numbers,
    WARPGROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    PER_KV: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_SINKS: gl.constexpr,
    PDL: gl.constexpr,
):
    """What a warpgroup does: its lines of this program's tiles, over all their splits."""
    q_TNH, out_TNH, tiles_X4, sinks_N = pointers
    q_WMH, result_WMH, k_QLH, v_QLH, k_full_Q, v_full_Q, k_empty_Q, v_empty_Q, turn_W, ones_L8 = (
        memory
    )
    q_stride, scale, value_scale = numbers
    STAGES: gl.constexpr = k_QLH.shape[0]
    SPLIT: gl.constexpr = k_QLH.shape[1]
    LINES: gl.constexpr = q_WMH.shape[1]
    HEAD_DIM: gl.constexpr = q_WMH.shape[2]
    QUERIES: gl.constexpr = LINES // PER_KV
    dtype: gl.constexpr = q_WMH.dtype
    values: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HEAD_DIM, 16]
    )
    scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SPLIT, 16]
    )
    VECTORS: gl.constexpr = HEAD_DIM // 8
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [32 // VECTORS, VECTORS], [4, 1], [1, 0])
    lines: gl.constexpr = gl.SliceLayout(1, values)
    q_MH, result_MH = q_WMH.index(WARPGROUP), result_WMH.index(WARPGROUP)
    if PDL:
        cuda.gdc_wait()
    done = 0
    for lap in range(_laps(num_tiles)):
        head, row, position, count, _ = _place(tiles_X4, _tile_of(lap), NUM_KV_HEADS)
        num_splits = (position + count + SPLIT - 1) // SPLIT
        first = position + WARPGROUP * QUERIES
        num_queries = gl.minimum(count - WARPGROUP * QUERIES, QUERIES)

        line_M = gl.arange(0, LINES, layout=gl.SliceLayout(1, rows))
        is_line_M = line_M // PER_KV < num_queries
        row_M = row + WARPGROUP * QUERIES + line_M // PER_KV
        head_M = head * PER_KV + line_M % PER_KV
        inner_H = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, rows))
        place_MH = (row_M * q_stride + head_M * HEAD_DIM)[:, None] + inner_H[None, :]
        q_MH.store(gl.load(q_TNH + place_MH, mask=is_line_M[:, None], other=0.0))
        fence_async_shared()

        query_M = gl.arange(0, LINES, layout=gl.SliceLayout(1, scores)) // PER_KV
        position_M = gl.where(query_M < num_queries, first + query_M, -1)
        group_top_M = gl.full((LINES,), float("-inf"), gl.float32, lines)
        group_sum_M = gl.zeros((LINES,), gl.float32, lines)
        group_value_MH = gl.zeros((LINES, HEAD_DIM), gl.float32, values)
        group = (group_top_M, group_sum_M, group_value_MH)
        state = (group_top_M, group_sum_M)
        result_MH.store(group_value_MH)

        mbarrier.wait(k_full_Q.index(done % STAGES), done // STAGES & 1)
        score_ML = _score(q_MH, k_QLH, done, scores)
        score_ML = warpgroup_mma_wait(num_outstanding=0, deps=[score_ML])
        mbarrier.arrive(k_empty_Q.index(done % STAGES), count=1)
        for split in range(num_splits - 1):
            top_M, weight_ML = _weights(score_ML, position_M, first, split, scale, dtype)
            mbarrier.wait(v_full_Q.index(done % STAGES), done // STAGES & 1)
            mbarrier.wait(turn_W.index(WARPGROUP), (done & 1) ^ (1 - WARPGROUP))
            value_MH, sum_M8 = _multiply(weight_ML, v_QLH, ones_L8, done, values)
            ahead = done + 1
            mbarrier.wait(k_full_Q.index(ahead % STAGES), ahead // STAGES & 1)
            score_ML = _score(q_MH, k_QLH, ahead, scores)
            mbarrier.arrive(turn_W.index(1 - WARPGROUP), count=1)
            mbarrier.arrive(v_empty_Q.index(done % STAGES), count=1)
            group, state = _merge_split(
                group, state, result_MH, top_M, sum_M8, value_MH, split, GROUP
            )
            score_ML = warpgroup_mma_wait(num_outstanding=0, deps=[score_ML])
            mbarrier.arrive(k_empty_Q.index(ahead % STAGES), count=1)
            done = ahead
        last = num_splits - 1
        top_M, weight_ML = _weights(score_ML, position_M, first, last, scale, dtype)
        mbarrier.wait(v_full_Q.index(done % STAGES), done // STAGES & 1)
        mbarrier.wait(turn_W.index(WARPGROUP), (done & 1) ^ (1 - WARPGROUP))
        value_MH, sum_M8 = _multiply(weight_ML, v_QLH, ones_L8, done, values)
        mbarrier.arrive(turn_W.index(1 - WARPGROUP), count=1)
        mbarrier.arrive(v_empty_Q.index(done % STAGES), count=1)
        done += 1
        group, state = _merge_split(group, state, result_MH, top_M, sum_M8, value_MH, last, GROUP)

        top_M, sum_M, value_MH = _merge(
            state[0], state[1], result_MH.load(values), group[0], group[1], group[2]
        )
        sink_M = gl.zeros((LINES,), gl.float32, lines)
        if HAS_SINKS:
            line_M = gl.arange(0, LINES, layout=lines)
            sink_M = gl.load(sinks_N + head * PER_KV + line_M % PER_KV)
        out_MH = _finish(top_M, sum_M, value_MH, sink_M, value_scale, HAS_SINKS)
        q_MH.store(out_MH.to(dtype))  # so that whole lines of memory are written
        line_M = gl.arange(0, LINES, layout=gl.SliceLayout(1, rows))
        is_line_M = line_M // PER_KV < num_queries
        row_M = row + WARPGROUP * QUERIES + line_M // PER_KV
        head_M = head * PER_KV + line_M % PER_KV
        inner_H = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, rows))
        place_MH = ((row_M * (NUM_KV_HEADS * PER_KV) + head_M) * HEAD_DIM)[:, None] + inner_H[
            None, :
        ]
        gl.store(out_TNH + place_MH, q_MH.load(rows), mask=is_line_M[:, None])
    if PDL:
        cuda.gdc_launch_dependents()


@gluon.jit(do_not_specialize=["num_tiles"])
def grouped_prompts_kernel(
    q_TNH,
    kv_blocks,
    out_TNH,
    tiles_X4,
    sinks_N,
    num_tiles,
    q_stride,
    scale,
    value_scale,
    NUM_KV_HEADS: gl.constexpr,
    PER_KV: gl.constexpr,
    LINES: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    LOADER_REGISTERS: gl.constexpr,
    HAS_SINKS: gl.constexpr,
    PDL: gl.constexpr,
):
    """Programs share out the tiles of queries and key/value heads, of which there are num_tiles.

    kv_blocks: tensor descriptor of the copied keys and values [P, 2 * G * H], a block of which is a
    split of a head.
    """
    SPLIT: gl.constexpr = kv_blocks.block_shape[0]
    HEAD_DIM: gl.constexpr = kv_blocks.block_shape[1]
    dtype: gl.constexpr = kv_blocks.dtype
    own: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    q_WMH = gl.allocate_shared_memory(dtype, [2, LINES, HEAD_DIM], kv_blocks.layout)
    result_WMH = gl.allocate_shared_memory(gl.float32, [2, LINES, HEAD_DIM], own)
    k_QLH = gl.allocate_shared_memory(dtype, [STAGES, SPLIT, HEAD_DIM], kv_blocks.layout)
    v_QLH = gl.allocate_shared_memory(dtype, [STAGES, SPLIT, HEAD_DIM], kv_blocks.layout)
    k_full_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty_Q = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn_W = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full_Q.index(stage), count=1)
        mbarrier.init(v_full_Q.index(stage), count=1)
        mbarrier.init(k_empty_Q.index(stage), count=2)
        mbarrier.init(v_empty_Q.index(stage), count=2)
    mbarrier.init(turn_W.index(0), count=1)
    mbarrier.init(turn_W.index(1), count=1)
    ones_8L = gl.allocate_shared_memory(dtype, [8, SPLIT], gl.NVMMASharedLayout(128, 16, 2))
    ones_8L.store(
        gl.full((8, SPLIT), 1.0, dtype, gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
    )
    fence_async_shared()
    memory = (
        q_WMH,
        result_WMH,
        k_QLH,
        v_QLH,
        k_full_Q,
        v_full_Q,
        k_empty_Q,
        v_empty_Q,
        turn_W,
        ones_8L.permute((1, 0)),
    )
    pointers = (q_TNH, out_TNH, tiles_X4, sinks_N)
    numbers = (q_stride, scale, value_scale)
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    pointers, num_tiles, memory, numbers, 0, NUM_KV_HEADS, PER_KV, GROUP, HAS_SINKS,
                    PDL,
                ),
            ),
            (
                _attend,
                (
                    pointers, num_tiles, memory, numbers, 1, NUM_KV_HEADS, PER_KV, GROUP, HAS_SINKS,
                    PDL,
                ),
            ),
            (_load_splits, (kv_blocks, tiles_X4, num_tiles, memory, NUM_KV_HEADS, PDL)),
        ],
        [4, 1],
        [REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip
