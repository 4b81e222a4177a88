"""Attention on the CPU, and the reference of every other backend.

Promises: a row's result depends on its own prefix alone, bit for bit on the CPU. Every sequence,
and every root-to-leaf path of a tree, becomes a *lane*: its slots in the columns of their positions.
Compiled code reads the slots where they lie (`native.attention`). Without a compiler, and over a cache
of another format than the model's, torch attends to gathered keys (`attention.tiles`).
Does not know: models, which rows are prompts and which are drafts.

Legend: T rows, N query heads, G key/value heads, H head dim, S slots, Y lanes, L key columns, Q queries
of a lane.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.attention.base import Attend, AttentionLayout
from eyas.attention.compressed import CompressedPlan
from eyas.attention.lanes import Lanes, context_lanes, node_lanes, split_by_width
from eyas.attention.plan import Plan
from eyas.attention.tiles import TiledQueries, tile_heights
from eyas.cache.kv import KVStore
from eyas.cache.store import CompressedStore, KVScales, LayerStore
from eyas.native.attention import CompiledAttention, Queries, compiled_attention
from eyas.ops.compress import Compression


class ReferenceAttention:
    """`AttentionBackend` over a `KVStore`."""

    def __init__(self, kv: KVStore) -> None:
        self.kv = kv
        self._kernels = {
            store: _kernel(store, kv)
            for store in dict.fromkeys(kv.stores)
            if isinstance(store, LayerStore) and not isinstance(store, CompressedStore)
        }
        self._has_entries = any(isinstance(store, CompressedStore) for store in kv.stores)
        self._is_compiled = not self._has_entries and all(
            isinstance(kernel, CompiledAttention) for kernel in self._kernels.values()
        )

    @property
    def plans_chunks(self) -> bool:
        return self.kv.states is None and not self._has_entries

    def plan(self, layout: AttentionLayout, write_slots_T: torch.Tensor) -> Attend:
        """Plan the forward pass as lanes of prompt chunks and of trees."""
        return _Plan(self.kv, layout, write_slots_T, self._kernels, is_compiled=self._is_compiled)


Kernel = CompiledAttention | tuple[int, ...]
"""How layers of one kind attend: by compiled code, or by torch in tiles of these heights."""


def _kernel(store: LayerStore, kv: KVStore) -> Kernel:
    if kv.stored_dtype == kv.dtype:
        compiled = compiled_attention(
            kv.dtype,
            kv.device,
            value_dim=store.output_dim,
            scale=store.head_dim**-0.5 if store.scale is None else store.scale,
            window=store.window,
            first_position=store.first_position,
        )
        if compiled is not None:
            return compiled
    return tile_heights(store, kv.dtype, kv.device)


class _Plan(Plan):
    """`Attend` for one forward. is_compiled: all layers attend by compiled code."""

    def __init__(
        self,
        kv: KVStore,
        layout: AttentionLayout,
        write_slots_T: torch.Tensor,
        kernels: dict[LayerStore, Kernel],
        *,
        is_compiled: bool,
    ) -> None:
        super().__init__(kv, layout, write_slots_T)
        self._kernels = kernels
        self._lanes = context_lanes(layout)
        self._node_lanes: Lanes | None = None
        if layout.nodes is not None:
            self._node_lanes = node_lanes(layout.nodes, layout, may_repeat=is_compiled)
        self._queries: dict[LayerStore, TiledQueries | _CompiledQueries] = {}
        self._compressed: CompressedPlan | None = None

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, sinks_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        store = self._kv.stores[layer]
        assert isinstance(store, LayerStore)
        queries = self._queries.get(store)
        if queries is None:
            queries = self._queries[store] = self._begin(store, self._kv.window_slots(layer))
        return queries.run(q_TNH, self._kv.layers[layer], self._kv.scales[layer], sinks_N)

    def _begin(
        self, store: LayerStore, window_slots_S: torch.Tensor | None
    ) -> TiledQueries | _CompiledQueries:
        """Return what layers of one kind share."""
        kernel, num_rows = self._kernels[store], len(self._write_slots_T)
        if isinstance(kernel, CompiledAttention):
            lanes = self._lanes
            if self._node_lanes is not None:  # whose widths do not matter to it
                lanes = [*lanes, self._node_lanes]
            return _CompiledQueries(lanes, store, kernel, num_rows, window_slots_S)
        lanes = self._by_width()
        return TiledQueries(lanes, store, kernel, self._kv.dtype, num_rows, window_slots_S)

    def _by_width(self) -> list[Lanes]:
        """Return the lanes of prompt chunks and of trees, each of one key width."""
        if self._node_lanes is not None:
            self._lanes.extend(split_by_width(self._node_lanes))
            self._node_lanes = None
        return self._lanes

    def compress(
        self,
        layer: int,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        store = self._kv.stores[layer]
        assert isinstance(store, CompressedStore)
        if self._compressed is None:
            self._compressed = CompressedPlan(self._by_width(), self._write_slots_T)
        slots_SD = self._kv.layers[layer].flatten(1)
        return self._compressed.run(store, slots_SD, inputs_TX, q_TNH, sinks_N, compression)


class _CompiledQueries:
    """The queries of a forward pass for layers of one kind. Padding rows get zeros."""

    def __init__(
        self,
        groups: Sequence[Lanes],
        store: LayerStore,
        kernel: CompiledAttention,
        num_rows: int,
        window_slots_S: torch.Tensor | None,
    ) -> None:
        self._kernel = kernel
        self._output_dim = store.output_dim
        self._num_rows = num_rows
        self._queries = [
            Queries(
                lanes.slots_YL if window_slots_S is None else window_slots_S[lanes.slots_YL],
                lanes.rows_YQ.contiguous(),
                lanes.positions_YQ.contiguous(),
            )
            for lanes in groups
        ]

    def run(
        self,
        q_TNH: torch.Tensor,
        kv_S2GH: torch.Tensor,
        scales: KVScales,
        sinks_N: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the outputs [T, N, D] of all rows. scales: of an FP8 cache, which this one is not."""
        assert scales == KVScales()
        wide_TNH = q_TNH.float().contiguous()
        out_TND = wide_TNH.new_zeros((self._num_rows, q_TNH.shape[1], self._output_dim))
        sinks_N = None if sinks_N is None else sinks_N.float().contiguous()
        for queries in self._queries:
            self._kernel(queries, wide_TNH, kv_S2GH, out_TND, sinks_N)
        return out_TND.to(q_TNH.dtype)
