"""The tensors of layers with a state per sequence: each seat's state, and the inputs of its last rows.

A state cannot be taken back, so that of a seat holds the tokens that are certain: those before the root
of its last tree. The inputs of the tree's nodes are kept, which are small, and the next forward pass
first updates the state with those of the accepted nodes (`attention.state_plan`). A rejected node
costs nothing.

Promises: a seat's state is that of its own sequence at `positions[seat]`, or `positions[seat]` is None.
Snapshots are copies of states at positions where other sequences may continue.
Does not know: how a state is updated, which tokens a snapshot belongs to.

Legend: A seats, N heads, H key dim, D value dim, E input columns of a seat, X inputs of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eyas.cache.memory import zeros_on_demand
from eyas.cache.store import StateStore, Store


@dataclass(frozen=True, slots=True)
class LayerState:
    """The tensors of one layer. The last row of both is zeros: the state before the first token.

    states_ANHD: float32. inputs_AEX: the first `StateStore.reach` columns of a seat are the inputs of
    the last positions in its state, oldest first (zeros before the first token); the others are those
    of the nodes of its last tree.
    """

    states_ANHD: torch.Tensor
    inputs_AEX: torch.Tensor


class SequenceStates:
    """States of all recurrent layers of a model, by seat.

    positions: of each seat's state: the number of tokens in it; None where it cannot be used.
    node_columns: for each seat, the input column of each node of its last tree, by the node's slot.
    """

    def __init__(
        self, stores: Sequence[Store], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._stores = {
            layer: store for layer, store in enumerate(stores) if isinstance(store, StateStore)
        }
        self._dtype = dtype
        self._device = device
        self.reach = max(store.reach for store in self._stores.values())
        self.num_layers = len(self._stores)
        self.positions: list[int | None] = []
        self.node_columns: list[dict[int, int]] = []
        self._num_nodes = 0
        self._layers: dict[int, LayerState] = {}
        self._snapshots: dict[int, LayerState] = {}
        self._snapshot_positions: list[int | None] = []

    def layer(self, layer: int) -> LayerState:
        """Return the tensors of a layer."""
        return self._layers[layer]

    @property
    def zero_row(self) -> int:
        """The row of the state before the first token."""
        return len(self.positions)

    def reserve(self, num_seats: int, num_nodes: int) -> None:
        """Have space for so many seats and nodes of a tree; grows what there is."""
        num_seats = max(num_seats, len(self.positions))
        num_nodes = max(num_nodes, self._num_nodes)
        if (num_seats, num_nodes) == (len(self.positions), self._num_nodes) and self._layers:
            return
        for layer in self._stores:
            grown = self._zeros(layer, num_seats + 1, num_nodes)
            if (old := self._layers.get(layer)) is not None:
                grown.states_ANHD[: len(old.states_ANHD)] = old.states_ANHD
                grown.inputs_AEX[: len(old.inputs_AEX), : old.inputs_AEX.shape[1]] = old.inputs_AEX
            self._layers[layer] = grown
        self._num_nodes = num_nodes
        while len(self.positions) < num_seats:
            self.positions.append(None)
            self.node_columns.append({})

    def reserve_snapshots(self, num_snapshots: int) -> None:
        """Have space for so many snapshots; those that there are get lost."""
        self._snapshots = {layer: self._zeros(layer, num_snapshots, 0) for layer in self._stores}
        self._snapshot_positions = [None] * num_snapshots

    def assume(self, seat: int, position: int) -> None:
        """Take what a seat's tensors hold for its state at `position`, for measurements of time."""
        self.reserve(seat + 1, 0)
        self.positions[seat] = position

    @torch.inference_mode()
    def save(self, seat: int, snapshot: int) -> None:
        """Copy a seat's state to a snapshot."""
        for layer, copy in self._snapshots.items():
            own = self._layers[layer]
            copy.states_ANHD[snapshot] = own.states_ANHD[seat]
            copy.inputs_AEX[snapshot] = own.inputs_AEX[seat, : copy.inputs_AEX.shape[1]]
        self._snapshot_positions[snapshot] = self.positions[seat]

    @torch.inference_mode()
    def restore(self, seat: int, snapshot: int) -> None:
        """Copy a snapshot to the state of a seat."""
        self.reserve(seat + 1, 0)
        for layer, copy in self._snapshots.items():
            own = self._layers[layer]
            own.states_ANHD[seat] = copy.states_ANHD[snapshot]
            own.inputs_AEX[seat, : copy.inputs_AEX.shape[1]] = copy.inputs_AEX[snapshot]
        self.positions[seat] = self._snapshot_positions[snapshot]
        self.node_columns[seat] = {}

    def _zeros(self, layer: int, num_rows: int, num_nodes: int) -> LayerState:
        store = self._stores[layer]
        state = (num_rows, store.num_heads, store.key_dim, store.value_dim)
        inputs = (num_rows, self.reach + num_nodes, store.input_width)
        return LayerState(
            zeros_on_demand(state, dtype=torch.float32, device=self._device),
            zeros_on_demand(inputs, dtype=self._dtype, device=self._device),
        )
