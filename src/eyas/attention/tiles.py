"""Attention by torch operations: gathered keys, and tiles of queries.

Promises: a row has the same products in the same reduction order in every batch. The number of columns
of a query depends on its position alone (`lanes.key_width`), and tiles of queries have heights that
give the same bits on this machine (`tile_heights`; docs/facts.md has the measurement).
Does not know: models, which rows are prompts and which are drafts.

Legend: T rows, N query heads, G key/value heads, J query heads a key/value head, H head dim, Y lanes, L
key columns, Q queries of a lane, X tiles of a lane, M rows of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from eyas.attention.lanes import Lanes
from eyas.cache.store import KVScales, LayerStore
from eyas.ops.rotate_and_store import as_bytes

WHOLE_DIMS = 8
"""Head dims are filled up to a multiple of this: for one of 6 or 10 the bits of a float32 row depend on
its place in a tile."""
TILE_PRODUCT_ROWS = (4, 12, 32)
"""Rows of a tile's products (query heads of a group times tile height), smallest first."""


def tile_heights(store: LayerStore, dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """Return the tile heights that give a row the same bits on this machine, smallest first.

    All are tried on random data. If one disagrees with the smallest, only the smallest is used. So
    it is for head dims that are no multiple of 16, whose rare differences random data may not show.
    """
    per_kv = store.num_query_heads // store.num_kv_heads
    heights = sorted(
        {-(-TILE_PRODUCT_ROWS[0] // per_kv)}
        | {max(1, rows // per_kv) for rows in TILE_PRODUCT_ROWS[1:]}
    )
    heights = [height for height in heights if per_kv * height >= TILE_PRODUCT_ROWS[0]]
    if store.head_dim % 16:
        return (heights[0],)
    generator = torch.Generator(device).manual_seed(1)
    rows = heights[-1] * heights[0]
    with torch.inference_mode():
        for width in (192, 384, 512, 1024):
            kv_S2GH = torch.randn(
                (width, *store.slot_shape), generator=generator, device=device
            ).to(dtype)
            q_TNH = torch.randn(
                (rows, store.num_query_heads, store.head_dim), generator=generator, device=device
            ).to(dtype)
            rows_1Q = torch.arange(rows, device=device).unsqueeze(0)
            slots_1L = torch.arange(width, device=device).unsqueeze(0)
            lanes = Lanes(slots_1L, rows_1Q, torch.full_like(rows_1Q, width - 6))
            for sinks_N in (None, torch.zeros(store.num_query_heads, device=device)):
                results = [
                    Tiles(lanes, store, (height,), dtype).run(q_TNH, kv_S2GH, KVScales(), sinks_N)[
                        :rows
                    ]
                    for height in heights
                ]
                if not all(torch.equal(result, results[0]) for result in results[1:]):
                    return (heights[0],)
    return tuple(heights)


class TiledQueries:
    """All tiles of a forward pass for layers of one kind, and the place of each row's output in them.

    Padding rows, which are in no lane, get the output of another row, which is finite.
    """

    def __init__(
        self,
        groups: Sequence[Lanes],
        store: LayerStore,
        heights: tuple[int, ...],
        dtype: torch.dtype,
        num_rows: int,
        window_slots_S: torch.Tensor | None,
    ) -> None:
        self._tiles = [Tiles(lanes, store, heights, dtype, window_slots_S) for lanes in groups]
        parts = [tiles.rows for tiles in self._tiles]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._num_rows = num_rows
        self._index_T: torch.Tensor | None = None
        if len(rows) >= num_rows:
            if all(row == place or row < 0 for place, row in enumerate(rows.tolist())):
                return
        places = torch.arange(len(rows), device=rows.device)
        index = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
        index[torch.where(rows >= 0, rows, num_rows)] = places
        self._index_T = index[:num_rows]

    def run(
        self,
        q_TNH: torch.Tensor,
        kv_S2GH: torch.Tensor,
        scales: KVScales,
        sinks_N: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the outputs [T, N, H] of all rows."""
        outputs = [tiles.run(q_TNH, kv_S2GH, scales, sinks_N) for tiles in self._tiles]
        flat = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return flat[: self._num_rows] if self._index_T is None else flat[self._index_T]


class Tiles:
    """Lanes cut into tiles of one height, with their masks; shared by all layers of one kind.

    rows: row of the forward pass for each place of the tiles in order, -1 for padding.
    window_slots_S: as `KVStore.window_slots`.
    """

    def __init__(
        self,
        lanes: Lanes,
        store: LayerStore,
        heights: tuple[int, ...],
        dtype: torch.dtype,
        window_slots_S: torch.Tensor | None = None,
    ) -> None:
        self._num_lanes, num_queries = lanes.rows_YQ.shape
        self._scale = store.scale
        self._output_dim = store.output_dim
        self._per_kv = per_kv = store.num_query_heads // store.num_kv_heads
        self._height = next((h for h in heights if h >= num_queries), heights[-1])
        self._num_tiles = -(-num_queries // self._height)
        missing = self._num_tiles * self._height - num_queries
        positions_YQ, rows_YQ = lanes.positions_YQ, lanes.rows_YQ
        if missing:
            positions_YQ = pad(positions_YQ, (0, missing))
            rows_YQ = pad(rows_YQ, (0, missing), value=-1)
        self.rows = rows_YQ.reshape(-1)
        self._query_rows = self.rows.clamp(min=0)
        self._slots = lanes.slots_YL.reshape(-1)
        if window_slots_S is not None:
            self._slots = window_slots_S[self._slots]
        self._num_columns = lanes.slots_YL.shape[1]
        columns_L = torch.arange(self._num_columns, device=self.rows.device)
        positions_YQ1 = positions_YQ.unsqueeze(-1)
        seen = columns_L <= positions_YQ1
        if store.window is not None:
            seen &= columns_L > positions_YQ1 - store.window
        if store.first_position:
            seen &= (columns_L >= store.first_position) | (columns_L == positions_YQ1)
        shown = torch.zeros((), dtype=dtype, device=self.rows.device)
        mask = torch.where(seen, shown, shown - torch.inf)
        # [Y * X, 1, J * M, L]: the query heads of a group are rows of a tile
        self._num_places = self._num_lanes * self._num_tiles
        mask = mask.view(self._num_places, 1, self._height, self._num_columns)
        self._mask = mask.expand(-1, per_kv, -1, -1).reshape(
            self._num_places, 1, per_kv * self._height, self._num_columns
        )

    def run(
        self,
        q_TNH: torch.Tensor,
        kv_S2GH: torch.Tensor,
        scales: KVScales,
        sinks_N: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the outputs [places, N, H] in tile order. The scale of keys is part of the softmax's,
        that of values of the output."""
        num_kv, head_dim = kv_S2GH.shape[2:]
        sinks_GJ = None if sinks_N is None else sinks_N.view(num_kv, self._per_kv)
        scale = scales.key * (head_dim**-0.5 if self._scale is None else self._scale)
        kv = as_bytes(kv_S2GH).index_select(0, self._slots).view(kv_S2GH.dtype).to(q_TNH.dtype)
        kv = kv.view(self._num_lanes, self._num_columns, -1, num_kv, head_dim)
        q = q_TNH.index_select(0, self._query_rows)
        if missing := -head_dim % WHOLE_DIMS:
            kv, q = pad(kv, (0, missing)), pad(q, (0, missing))
            head_dim += missing
        sides = kv.permute(2, 0, 3, 1, 4).unbind(0)
        # Values inside keys are taken with the rest of the row, whose sums are then dropped: torch's
        # blocked attention takes keys and values of one width alone.
        k_YGLH, v_YGLH = sides[0], sides[-1]
        q = q.view(self._num_places, self._height, num_kv, self._per_kv, head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(
            self._num_places, num_kv, self._per_kv * self._height, head_dim
        )
        if self._num_tiles == 1:
            out = attend_tiles(q, k_YGLH, v_YGLH, self._mask, scale, sinks_GJ)
        elif self._num_lanes == 1:
            every = (self._num_tiles, -1, -1, -1)
            out = attend_tiles(
                q, k_YGLH.expand(every), v_YGLH.expand(every), self._mask, scale, sinks_GJ
            )
        else:
            shape = (self._num_lanes, self._num_tiles)
            q_tiles = q.unflatten(0, shape).unbind(1)
            masks = self._mask.unflatten(0, shape).unbind(1)
            tiles = [
                attend_tiles(q_tile, k_YGLH, v_YGLH, mask, scale, sinks_GJ)
                for q_tile, mask in zip(q_tiles, masks, strict=True)
            ]
            out = torch.stack(tiles, dim=1)
        out = out.view(self._num_places, num_kv, self._per_kv, self._height, head_dim)
        out = out[..., : self._output_dim].permute(0, 3, 1, 2, 4)
        if scales.value != 1.0:
            out = out * scales.value
        return out.reshape(-1, num_kv * self._per_kv, self._output_dim)


def attend_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None,
    sinks_GJ: torch.Tensor | None,
) -> torch.Tensor:
    """Return the outputs of tiles, whose rows are J heads times M queries.

    With sinks, all keys of a row together compete with its head's sink: a softmax of two, which torch
    computes for each row alone, so that its bits do not depend on the row's place.
    """
    if sinks_GJ is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=mask, scale=scale
    )
    num_queries = log_sums.shape[2] // sinks_GJ.shape[1]
    sinks = sinks_GJ.repeat_interleave(num_queries, dim=1).expand_as(log_sums)
    both = torch.stack((log_sums, sinks), dim=-1)
    return (out * both.softmax(-1)[..., :1]).to(out.dtype)
