"""Softmax in parts: the result of a tile of queries over one split of the keys, and how results merge.

Keys are cut at absolute multiples of SPLIT positions, and splits gathered in groups of GROUP. A split
gives (maximum, sum, weighted values) by matrix products of one shape; splits are merged in order within
their group, groups in order. How this is divided among programs changes no bit: one may do a split
or a group (`kernels.attention`), and a prompt's rows all of it (`kernels.attention_prefill`).

Values may be the first HEAD_DIM numbers of the keys (latent attention): REST is then how many numbers
a key has beyond them, a slot holds one row of HEAD_DIM + REST numbers, and all heads read it. With
REST = 0 a slot holds the keys of all heads, then their values, HEAD_DIM numbers each.

The cache may have a narrower number format than queries: what is read is converted to theirs, which
changes no number, and the scale of keys is part of the softmax's, that of values of the output.

Layers with a window may have slots of their own: `window_slots` holds them by slot, or is None.

Promises: the row sum is taken by the matrix unit as well, so neither the height of a tile nor the
number of its warps has a say in the order of any sum; which products are fused with what they are
added to is written down (kernels are compiled without `enable_fp_fusion`), so that no compiler decides
about it. A masked key weighs exactly nothing.
Does not know: layouts, which rows a tile is made of.

Legend: M rows of a tile (queries times query heads of a group), H head dim, F the REST of a key, L keys
of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

SPLIT = 128
"""Keys of a split."""
GROUP = 4
"""Splits of a group."""
UNFUSED = {"enable_fp_fusion": False}
"""Fusing products would give other bits than a kernel that reads the products from memory."""
LOG2_E = tl.constexpr(1.4426950408889634)
MATRIX_DEPTH = tl.constexpr(16)
"""Columns that the matrix unit adds at once; a column's place among them affects the bits."""
PRECISION = tl.constexpr("tf32x3")
"""The precision of float32 products: three products of the matrix unit, with float32's error."""
SHARED_ROW_LINES = 16
"""Most lines of a tile where all heads read one row, which is wide: more do not fit into registers."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The constants that attention of one kind of layer is compiled for.

    head_dim: width of values. inner: head_dim, padded to a power of 2. keys: of a block, a divisor of
    SPLIT. scale: of dot products, for powers of 2. stages: blocks that are loaded at a time, for nodes.
    rest: numbers of a key beyond its values; 0 is values of their own. With them there is one stored
    row for all heads, and num_kv_heads is the number of tiles that the heads of a query are cut into.
    """

    num_kv_heads: int
    per_kv: int
    head_dim: int
    inner: int
    keys: int
    window: int | None
    first_position: int
    scale: float
    stages: int = 1
    rest: int = 0

    @classmethod
    def of(
        cls,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        itemsize: int,
        window: int | None = None,
        first_position: int = 0,
        scale: float | None = None,
        value_dim: int | None = None,
    ) -> HeadShape:
        scale = head_dim**-0.5 if scale is None else scale
        rest = 0
        if value_dim is not None:
            assert num_kv_heads == 1 and value_dim < head_dim
            head_dim, rest = value_dim, head_dim - value_dim
            most = min(SHARED_ROW_LINES, num_query_heads)
            per_tile = next(n for n in range(most, 0, -1) if num_query_heads % n == 0)
            num_kv_heads = num_query_heads // per_tile
        inner = max(16, triton.next_power_of_2(head_dim))
        row = inner * itemsize
        keys = SPLIT if row <= 256 else SPLIT // 2 if itemsize == 2 else SPLIT // 4
        if rest and row > 256:
            keys //= 2
        return cls(
            num_kv_heads,
            num_query_heads // num_kv_heads,
            head_dim,
            inner,
            keys,
            window,
            first_position,
            scale * LOG2_E.value,
            2 if itemsize == 2 and (row <= 256 or rest) else 1,
            rest,
        )

    @property
    def rest_inner(self) -> int:
        """`rest`, padded to a power of 2; a matrix product has at least 16 columns."""
        return max(16, triton.next_power_of_2(self.rest)) if self.rest else 0

    def num_warps(self, height: int) -> int:
        """Return the warps of a program whose tile has `height` lines; they do not affect the bits."""
        is_small = self.inner <= 128 and self.keys >= SPLIT // 2 and height <= 32
        return 4 if is_small else 8


@triton.jit
def first_seen(position, window, first_position, HAS_WINDOW: tl.constexpr):
    """The first position that the query at `position` sees; with it all up to its own, but for those
    between it and `first_position`."""
    first = first_position
    if HAS_WINDOW:
        first = tl.maximum(first, position - window + 1)
    return tl.maximum(tl.minimum(first, position), 0)


@triton.jit
def merge(top_M, sum_M, value_MH, other_top_M, other_sum_M, other_value_MH):
    """Merge two partial softmaxes, the first of which precedes the other."""
    merged_top_M = tl.maximum(top_M, other_top_M)
    finite_top_M = tl.where(merged_top_M == float("-inf"), 0.0, merged_top_M)
    scale_M = tl.exp2(top_M - finite_top_M)
    other_M = tl.exp2(other_top_M - finite_top_M)
    merged_sum_M = tl.fma(other_sum_M, other_M, sum_M * scale_M)
    merged_value_MH = tl.fma(other_value_MH, other_M[:, None], value_MH * scale_M[:, None])
    return merged_top_M, merged_sum_M, merged_value_MH


@triton.jit
def empty(HEIGHT: tl.constexpr, INNER: tl.constexpr):
    """The partial softmax over no key."""
    top_M = tl.full((HEIGHT,), float("-inf"), tl.float32)
    return top_M, tl.zeros((HEIGHT,), tl.float32), tl.zeros((HEIGHT, INNER), tl.float32)


@triton.jit
def finish(top_M, sum_M, value_MH, sink_M, value_scale, HAS_SINKS: tl.constexpr):
    """The output of rows whose keys are all merged; zeros for rows without keys. value_scale: a stored
    number times this is one of a value."""
    if HAS_SINKS:
        last_M = tl.maximum(top_M, sink_M * LOG2_E)
        scale_M = tl.exp2(top_M - last_M)
        sum_M = tl.fma(sum_M, scale_M, tl.exp2(sink_M * LOG2_E - last_M))
        value_MH = value_MH * scale_M[:, None]
    return value_MH / tl.where(sum_M > 0.0, sum_M, 1.0)[:, None] * value_scale


@triton.jit
def own_slots(slot_L, window_slots):
    """The slots in the tensor of a layer."""
    if window_slots is not None:
        slot_L = tl.load(window_slots + slot_L)
    return slot_L


@triton.jit
def _stored(
    side,
    slot_L,
    is_stored,
    like,
    SLOT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """[L, H] the keys or values of these slots, in the type of `like`; zeros where nothing is stored.
    SLOT: numbers of a slot."""
    inner_1H = tl.arange(0, INNER)[None, :]
    source_LH = side + slot_L[:, None] * SLOT + inner_1H
    is_inner = inner_1H < HEAD_DIM
    if IS_MASKED:
        x_LH = tl.load(source_LH, mask=is_stored[:, None] & is_inner, other=0.0)
    elif INNER == HEAD_DIM:
        x_LH = tl.load(source_LH)
    else:
        x_LH = tl.load(source_LH, mask=is_inner, other=0.0)
    return x_LH.to(like.dtype)


@triton.jit
def rest_of_queries(
    q_TNH,
    row_M,
    head_M,
    q_stride,
    is_line,
    HEAD_DIM: tl.constexpr,
    REST: tl.constexpr,
    REST_INNER: tl.constexpr,
):
    """[M, F] the numbers of queries beyond the first HEAD_DIM."""
    rest_1F = tl.arange(0, REST_INNER)[None, :]
    place_MF = row_M[:, None] * q_stride + head_M[:, None] * (HEAD_DIM + REST) + HEAD_DIM + rest_1F
    return tl.load(q_TNH + place_MF, mask=is_line[:, None] & (rest_1F < REST), other=0.0)


@triton.jit
def scores(
    q_MH,
    q_MF,
    position_M,
    owner_M,
    slot_L,
    column_L,
    owner_L,
    is_stored,
    kv,
    window,
    first_position,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_OWNERS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """Products of the rows of a tile with these columns of keys, -inf where a row does not see one: it
    sees those up to its own position and, HAS_OWNERS, of its own owner; all without IS_MASKED. q_MF:
    the rest of the queries; not used with REST = 0."""
    SLOT: tl.constexpr = 2 * SIDE if REST == 0 else HEAD_DIM + REST
    k_LH = _stored(kv, slot_L, is_stored, q_MH, SLOT, HEAD_DIM, INNER, IS_MASKED)
    score_ML = tl.dot(q_MH, tl.trans(k_LH), input_precision=PRECISION)
    if REST > 0:
        k_LF = _stored(kv + HEAD_DIM, slot_L, is_stored, q_MH, SLOT, REST, q_MF.shape[1], IS_MASKED)
        score_ML = tl.dot(q_MF, tl.trans(k_LF), score_ML, input_precision=PRECISION)
    if IS_MASKED:
        is_seen = (column_L[None, :] <= position_M[:, None]) & is_stored[None, :]
        if HAS_OWNERS:
            is_seen = is_seen & (owner_L[None, :] == owner_M[:, None])
        if HAS_WINDOW:
            is_seen = is_seen & (column_L[None, :] > position_M[:, None] - window)
        if HAS_FIRST:
            is_own = column_L[None, :] == position_M[:, None]
            is_seen = is_seen & ((column_L[None, :] >= first_position) | is_own)
        score_ML = tl.where(is_seen, score_ML, float("-inf"))
    return score_ML


@triton.jit
def nothing_weighted(HEIGHT: tl.constexpr, INNER: tl.constexpr):
    """The sums that `weighted` adds to, over no column."""
    return tl.zeros((HEIGHT, 8), tl.float32), tl.zeros((HEIGHT, INNER), tl.float32)


@triton.jit
def weighted(
    score_ML,
    q_MH,
    top_M,
    scale,
    slot_L,
    is_stored,
    kv,
    sum_M8,
    value_MH,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """The sums of weights (in each of 8 columns) and of weighted values, with these columns added.
    top_M: the highest score of each row, in whatever columns, times `scale`. q_MH: the queries, whose
    type weights and values have."""
    finite_top_M = tl.where(top_M == float("-inf"), 0.0, top_M)
    SLOT: tl.constexpr = 2 * SIDE if REST == 0 else HEAD_DIM + REST
    VALUES: tl.constexpr = SIDE if REST == 0 else 0
    v_LH = _stored(kv + VALUES, slot_L, is_stored, q_MH, SLOT, HEAD_DIM, INNER, IS_MASKED)
    weight_ML = tl.exp2(tl.fma(score_ML, scale, -finite_top_M[:, None])).to(v_LH.dtype)
    ones_L8 = tl.full((KEYS, 8), 1.0, v_LH.dtype)
    sum_M8 = tl.dot(weight_ML, ones_L8, sum_M8, input_precision=PRECISION)
    return sum_M8, tl.dot(weight_ML, v_LH, value_MH, input_precision=PRECISION)


@triton.jit
def _attend_keys(
    q_MH,
    q_MF,
    position_M,
    column_L,
    stop,
    kv,
    table,
    window_slots,
    path,
    root,
    window,
    first_position,
    scale,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_PATH: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """The partial softmax of a tile over one block of keys, as in `attend_split`."""
    is_stored = column_L < stop
    if HAS_PATH:
        slot_L = tl.load(table + column_L, mask=is_stored & (column_L < root), other=0)
        slot_L += tl.load(path - column_L, mask=is_stored & (column_L >= root), other=0)
    elif IS_MASKED:
        slot_L = tl.load(table + column_L, mask=is_stored, other=0)
    else:
        slot_L = tl.load(table + column_L)
    slot_L = own_slots(slot_L, window_slots)
    score_ML = scores(
        q_MH, q_MF, position_M, position_M, slot_L, column_L, column_L, is_stored, kv, window,
        first_position, SIDE, HEAD_DIM, INNER, REST, IS_MASKED, False, HAS_WINDOW, HAS_FIRST,
    )  # fmt: skip
    top_M = tl.max(score_ML, 1) * scale
    sum_M8, value_MH = nothing_weighted(q_MH.shape[0], INNER)
    sum_M8, value_MH = weighted(
        score_ML, q_MH, top_M, scale, slot_L, is_stored, kv, sum_M8, value_MH, SIDE, HEAD_DIM, INNER,
        REST, KEYS, IS_MASKED,
    )  # fmt: skip
    return top_M, tl.max(sum_M8, 1), value_MH


@triton.jit
def attend_split(
    q_MH,
    q_MF,
    position_M,
    start,
    stop,
    kv,
    table,
    window_slots,
    path,
    root,
    window,
    first_position,
    scale,
    SIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    INNER: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_PATH: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):
    """The partial softmax of a tile over the keys of the split at `start` that are before `stop`.

    kv: the head's keys in slot 0; a slot is 2 * SIDE numbers, values SIDE after keys, unless values are
    part of the keys (REST). table: slots by
    position; from `root` on, where HAS_PATH, they stand at path[-position]. position_M: -1 is no row.
    IS_MASKED: not every row sees all of the split.
    """
    column_L = start + tl.arange(0, KEYS)
    top_M, sum_M, value_MH = _attend_keys(
        q_MH, q_MF, position_M, column_L, stop, kv, table, window_slots, path, root, window,
        first_position, scale, SIDE, HEAD_DIM, INNER, REST, KEYS, IS_MASKED, HAS_PATH, HAS_WINDOW,
        HAS_FIRST,
    )  # fmt: skip
    if KEYS < SPLIT:
        for offset in range(KEYS, SPLIT, KEYS):
            own_top_M, own_sum_M, own_value_MH = _attend_keys(
                q_MH, q_MF, position_M, column_L + offset, stop, kv, table, window_slots, path, root,
                window, first_position, scale, SIDE, HEAD_DIM, INNER, REST, KEYS, IS_MASKED, HAS_PATH,
                HAS_WINDOW, HAS_FIRST,
            )  # fmt: skip
            top_M, sum_M, value_MH = merge(
                top_M, sum_M, value_MH, own_top_M, own_sum_M, own_value_MH
            )
    return top_M, sum_M, value_MH
