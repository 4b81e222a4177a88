"""The plan of a forward pass for layers with a state per sequence: its lines, and what they leave.

A sequence's lines are first its trunk: tokens that were nodes of its last tree and have been accepted
since, then the rows of a prompt chunk. Then come the nodes of its tree, whose states branch. The state
after the trunk becomes the seat's, and the inputs of the nodes are kept for the next forward pass,
which finds those of the accepted nodes by their slots in the sequence table.

Promises: the bookkeeping of a seat is valid again only after its last layer has been updated, so a
forward pass that failed between two layers leaves no half-updated state that could be read.
Does not know: how a state is updated (`ops.delta_rule` does), who drafted.

Legend: T rows, X numbers of a row's inputs, A seats, C positions, B sequences, W nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from eyas.attention.base import Layout
from eyas.cache.states import SequenceStates
from eyas.ops.delta_rule import DeltaRule, Level, Lines, delta_rule
from eyas.transfer import send


class StateLost(RuntimeError):
    """The state of a sequence is not that of the position from which a forward pass continues."""


@dataclass(slots=True)
class _Line:
    """inputs: which inputs its taps read. parent: index in the level before. row: of the forward pass;
    -1 if the token had its row in an earlier one."""

    inputs: list[int]
    parent: int
    row: int


@dataclass(slots=True)
class _Kept:
    """What a forward pass leaves behind: see `Lines` and `SequenceStates`."""

    states: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    cleared: list[int] = field(default_factory=list)
    inputs: list[tuple[int, int, int]] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    node_columns: dict[int, dict[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Sequence:
    """A sequence's part of a forward pass. first: its first row's position. count, row: of its prompt
    chunk. nodes: (row, slot, parent) of its tree's nodes; row -1 is padding."""

    seat: int
    first: int
    row: int = 0
    count: int = 0
    nodes: list[tuple[int, int, int]] = field(default_factory=list)


class StatePlan:
    """Plans a forward pass, then updates the states layer by layer with `recur`."""

    def __init__(self, layout: Layout, states: SequenceStates) -> None:
        self._layout = layout
        self._states = states
        self._lines: Lines | None = None
        self._kept = _Kept()
        self._num_updated = 0

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        """As `Attend.recur`. StateLost: a sequence's state is not that of the position before its
        rows."""
        states = self._states
        if self._lines is None:
            self._lines = self._plan(len(inputs_TX))
            for seat in self._kept.positions:
                states.positions[seat] = None
        own = states.layer(layer)
        out_TND = delta_rule(inputs_TX, own.states_ANHD, own.inputs_AEX, self._lines, rule)
        self._num_updated += 1
        if self._num_updated == states.num_layers:
            for seat, position in self._kept.positions.items():
                states.positions[seat] = position
                states.node_columns[seat] = self._kept.node_columns[seat]
        return out_TND

    def _sequences(self) -> list[_Sequence]:
        """Return the sequences of the forward pass, each with its chunk and its tree."""
        layout, found = self._layout, dict[int, _Sequence]()
        seats = layout.seats_B.tolist()
        for run in layout.contexts:
            seat = seats[run.sequence]
            found[seat] = _Sequence(seat, run.start, run.row, run.count)
        if (grid := layout.nodes) is None:
            return list(found.values())
        rows_BW, slots_BW, roots = grid.rows_BW.tolist(), grid.slots_BW.tolist(), grid.roots_B
        chain = list(range(-1, grid.rows_BW.shape[1] - 1))
        parents_BW = None if grid.parents_BW is None else grid.parents_BW.tolist()
        for b, root in enumerate(roots.tolist()):
            sequence = found.setdefault(seats[b], _Sequence(seats[b], root))
            assert sequence.first + sequence.count == root, "a chunk ends where the tree begins"
            parents = chain if parents_BW is None else parents_BW[b]
            sequence.nodes = list(zip(rows_BW[b], slots_BW[b], parents, strict=True))
        return list(found.values())

    def _plan(self, num_rows: int) -> Lines:
        sequences = self._sequences()
        num_nodes = max(len(sequence.nodes) for sequence in sequences)
        self._states.reserve(self._layout.slots_AC.shape[0], num_nodes)
        starts = [self._start(sequence) for sequence in sequences]
        stored = [place for _, places in starts for place in places]
        levels: list[list[_Line]] = []
        bases: list[int] = []
        offset = num_rows
        for sequence, (base, places) in zip(sequences, starts, strict=True):
            history = list(range(offset, offset + len(places)))
            offset += len(places)
            bases.append(base)
            self._add(levels, sequence, history)
        assert len(levels[0]) == len(bases), "every sequence has a first line"
        return self._laid_out(levels, bases, stored)

    def _start(self, sequence: _Sequence) -> tuple[int, list[tuple[int, int]]]:
        """Return the row of the state that a sequence continues, and the (row, column) of stored
        inputs: the last ones in that state, then those of accepted nodes."""
        states, seat, first = self._states, sequence.seat, sequence.first
        if first == 0:
            return states.zero_row, [(states.zero_row, column) for column in range(states.reach)]
        position = states.positions[seat]
        if position is None or position > first:
            raise StateLost(f"seat {seat} has the state of position {position}, not {first}")
        slots = self._layout.slots_AC[seat, position:first].tolist()
        try:
            accepted = [states.node_columns[seat][slot] for slot in slots]
        except KeyError as error:
            raise StateLost(
                f"seat {seat} has no inputs of positions {position} to {first}"
            ) from error
        return seat, [(seat, column) for column in (*range(states.reach), *accepted)]

    def _add(self, levels: list[list[_Line]], sequence: _Sequence, history: list[int]) -> None:
        """Add a sequence's lines. history: the inputs before its first row."""
        seat, reach = sequence.seat, self._states.reach
        trunk = [-1] * (len(history) - reach)
        chunk = range(sequence.row, sequence.row + sequence.count)
        trunk += chunk
        history += chunk
        at = -1
        for depth, row in enumerate(trunk):
            at = _put(levels, depth, _Line(history[depth : depth + reach + 1], at, row))
        if trunk:
            self._kept.states.setdefault(len(trunk) - 1, []).append((at, seat))
        elif sequence.first == 0:
            self._kept.cleared.append(seat)
        self._kept.inputs += [(which, seat, c) for c, which in enumerate(history[-reach:])]
        self._kept.positions[seat] = sequence.first + sequence.count
        columns = self._kept.node_columns[seat] = {}
        paths: list[list[int]] = []
        places: list[int] = []
        for node, (row, slot, parent) in enumerate(sequence.nodes):
            if row < 0:
                paths.append([])
                places.append(-1)
                continue
            path = [*(history[-reach:] if parent < 0 else paths[parent]), row]
            paths.append(path)
            depth = len(trunk) + len(path) - reach - 1
            above = at if parent < 0 else places[parent]
            places.append(_put(levels, depth, _Line(path[-reach - 1 :], above, row)))
            columns[slot] = reach + node
            self._kept.inputs.append((row, seat, reach + node))

    def _laid_out(
        self, levels: list[list[_Line]], bases: list[int], stored: list[tuple[int, int]]
    ) -> Lines:
        """Return the lines as tensors."""
        device = self._layout.seats_B.device

        def columns(rows: Sequence[tuple[int, ...]], count: int) -> list[torch.Tensor]:
            return [send([row[i] for row in rows], device) for i in range(count)]

        found: list[Level] = []
        start, num_above = 0, len(bases)
        for depth, lines in enumerate(levels):
            parents = [line.parent for line in lines]
            is_same = depth > 0 and parents == list(range(num_above))
            kept = self._kept.states.get(depth, [])
            kept_at, seats = columns(kept, 2) if kept else (None, None)
            found.append(
                Level(
                    start,
                    start + len(lines),
                    None if is_same or depth == 0 else send(parents, device),
                    kept_at,
                    seats,
                )
            )
            start, num_above = start + len(lines), len(lines)
        everything = [line for lines in levels for line in lines]
        own = [(line.row, number) for number, line in enumerate(everything) if line.row >= 0]
        rows, numbers = columns(own, 2)
        stored_rows, stored_columns = columns(stored, 2)
        which, saved_rows, saved_columns = columns(self._kept.inputs, 3)
        inputs_LJ = [line.inputs for line in everything]
        return Lines(
            stored=(stored_rows, stored_columns),
            inputs_JL=send(list(map(list, zip(*inputs_LJ, strict=True))), device),
            bases=send(bases, device),
            levels=tuple(found),
            rows=rows,
            lines=numbers,
            cleared=send(self._kept.cleared, device),
            saved=(which, saved_rows, saved_columns),
        )


def _put(levels: list[list[_Line]], depth: int, line: _Line) -> int:
    """Add a line to a level; return its index there."""
    if depth == len(levels):
        levels.append([])
    levels[depth].append(line)
    return len(levels[depth]) - 1
