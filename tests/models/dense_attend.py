"""A dense float32 `Attend` over layouts the tests control: the mask is written out in full.

Legend: T rows of a forward, S stored entries, N query heads, G key/value heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from eyas.attention.base import KVDestination
from eyas.cache.store import CompressedStore, LayerStore, StateStore, Store
from eyas.ops.compress import Compression, Pooling
from eyas.ops.delta_rule import DeltaRule
from eyas.ops.rotate_heads import rotate_pairs


class DenseCache:
    """Keys and values of every entry ever stored, per layer, with each entry's position and parent.

    parents: index of the entry before it, -1 for the first; a query sees its own chain of parents.
    inputs, states: of layers with a state, of every entry.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.stores = stores
        self.dtype = dtype
        self.device = device
        self.keys: list[torch.Tensor | None] = [None] * len(stores)
        self.values: list[torch.Tensor | None] = [None] * len(stores)
        self.inputs: list[torch.Tensor | None] = [None] * len(stores)
        self.states: list[list[torch.Tensor]] = [[] for _ in stores]
        self.parents: list[int] = []
        self.positions: list[int] = []

    def extend(self, parents: Sequence[int], num_padding: int = 0) -> DenseAttend:
        """An `Attend` that appends entries with these parents; padding rows are not stored."""
        first = len(self.parents)
        for parent in parents:
            self.positions.append(0 if parent < 0 else self.positions[parent] + 1)
            self.parents.append(parent)
        return DenseAttend(self, first, num_padding)

    def ancestors(self, entry: int) -> list[int]:
        path = []
        while entry >= 0:
            path.append(entry)
            entry = self.parents[entry]
        return path[::-1]


class DenseAttend:
    def __init__(self, cache: DenseCache, first: int, num_padding: int) -> None:
        self.cache = cache
        self.first = first
        self.num_padding = num_padding
        self.num_rows = len(cache.parents) - first

    def positions(self) -> torch.Tensor:
        return torch.tensor(self.cache.positions[self.first :] + [0] * self.num_padding)

    def destination(self, layer: int) -> KVDestination:
        """Allocate the keys and values of a layer; `__call__` appends all but padding."""
        store, num = self.cache.stores[layer], self.num_rows + self.num_padding
        assert isinstance(store, LayerStore)
        self._placed = torch.zeros(
            (num, *store.slot_shape), dtype=self.cache.dtype, device=self.cache.device
        )
        return KVDestination.of(self._placed, torch.arange(num, device=self.cache.device))

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, sinks_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        cache, store = self.cache, self.cache.stores[layer]
        assert isinstance(store, LayerStore)
        k_TGH, v_TGH = sides(self._placed, store)
        keys_SGH = _append(cache.keys[layer], k_TGH[: self.num_rows])
        values_SGH = _append(cache.values[layer], v_TGH[: self.num_rows])
        cache.keys[layer], cache.values[layer] = keys_SGH, values_SGH
        per_kv = store.num_query_heads // store.num_kv_heads
        keys_SNH = keys_SGH.repeat_interleave(per_kv, 1)
        values_SNH = values_SGH.repeat_interleave(per_kv, 1)
        scores_NTS = torch.einsum("tnh,snh->nts", q_TNH[: self.num_rows], keys_SNH)
        scores_NTS = scores_NTS * (store.head_dim**-0.5 if store.scale is None else store.scale)
        hidden_TS = torch.ones(self.num_rows, keys_SGH.shape[0], dtype=torch.bool)
        for row in range(self.num_rows):
            entry = self.first + row
            seen = cache.ancestors(entry)
            hidden_TS[row, seen[-store.window :] if store.window else seen] = False
        hidden_TS = hidden_TS.to(scores_NTS.device)
        scores_NTS = scores_NTS.masked_fill(hidden_TS, float("-inf"))
        if sinks_N is not None:
            sinks_NT1 = sinks_N.view(-1, 1, 1).expand(-1, self.num_rows, -1)
            scores_NTS = torch.cat([scores_NTS, sinks_NT1], dim=-1)
        weights_NTS = scores_NTS.softmax(-1)[..., : len(keys_SGH)]
        out_TNH = q_TNH.new_zeros((*q_TNH.shape[:2], store.output_dim))
        out_TNH[: self.num_rows] = torch.einsum("nts,snh->tnh", weights_NTS, values_SNH)
        return out_TNH

    def compress(
        self,
        layer: int,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        """Each row alone: the keys of its window, then the entries of all groups on its path."""
        cache, store = self.cache, self.cache.stores[layer]
        assert isinstance(store, CompressedStore) and sinks_N is not None
        inputs_SX = _append(cache.inputs[layer], inputs_TX[: self.num_rows])
        cache.inputs[layer] = inputs_SX
        out_TNH = torch.zeros_like(q_TNH)
        for row in range(self.num_rows):
            path = cache.ancestors(self.first + row)
            parts = inputs_SX[path].split(store.widths[:5], 1)
            table = compression.angles.table_P2H
            entries = _entries(parts[1], parts[2], store.rate, compression.keys, table)
            if compression.index is not None:
                keys_EI = _entries(parts[3], parts[4], store.rate, compression.index, table)
                assert compression.queries_TJI is not None and compression.weights_TJ is not None
                dots_JE = (compression.queries_TJI[row] @ keys_EI.T).relu()
                scores_E = compression.weights_TJ[row] @ dots_JE
                entries = entries[scores_E.topk(min(len(scores_E), store.num_chosen)).indices]
            keys = torch.cat([parts[0][-store.local_window :], entries])
            scores = q_TNH[row] @ keys.T * store.head_dim**-0.5
            weights = torch.cat([scores, sinks_N.unsqueeze(1)], 1).softmax(1)[:, :-1]
            out_TNH[row] = weights @ keys
        return out_TNH

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        """The delta rule as its authors write it, for one entry after the other, from the state of its
        parent."""
        cache, store = self.cache, self.cache.stores[layer]
        assert isinstance(store, StateStore)
        inputs_SX = _append(cache.inputs[layer], inputs_TX[: self.num_rows])
        cache.inputs[layer] = inputs_SX
        num, width = rule.num_value_heads, len(rule.taps_CJ)
        out_TND = inputs_TX.new_zeros((len(inputs_TX), num, rule.value_dim), dtype=torch.float32)
        for row in range(self.num_rows):
            entry = self.first + row
            window = cache.ancestors(entry)[-rule.taps_CJ.shape[1] :]
            taps_CJ = rule.taps_CJ[:, -len(window) :]
            mixed_C = torch.nn.functional.silu((inputs_SX[window, :width].T * taps_CJ).sum(1))
            keys, values = rule.num_key_heads * rule.key_dim, num * rule.value_dim
            q_GH, k_GH, v_ND = (
                part.view(-1, size)
                for part, size in zip(
                    mixed_C.split([keys, keys, values]),
                    (rule.key_dim, rule.key_dim, rule.value_dim),
                    strict=True,
                )
            )
            q_NH, k_NH = (
                (x_GH / (x_GH.square().sum(1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(
                    num // rule.num_key_heads, 0
                )
                for x_GH in (q_GH, k_GH)
            )
            strength_N, time_N = inputs_SX[entry, width:].split(num)
            time_N = torch.nn.functional.softplus(time_N + rule.time_bias_N)
            decay_N = torch.exp(-torch.exp(rule.log_decay_N) * time_N)
            parent = cache.parents[entry]
            state_NHD = v_ND.new_zeros(num, rule.key_dim, rule.value_dim)
            if parent >= 0:
                state_NHD = cache.states[layer][parent]
            state_NHD = state_NHD * decay_N[:, None, None]
            error_ND = v_ND - torch.einsum("nhd,nh->nd", state_NHD, k_NH)
            error_ND = error_ND * strength_N.sigmoid()[:, None]
            state_NHD = state_NHD + torch.einsum("nh,nd->nhd", k_NH, error_ND)
            cache.states[layer].append(state_NHD)
            out_TND[row] = torch.einsum("nhd,nh->nd", state_NHD, q_NH) * rule.key_dim**-0.5
        return out_TND


class RowByRow:
    """An `Attend` in which a row sees itself alone: `answer(q, k, v)`."""

    def __init__(
        self,
        stores: Sequence[Store],
        dtype: torch.dtype,
        answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        num_rows: int,
    ) -> None:
        self._store = store = next(store for store in stores if isinstance(store, LayerStore))
        self._answer = answer
        self._placed = torch.zeros(num_rows, *store.slot_shape, dtype=dtype)

    def destination(self, layer: int) -> KVDestination:
        return KVDestination.of(self._placed, torch.arange(len(self._placed)))

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, sinks_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        keys_TGH, values_TGH = sides(self._placed, self._store)
        width = self._store.output_dim
        return self._answer(q_TNH[..., :width], keys_TGH[..., :width], values_TGH)

    def compress(
        self,
        layer: int,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        keys_T1H = inputs_TX[:, None, : q_TNH.shape[2]]
        return self._answer(q_TNH, keys_T1H, keys_T1H)

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        values = rule.num_value_heads * rule.value_dim
        first = len(rule.taps_CJ) - values
        return inputs_TX[:, first : first + values].float().unflatten(1, (-1, rule.value_dim))


def sides(placed: torch.Tensor, store: LayerStore) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys, and values, which may be a part of them."""
    return placed[:, 0], placed[:, -1, :, : store.output_dim]


def _entries(
    inputs_PC: torch.Tensor,
    gates_PC: torch.Tensor,
    rate: int,
    pooling: Pooling,
    table: torch.Tensor,
) -> torch.Tensor:
    """One entry for each complete group of positions, as the paper writes it."""
    width = pooling.weight.shape[-1]
    overlaps = pooling.bias_XC.shape[1] > width
    entries = []
    for start in range(0, len(inputs_PC) - rate + 1, rate):
        own = slice(start, start + rate)
        values, gates = inputs_PC[own], gates_PC[own] + pooling.bias_XC
        if overlaps:
            values, gates = values[:, width:], gates[:, width:]
        if overlaps and start:
            before = slice(start - rate, start)
            values = torch.cat([inputs_PC[before, :width], values])
            gates = torch.cat([gates_PC[before, :width] + pooling.bias_XC[:, :width], gates])
        mean = (values * gates.softmax(0)).sum(0)
        scale = torch.rsqrt(mean.square().mean() + pooling.epsilon)
        entry = mean * scale * pooling.weight.view(-1, width)[0]
        entries.append(rotate_pairs(entry, *table[start, :, 0]))
    return torch.stack(entries) if entries else inputs_PC[:0, :width]


def _append(stored: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    return new.clone() if stored is None else torch.cat([stored, new])
