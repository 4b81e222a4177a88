"""Attention by Triton kernels where a key is the value too: a window of keys, and compressed entries.

Promises: as `attention.triton`: a row's bits depend on its own prefix alone, the host does not wait for
the device, and a forward pass without prompt rows can be captured.
Does not know: models, how kernels reduce.

Legend: T rows, N query heads, H head dim, X numbers of a row, D numbers of a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.attention.base import AttentionLayout
from eyas.cache.kv import KVStore
from eyas.cache.store import CompressedStore, LayerStore, Store
from eyas.kernels.attention_entries import EntryShape, attend_entries
from eyas.kernels.entries import make_entries, store_rows
from eyas.kernels.indexer import choose_entries
from eyas.kernels.paths import node_paths
from eyas.kernels.places import ALL, NUM_FIELDS, node_places
from eyas.ops.compress import Compression, Pooling

MOST_SCORES = 1 << 25
"""Scores of entries that are in memory at once, float32."""


def entry_shapes(stores: Sequence[Store]) -> dict[Store, EntryShape]:
    """Return the shapes of the layers whose keys are their values."""
    return {
        store: _shape(store)
        for store in dict.fromkeys(stores)
        if isinstance(store, LayerStore)
        and (isinstance(store, CompressedStore) or store.value_dim == store.head_dim)
    }


def _shape(store: LayerStore) -> EntryShape:
    scale = store.head_dim**-0.5 if store.scale is None else store.scale
    if isinstance(store, CompressedStore):
        num_chosen = store.num_chosen if store.index_dim else 0
        window, rate, entry = store.local_window, store.rate, sum(store.widths[:5])
        return EntryShape(
            store.num_query_heads, store.head_dim, window, rate, num_chosen, entry, scale
        )
    assert store.window is not None, "keys that are values are seen through a window"
    first, window = store.first_position, store.window
    return EntryShape(store.num_query_heads, store.head_dim, window, 0, 0, 0, scale, first)


class EntryPlan:
    """A forward pass of such layers: where each row finds its keys, which all layers share."""

    def __init__(self, layout: AttentionLayout, write_slots_T: torch.Tensor, *, pdl: bool) -> None:
        assert layout.chunks is None, "entries are made of chunks that the host knows"
        self._slots_AC = layout.slots_AC
        self._write_slots_T = write_slots_T
        self._pdl = pdl
        self._limit = min(layout.max_position, layout.slots_AC.shape[1] - 1)
        num_rows, device = len(write_slots_T), write_slots_T.device
        padded = -(-num_rows // 16) * 16  # a stride that is alike for all counts
        places = torch.full((NUM_FIELDS, padded), -1, dtype=torch.int64, device=device)
        self._places_4T, self._paths = places[:, :num_rows], places
        num_columns, grid, runs = layout.slots_AC.stride(0), layout.nodes, layout.contexts
        if grid is not None:
            num_nodes = runs[0].row if runs else num_rows
            positions_BW, nodes_T, paths_BWP = node_paths(
                grid.rows_BW, grid.roots_B, grid.parents_BW, grid.slots_BW, num_nodes, pdl=pdl
            )
            if paths_BWP is not None:
                self._paths = paths_BWP
            node_places(
                nodes_T,
                positions_BW,
                grid.roots_B.contiguous(),
                layout.seats_B,
                self._places_4T,
                num_columns,
                self._limit,
                is_tree=paths_BWP is not None,
                pdl=pdl,
            )
        for run in runs:
            own = self._places_4T[:, run.row : run.row + run.count]
            own[0] = torch.arange(run.start, run.start + run.count, device=device)
            own[1] = ALL
            own[2] = layout.seats_B[run.sequence : run.sequence + 1] * num_columns

    def attend(
        self,
        kv: KVStore,
        layer: int,
        shape: EntryShape,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        chosen_TK: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the outputs [T, N, H]. chosen_TK: the entries of rows that have a choice."""
        return attend_entries(
            q_TNH,
            kv.layers[layer].flatten(1),
            self._places_4T,
            self._slots_AC,
            self._paths,
            shape,
            self._limit,
            chosen_TK=chosen_TK,
            sinks_N=sinks_N,
            window_slots_S=kv.window_slots(layer),
            pdl=self._pdl,
        )

    def compress(
        self,
        kv: KVStore,
        layer: int,
        shape: EntryShape,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        """As `Attend.compress`."""
        store, slots_SD = kv.stores[layer], kv.layers[layer].flatten(1)
        assert isinstance(store, CompressedStore)
        store_rows(inputs_TX, self._write_slots_T, slots_SD, pdl=self._pdl)
        poolings = [compression.keys]
        if compression.index is not None:
            poolings.append(compression.index)
        make_entries(
            self._places_4T,
            self._write_slots_T,
            self._slots_AC,
            self._paths,
            slots_SD,
            [(pooling.bias_XC, _weight(pooling)) for pooling in poolings],
            compression.angles.table_P2H,
            compression.keys.epsilon,
            span=store.span,
            pdl=self._pdl,
        )
        chosen_TK = None
        if compression.index is not None:
            chosen_TK = self._chosen(store, slots_SD, compression)
        return self.attend(kv, layer, shape, q_TNH, sinks_N, chosen_TK)

    def _chosen(
        self, store: CompressedStore, slots_SD: torch.Tensor, compression: Compression
    ) -> torch.Tensor | None:
        """Return the entries that the indexer chooses; None where no row may have more than it does."""
        num_entries = (self._limit + 1) // store.rate
        if num_entries <= store.num_chosen:
            return None
        queries_TJI, weights_TJ = compression.queries_TJI, compression.weights_TJ
        assert queries_TJI is not None and weights_TJ is not None
        num_rows, device = len(queries_TJI), queries_TJI.device
        most = min(num_rows, max(1, MOST_SCORES // num_entries))
        chosen_TK = torch.empty((num_rows, store.num_chosen), dtype=torch.int32, device=device)
        scores_TE = torch.empty((most, num_entries), dtype=torch.float32, device=device)
        for first in range(0, num_rows, most):
            rows = slice(first, first + most)
            choose_entries(
                queries_TJI[rows],
                weights_TJ[rows],
                self._places_4T[:, rows],
                self._slots_AC,
                self._paths,
                slots_SD,
                scores_TE,
                chosen_TK[rows],
                key=sum(store.widths[:6]),
                rate=store.rate,
                pdl=self._pdl,
            )
        return chosen_TK


def _weight(pooling: Pooling) -> torch.Tensor:
    """Return the weight of the norm of entries [H]."""
    return pooling.weight if pooling.weight.dim() == 1 else pooling.weight[0]
