"""The plan of a forward pass for layers with a state per sequence: its lines, shared by all layers.

Promises: the host does not wait for the device. The position of a seat's state is valid again only
after its last layer has been updated, so a forward pass that failed between two layers leaves no
half-updated state that could be read: rows that would continue it get outputs that are no numbers.
Does not know: how lines are found (`ops.state_lines` does), how a state is updated
(`ops.delta_rule` does), who drafted.

Legend: T rows, X numbers of a row's inputs.
"""

from __future__ import annotations

import torch

from eyas.attention.base import AttentionLayout
from eyas.cache.states import SequenceStates
from eyas.ops.delta_rule import DeltaRule, delta_rule
from eyas.ops.state_lines import Lines, finish_lines, state_lines
from eyas.transfer import send


class StateLost(RuntimeError):
    """A forward pass continues states that the one before it has left half-updated."""


class StatePlan:
    """Plans a forward pass, then updates the states layer by layer with `recur`."""

    def __init__(self, layout: AttentionLayout, states: SequenceStates) -> None:
        assert layout.chunks is None, "states are updated by chunks that the host knows"
        self._layout = layout
        self._states = states
        self._lines: Lines | None = None
        self._num_updated = 0

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        """As `Attend.recur`. Raises StateLost if the forward pass before this one has failed, and this
        one continues a prompt."""
        states = self._states
        if self._lines is None:
            self._lines = self._begin()
        own = states.layer(layer)
        out_TND = delta_rule(inputs_TX, own.states_ANHD, own.inputs_AEX, self._lines, rule)
        self._num_updated += 1
        if self._num_updated == states.num_layers:
            self._finish(self._lines)
        return out_TND

    def _begin(self) -> Lines:
        layout, states = self._layout, self._states
        has_failed, states.is_updating = states.is_updating, False
        runs = layout.contexts
        if has_failed and any(run.start for run in runs):  # nodes are noticed by their outputs
            raise StateLost("the forward pass before this one has left states half-updated")
        device, grid = layout.seats_B.device, layout.nodes
        if grid is None:
            nodes_BW = torch.empty((0, 1), dtype=torch.int64, device=device)
            roots_B, parents_BW = nodes_BW[:, 0], None
        else:
            nodes_BW, roots_B, parents_BW = grid.rows_BW, grid.roots_B, grid.parents_BW
        assert nodes_BW.shape[1] <= max(1, states.num_nodes), "there is no space for these nodes"
        runs_C3 = torch.empty((0, 3), dtype=torch.int64, device=device)
        if runs:
            runs_C3 = send([(run.row, run.start, run.count) for run in runs], device)
        states.is_updating = True
        return state_lines(
            layout.seats_B,
            runs_C3,
            nodes_BW,
            roots_B,
            parents_BW,
            layout.slots_AC,
            states.positions_A,
            states.node_slots_AW,
            states.reach,
            self._num_rows(nodes_BW),
        )

    def _num_rows(self, nodes_BW: torch.Tensor) -> int:
        """Return the number of rows that belong to nodes and chunks, which are the first rows."""
        if runs := self._layout.contexts:
            return runs[-1].row + runs[-1].count
        if nodes_BW.device.type == "cpu":
            return int(nodes_BW.max()) + 1  # a ragged grid has fewer rows than nodes
        return nodes_BW.numel()

    def _finish(self, lines: Lines) -> None:
        states, grid = self._states, self._layout.nodes
        slots_BW = lines.nodes_BW if grid is None else grid.slots_BW
        finish_lines(
            lines.lanes_8Y, lines.nodes_BW, slots_BW, states.positions_A, states.node_slots_AW
        )
        states.is_updating = False
