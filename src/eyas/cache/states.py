"""The tensors of layers with a state per sequence: each seat's state, and the inputs of its last rows.

A state cannot be taken back, so that of a seat holds the tokens that are certain: those before the root
of its last tree. The inputs of the tree's nodes are kept, which are small, and the next forward pass
first updates the state with those of the accepted nodes (`attention.state_plan`). A rejected node
costs nothing.

Promises: everything that a forward pass reads or writes is on the device, at addresses that stay until
`resize`. Copies are ordered after the work launched before them, and the host never waits. Snapshots
are copies of states at positions where other sequences may continue.
Does not know: how a state is updated, which tokens a snapshot belongs to.

Legend: Z layers, A seats, N heads, H key dim, D value dim, E input columns of a seat, W nodes, X inputs
of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eyas.cache.memory import zeros_on_demand
from eyas.cache.store import StateStore, Store

NOWHERE = -1
"""The position of a state that cannot be used, and the slot of no node."""


def _ignore(change: str, *arguments: int) -> None:
    """Do nothing."""


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

    positions_A: int64, the number of tokens in each seat's state; NOWHERE where it cannot be used.
    node_slots_AW: int64, the slots of the nodes of each seat's last tree; NOWHERE where there is none.
    is_updating: a forward pass has begun to update states and has not reached the last layer.
    on_change: called with the name and the arguments of each method that changes states beside a
    forward pass, before it does.
    """

    def __init__(
        self, stores: Sequence[Store], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._groups: dict[StateStore, list[int]] = {}
        for layer, store in enumerate(stores):
            if isinstance(store, StateStore):
                self._groups.setdefault(store, []).append(layer)
        self.reach = max(store.reach for store in self._groups)
        self.num_layers = sum(map(len, self._groups.values()))
        self.is_updating = False
        self.on_change: Callable[..., None] = _ignore
        self.resize(0, 0)
        self.reserve_snapshots(0)

    def layer(self, layer: int) -> LayerState:
        """Return the tensors of a layer."""
        return self._layers[layer]

    @property
    def num_seats(self) -> int:
        return len(self.positions_A)

    @property
    def num_nodes(self) -> int:
        """The most nodes of a tree."""
        return self.node_slots_AW.shape[1]

    def resize(self, num_seats: int, num_nodes: int) -> None:
        """Have space for so many seats and nodes of a tree. The states that there were are lost."""
        self.on_change("resize", num_seats, num_nodes)
        shape, device = (num_seats, num_nodes), self._device
        self.positions_A = torch.full((num_seats,), NOWHERE, dtype=torch.int64, device=device)
        self.node_slots_AW = torch.full(shape, NOWHERE, dtype=torch.int64, device=device)
        self._layers: dict[int, LayerState] = {}
        self._states: list[tuple[torch.Tensor, torch.Tensor]] = []  # frees the old ones first
        self._states = self._zeros(num_seats + 1, num_nodes)
        for (states, inputs), layers in zip(self._states, self._groups.values(), strict=True):
            for number, layer in enumerate(layers):
                self._layers[layer] = LayerState(states[number], inputs[number])

    def reserve_snapshots(self, num_snapshots: int) -> None:
        """Have space for so many snapshots; those that there are get lost."""
        self.on_change("reserve_snapshots", num_snapshots)
        self._snapshots: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._snapshots = self._zeros(num_snapshots, 0)
        shape, device = (num_snapshots,), self._device
        self._snapshot_positions = torch.full(shape, NOWHERE, dtype=torch.int64, device=device)

    def snapshot_tensors(self) -> list[torch.Tensor]:
        """Return all that a snapshot is, as tensors whose first dimension is snapshots."""
        parts = [part for group in self._snapshots for tensor in group for part in tensor]
        return [self._snapshot_positions.unsqueeze(1), *parts]

    @torch.inference_mode()
    def assume(self, seat: int, position: int) -> None:
        """Take what a seat's tensors hold for its state at `position`, for measurements of time."""
        self.on_change("assume", seat, position)
        self.positions_A[seat].fill_(position)

    @torch.inference_mode()
    def save(self, seat: int, snapshot: int) -> None:
        """Copy a seat's state to a snapshot."""
        self.on_change("save", seat, snapshot)
        for (states, inputs), (kept, kept_inputs) in zip(
            self._states, self._snapshots, strict=True
        ):
            kept[:, snapshot].copy_(states[:, seat])
            kept_inputs[:, snapshot].copy_(inputs[:, seat, : self.reach])
        self._snapshot_positions[snapshot].copy_(self.positions_A[seat])

    @torch.inference_mode()
    def restore(self, seat: int, snapshot: int) -> None:
        """Copy a snapshot to the state of a seat."""
        self.on_change("restore", seat, snapshot)
        for (states, inputs), (kept, kept_inputs) in zip(
            self._states, self._snapshots, strict=True
        ):
            states[:, seat].copy_(kept[:, snapshot])
            inputs[:, seat, : self.reach].copy_(kept_inputs[:, snapshot])
        self.positions_A[seat].copy_(self._snapshot_positions[snapshot])
        self.node_slots_AW[seat].fill_(NOWHERE)

    def _zeros(self, num_rows: int, num_nodes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return states [Z, rows, N, H, D] and inputs [Z, rows, E, X] of the layers of each store."""
        made = []
        for store, layers in self._groups.items():
            state = (len(layers), num_rows, store.num_heads, store.key_dim, store.value_dim)
            inputs = (len(layers), num_rows, self.reach + num_nodes, store.input_width)
            made.append(
                (
                    zeros_on_demand(state, dtype=torch.float32, device=self._device),
                    zeros_on_demand(inputs, dtype=self._dtype, device=self._device),
                )
            )
        return made
