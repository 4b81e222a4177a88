"""Attention by Triton kernels: one or two launches a layer for tree nodes, one for prompt rows.

Promises: a row's bits depend on its own prefix alone: prompt rows, plain tokens, chains and trees
agree. What layers share is prepared once a forward pass, without waiting for the device. A forward
pass can be captured in a CUDA graph and replayed with other roots, and with other prompt chunks if they
are numbers on the device.
Does not know: models, how kernels reduce.

Legend: T rows, N query heads, H head dim, B sequences, W tree nodes, X tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eyas.attention.base import Attend, AttentionLayout, NodeGrid
from eyas.attention.copied_prompts import CopiedPrompts, is_worth_copying, takes
from eyas.attention.plan import Plan
from eyas.attention.triton_compressed import EntryPlan, entry_shapes
from eyas.cache.kv import KVStore
from eyas.cache.store import LayerStore, Store
from eyas.kernels.attention import Nodes, attend_nodes
from eyas.kernels.attention_prefill import PromptTiles, attend_prompts, cut
from eyas.kernels.paths import node_paths
from eyas.kernels.softmax import GROUP, SHARED_ROW_LINES, SPLIT, HeadShape
from eyas.ops.compress import Compression
from eyas.ops.prompt_rows import tiles_of_chunks
from eyas.transfer import send

HEIGHTS = (16, 32)
"""Heights of tiles (queries times query heads of a group) that give a row the same bits."""
MANY_PROGRAMS = 256
"""From this many programs on, a program processes a whole group of splits. This saves the traffic
of partial results and changes no bit."""


class TritonAttention:
    """`AttentionBackend` over a `KVStore` on a CUDA device.

    pdl: whether a kernel may start while the one before it ends. heights: see HEIGHTS.
    """

    def __init__(
        self,
        kv: KVStore,
        *,
        pdl: bool = False,
        heights: Sequence[int] = HEIGHTS,
    ) -> None:
        self.kv = kv
        self.pdl = pdl
        itemsize = kv.dtype.itemsize
        self.entries = entry_shapes(kv.stores)
        self.shapes = shapes_of(kv.stores, itemsize)
        self.stores = [
            store for store in kv.stores if isinstance(store, LayerStore) and store in self.shapes
        ]
        self.heights = {store: _fitting(shape, heights) for store, shape in self.shapes.items()}
        self.tiles = {store: prompt_tiles(shape, itemsize) for store, shape in self.shapes.items()}
        self.may_copy = {
            store for store, shape in self.shapes.items() if takes(shape, kv.dtype, kv.device)
        }

    @property
    def plans_chunks(self) -> bool:
        return self.kv.states is None and not self.entries

    def plan(self, layout: AttentionLayout, write_slots_T: torch.Tensor) -> Attend:
        """Plan the nodes; the tiles of prompts are made when a layer first needs them."""
        return _Plan(self, layout, write_slots_T)


def prompt_tiles(shape: HeadShape, itemsize: int) -> PromptTiles:
    """Return the tiles of prompt rows; any height gives the same bits."""
    if shape.rest:
        return PromptTiles(SHARED_ROW_LINES, num_warps=4, stages=1)
    if itemsize > 2 or shape.inner > 128:
        return PromptTiles(max(32, _power(shape.per_kv)), num_warps=8, stages=1)
    return PromptTiles(max(128, _power(shape.per_kv)), num_warps=8, stages=2)


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def shapes_of(stores: Sequence[Store], itemsize: int) -> dict[LayerStore, HeadShape]:
    """Return what attention is compiled for, of the layers that have values beside their keys."""
    entries = entry_shapes(stores)
    layers = [each for each in dict.fromkeys(stores) if isinstance(each, LayerStore)]
    return {each: shape_of(each, itemsize) for each in layers if each not in entries}


def shape_of(store: LayerStore, itemsize: int) -> HeadShape:
    """Return what attention of a layer is compiled for. itemsize: of queries."""
    return HeadShape.of(
        store.num_query_heads,
        store.num_kv_heads,
        store.head_dim,
        itemsize,
        store.window,
        store.first_position,
        store.scale,
        store.value_dim,
    )


def _fitting(shape: HeadShape, heights: Sequence[int]) -> tuple[int, ...]:
    """Return the heights that hold all heads of a query, smallest first."""
    if shape.rest:
        return (SHARED_ROW_LINES,)
    per_kv = shape.per_kv
    return tuple(height for height in sorted(heights) if height >= per_kv) or (_power(per_kv),)


class _Plan(Plan):
    """`Attend` for one forward."""

    def __init__(
        self, backend: TritonAttention, layout: AttentionLayout, write_slots_T: torch.Tensor
    ) -> None:
        super().__init__(backend.kv, layout, write_slots_T)
        self._backend = backend
        num_rows = len(write_slots_T)
        prompts = layout.prompt_rows
        self._num_node_rows, self._stop = (num_rows, num_rows) if prompts is None else prompts
        self._nodes: Nodes | None = None
        if layout.nodes is not None and backend.stores:
            self._nodes = self._node_work(layout.nodes)
        if self._nodes is None:
            self._num_node_rows = 0
            self._stop = 0 if prompts is None else self._stop
        self._tiles: dict[int, torch.Tensor] = {}
        self._copied: dict[HeadShape, CopiedPrompts | None] = {}
        self._entry_plan: EntryPlan | None = None

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, sinks_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        backend, layout = self._backend, self._layout
        store, kv_S2GH = backend.kv.stores[layer], backend.kv.layers[layer]
        assert isinstance(store, LayerStore)
        if store in backend.entries:
            plan = self._entries()
            return plan.attend(backend.kv, layer, backend.entries[store], q_TNH, sinks_N)
        shape, pdl, scales = backend.shapes[store], backend.pdl, backend.kv.scales[layer]
        window_slots_S = backend.kv.window_slots(layer)
        if q_TNH.stride(2) != 1 or q_TNH.stride(1) != q_TNH.shape[2]:
            q_TNH = q_TNH.contiguous()
        out_TNH = torch.empty(
            (*q_TNH.shape[:2], store.output_dim), dtype=q_TNH.dtype, device=q_TNH.device
        )
        if self._nodes is not None and self._num_node_rows:
            lines = self._nodes.rows_BW.shape[1] * shape.per_kv
            heights = backend.heights[store]
            height = next((h for h in heights if h >= lines), heights[-1])
            attend_nodes(
                q_TNH,
                kv_S2GH,
                out_TNH,
                self._nodes,
                shape,
                height,
                sinks_N=sinks_N,
                key_scale=scales.key,
                value_scale=scales.value,
                window_slots_S=window_slots_S,
                pdl=pdl,
            )
        if layout.prompt_rows is not None:
            how: dict[str, Any] = {
                "sinks_N": sinks_N,
                "key_scale": scales.key,
                "value_scale": scales.value,
                "pdl": pdl,
            }
            copied = self._copied_prompts(store, shape)
            if copied is not None:
                copied.attend(q_TNH, kv_S2GH, out_TNH, shape, **how)
            else:
                tiles = backend.tiles[store]
                tiles_X4 = self._prompt_tiles(tiles.height // shape.per_kv)
                places = (layout.seats_B, layout.slots_AC)
                how["window_slots_S"] = window_slots_S
                attend_prompts(q_TNH, kv_S2GH, out_TNH, tiles_X4, *places, shape, tiles, **how)
        if self._stop < len(out_TNH):
            out_TNH[self._stop :].zero_()
        return out_TNH

    def compress(
        self,
        layer: int,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        kv = self._backend.kv
        shape = self._backend.entries[kv.stores[layer]]
        return self._entries().compress(kv, layer, shape, inputs_TX, q_TNH, sinks_N, compression)

    def _entries(self) -> EntryPlan:
        if self._entry_plan is None:
            pdl = self._backend.pdl
            self._entry_plan = EntryPlan(self._layout, self._write_slots_T, pdl=pdl)
        return self._entry_plan

    def _node_work(self, grid: NodeGrid) -> Nodes:
        backend, layout = self._backend, self._layout
        num, width = grid.rows_BW.shape
        num_rows, pdl = self._num_node_rows, backend.pdl
        positions_BW, nodes_T, paths_BWP = node_paths(
            grid.rows_BW, grid.roots_B, grid.parents_BW, grid.slots_BW, num_rows, pdl=pdl
        )
        limit = min(layout.max_position, layout.slots_AC.shape[1] - 1)
        stores = backend.stores
        shape = backend.shapes[stores[0]]
        tiles = -(-width * shape.per_kv // backend.heights[stores[0]][-1])
        num_groups = limit // (GROUP * SPLIT) + 1
        is_crowded = num * tiles * shape.num_kv_heads * num_groups >= MANY_PROGRAMS
        unit = GROUP if is_crowded else 1
        # The root's split, and the splits that a path as long as the tree is wide may reach.
        tails = 0 if paths_BWP is None else 1 + -(-(width - 1) // SPLIT)
        num_units = limit // (unit * SPLIT) + 1 + tails
        partials = num_rows * num_units
        heads = max(store.num_query_heads for store in stores)
        size = max(store.num_query_heads * store.output_dim for store in stores)
        scratch = {"dtype": torch.float32, "device": grid.rows_BW.device}
        return Nodes(
            rows_BW=grid.rows_BW.contiguous(),
            positions_BW=positions_BW,
            nodes_T=nodes_T,
            paths_BWP=paths_BWP,
            roots_B=grid.roots_B.contiguous(),
            seats_B=layout.seats_B,
            slots_AC=layout.slots_AC,
            limit=limit,
            unit=unit,
            tails=tails,
            num_units=num_units,
            is_full=num * width == num_rows,
            states=torch.empty(partials * heads * 2, **scratch),
            values=torch.empty(partials * size, **scratch),
        )

    def _copied_prompts(self, store: LayerStore, shape: HeadShape) -> CopiedPrompts | None:
        """Return the prompt chunks over copies; None if nothing is copied for layers of this kind, or
        if the device alone knows the chunks, which then have few rows."""
        if shape not in self._copied:
            contexts, itemsize = self._layout.contexts, self._backend.kv.dtype.itemsize
            is_copied = store in self._backend.may_copy and bool(contexts)
            is_copied = is_copied and is_worth_copying(contexts, shape, itemsize)
            self._copied[shape] = CopiedPrompts.of(self._layout, shape) if is_copied else None
        return self._copied[shape]

    def _prompt_tiles(self, queries: int) -> torch.Tensor:
        """Return [X, 4] the tiles of the prompt chunks, `queries` positions high."""
        tiles_X4 = self._tiles.get(queries)
        if tiles_X4 is None:
            layout = self._layout
            if (chunks := layout.chunks) is not None:
                rows = chunks.first_row, chunks.num_rows
                tiles_X4 = tiles_of_chunks(
                    chunks.runs_C3, *rows, layout.first_chunk_sequence, queries
                )
            else:
                runs = [(r.sequence, r.row, r.start, r.count) for r in layout.contexts]
                tiles_X4 = send(cut(runs, queries), self._write_slots_T.device)
            self._tiles[queries] = tiles_X4
        return tiles_X4
