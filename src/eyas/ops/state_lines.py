"""Find the lines of a forward pass: the tokens by which states of sequences are updated, in order.

A line is a token: a row of the pass, or a node of the sequence's last tree that was accepted since. A
lane is what a pass does to one seat. Its lines are first its trunk, the accepted nodes and then the
rows of a prompt chunk, whose state becomes the seat's; then the nodes of its tree, whose states branch
and are dropped. Accepted nodes are found by their slots: a position's slot in the sequence table is
that of its node.

A tree is walked from leaf to leaf, each time from the root's state along the whole path. A chain is one
such path. So a state is never stored between lines, and nodes above a fork are computed once for each
leaf, with the same bits.

Promises: the host does not wait for the device, and shapes do not depend on data. From here on the
state of a seat counts as unusable, until `finish_lines`.
Does not know: how a state is updated, who drafted.

Legend: Y lanes (B with a tree, then C with a prompt chunk), L lines, J taps of the convolution, P the
positions before a token that it reads, E input columns of a seat, B sequences with a tree, W nodes, X
numbers, A seats, C columns of the sequence table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from eyas.ops.dispatch import Operation

ABSENT = -1
"""The source of no input, the seat of a lane that is a part of another one, the row of the state of a
lane whose own state cannot be used."""


class Lanes(NamedTuple):
    """Numbers of each lane, int64 [Y].

    seats: whose state is updated; ABSENT if a prompt chunk of the same seat has the tree. bases: row of
    the states from which it starts; ABSENT if the seat's state is not that of the position before the
    first row, in which case the lane's outputs are no numbers. num_stored: accepted nodes. first_rows,
    counts: rows of the prompt chunk. trees: index of its tree, or ABSENT. num_steps: nodes to visit in
    it. ends: position of the state that becomes the seat's.
    """

    seats: torch.Tensor
    bases: torch.Tensor
    num_stored: torch.Tensor
    first_rows: torch.Tensor
    counts: torch.Tensor
    trees: torch.Tensor
    num_steps: torch.Tensor
    ends: torch.Tensor


@dataclass(frozen=True, slots=True)
class Level:
    """Lines [start, stop) of those in order of level, for bodies that run many lines at once.

    parents: for each of them the line of the level before that it continues, counted from that level's
    start; None where these are all its lines in order, or the lanes' own states. kept, kept_seats:
    lines, counted from `start`, whose states become those of these seats.
    """

    start: int
    stop: int
    parents: list[int] | None
    kept: list[int]
    kept_seats: list[int]


@dataclass(slots=True, eq=False)
class Lines:
    """The lines of a forward pass, the same for all its layers. All tensors are int64.

    Line l < num_rows is row l of the pass; line num_rows + y * W + j is the accepted node j of lane y.
    A source of inputs is a row of the pass, or -2 - (row * E + column) of a layer's stored inputs.
    lanes_8Y: `Lanes`. taps_LJ: the source that each tap of a line reads, the oldest first. windows_YP:
    the sources of the last positions of a lane's trunk. steps_BX: the nodes in the order in which a
    tree is walked: twice the row, plus 1 where the walk starts again from the root's state. nodes_BW:
    row of each node, ABSENT for padding. num_columns: E.
    order: what a body that runs many lines at once has made of them.
    """

    lanes_8Y: torch.Tensor
    taps_LJ: torch.Tensor
    windows_YP: torch.Tensor
    steps_BX: torch.Tensor
    nodes_BW: torch.Tensor
    num_rows: int
    num_columns: int
    order: object | None = field(default=None)

    @property
    def lanes(self) -> Lanes:
        return Lanes(*self.lanes_8Y.unbind(0))

    @property
    def most_stored(self) -> int:
        """The most accepted nodes of a lane."""
        return self.num_columns - self.windows_YP.shape[1]


def most_steps(width: int) -> int:
    """Return the most nodes that are visited in a tree of `width`: the leaves times their depths."""
    return (width + 1) ** 2 // 4


@Operation
def state_lines(
    seats_Y: torch.Tensor,
    runs_C3: torch.Tensor,
    nodes_BW: torch.Tensor,
    roots_B: torch.Tensor,
    parents_BW: torch.Tensor | None,
    slots_AC: torch.Tensor,
    positions_A: torch.Tensor,
    node_slots_AW: torch.Tensor,
    reach: int,
    num_rows: int,
) -> Lines:
    """Return the lines of a forward pass, and set the positions of its seats to nowhere.

    runs_C3: first row, first position and number of rows of each prompt chunk, whose seats are the last
    of `seats_Y`. nodes_BW, roots_B, parents_BW: as `NodeGrid`. positions_A, node_slots_AW: as
    `cache.states.SequenceStates`. reach: P. num_rows: rows of nodes and chunks.
    """
    planner = _Planner(
        seats_Y.tolist(), runs_C3.tolist(), slots_AC, positions_A, node_slots_AW, reach, num_rows
    )
    parents = None if parents_BW is None else parents_BW.tolist()
    planner.add_lanes(nodes_BW.tolist(), roots_B.tolist(), parents)
    width = nodes_BW.shape[1]
    return Lines(
        lanes_8Y=torch.tensor(planner.lanes, dtype=torch.int64).view(-1, 8).t(),
        taps_LJ=torch.tensor(planner.taps, dtype=torch.int64).view(-1, reach + 1),
        windows_YP=torch.tensor(planner.windows, dtype=torch.int64).view(-1, reach),
        steps_BX=_padded(planner.steps, most_steps(width)),
        nodes_BW=nodes_BW,
        num_rows=num_rows,
        num_columns=reach + node_slots_AW.shape[1],
    )


@state_lines.kernel
def _by_kernel(
    seats_Y: torch.Tensor,
    runs_C3: torch.Tensor,
    nodes_BW: torch.Tensor,
    roots_B: torch.Tensor,
    parents_BW: torch.Tensor | None,
    slots_AC: torch.Tensor,
    positions_A: torch.Tensor,
    node_slots_AW: torch.Tensor,
    reach: int,
    num_rows: int,
) -> Lines:
    from eyas.kernels.state_lines import state_lines as launch

    steps = most_steps(nodes_BW.shape[1])
    lanes_8Y, taps_LJ, windows_YP, steps_BX = launch(
        seats_Y, runs_C3, nodes_BW, roots_B, parents_BW, slots_AC, positions_A, node_slots_AW,
        reach, num_rows, steps, pdl=seats_Y.is_cuda,
    )  # fmt: skip
    num_columns = reach + node_slots_AW.shape[1]
    return Lines(lanes_8Y, taps_LJ, windows_YP, steps_BX, nodes_BW, num_rows, num_columns)


@Operation
def finish_lines(
    lanes_8Y: torch.Tensor,
    nodes_BW: torch.Tensor,
    slots_BW: torch.Tensor,
    positions_A: torch.Tensor,
    node_slots_AW: torch.Tensor,
) -> None:
    """Note of each seat the position of its state, and the slots of the nodes whose inputs are stored.

    slots_BW: of the nodes.
    """
    rows, slots = nodes_BW.tolist(), slots_BW.tolist()
    for seat, *_, tree, _, end in lanes_8Y.t().tolist():
        if seat == ABSENT:
            continue
        positions_A[seat] = end
        node_slots_AW[seat] = ABSENT
        if tree != ABSENT:
            for node, row in enumerate(rows[tree]):
                node_slots_AW[seat, node] = slots[tree][node] if row != ABSENT else ABSENT


@finish_lines.kernel
def _finish_by_kernel(
    lanes_8Y: torch.Tensor,
    nodes_BW: torch.Tensor,
    slots_BW: torch.Tensor,
    positions_A: torch.Tensor,
    node_slots_AW: torch.Tensor,
) -> None:
    from eyas.kernels.state_lines import finish_lines as launch

    launch(lanes_8Y, nodes_BW, slots_BW, positions_A, node_slots_AW, pdl=lanes_8Y.is_cuda)


def _padded(steps: list[list[int]], width: int) -> torch.Tensor:
    padded = [row + [0] * (width - len(row)) for row in steps]
    return torch.tensor(padded, dtype=torch.int64).view(-1, width)


class _Planner:
    """The lines of a forward pass, on the host. Its lists are the fields of `Lines`."""

    def __init__(
        self,
        seats: list[int],
        runs: list[list[int]],
        slots_AC: torch.Tensor,
        positions_A: torch.Tensor,
        node_slots_AW: torch.Tensor,
        reach: int,
        num_rows: int,
    ) -> None:
        self._seats, self._runs, self._slots_AC = seats, runs, slots_AC
        self._positions_A, self._node_slots_AW = positions_A, node_slots_AW
        self._reach, self._num_rows = reach, num_rows
        self._most_stored = node_slots_AW.shape[1]
        num_lines = num_rows + len(seats) * self._most_stored
        self.lanes: list[list[int]] = []
        self.taps = [[ABSENT] * (reach + 1) for _ in range(num_lines)]
        self.windows: list[list[int]] = []
        self.steps: list[list[int]] = []

    def add_lanes(
        self, nodes: list[list[int]], roots: list[int], parents: list[list[int]] | None
    ) -> None:
        num_rooted = len(nodes)
        chunked = self._seats[num_rooted:]
        tree_of = {seat: b for b, seat in reversed(list(enumerate(self._seats[:num_rooted])))}
        self.steps = [[] for _ in nodes]
        for y, seat in enumerate(self._seats):
            if y < num_rooted:
                tree, run = y, [0, roots[y], 0]
                if seat in chunked:
                    self.lanes.append([ABSENT] * 8)
                    self.windows.append([ABSENT] * self._reach)
                    continue
            else:
                tree, run = tree_of.get(seat, ABSENT), self._runs[y - num_rooted]
            history = self._add_trunk(y, seat, run)
            if tree != ABSENT:
                above = range(-1, len(nodes[tree]) - 1) if parents is None else parents[tree]
                self._add_tree(tree, nodes[tree], list(above), history)
            self.lanes[-1][5:7] = [tree, 0 if tree == ABSENT else len(self.steps[tree])]

    def _add_trunk(self, y: int, seat: int, run: list[int]) -> list[int]:
        """Add a lane with its trunk. Returns the sources of its inputs, the oldest first."""
        reach, (row, start, count) = self._reach, run
        columns, base, accepted = reach + self._most_stored, seat, list[int]()
        if start == 0:
            base = len(self._positions_A)
        else:
            found = self._accepted(seat, start)
            if found is None:
                base = ABSENT
            else:
                accepted = found
        first = max(base, 0) * columns
        history = [-2 - first - column for column in range(reach)]
        history += [-2 - seat * columns - column for column in accepted]
        history += range(row, row + count)
        line = self._num_rows + y * self._most_stored
        trunk = [*range(line, line + len(accepted)), *range(row, row + count)]
        for depth, line in enumerate(trunk):
            self.taps[line] = history[depth : depth + reach + 1]
        self.windows.append(history[len(history) - reach :])
        end = ABSENT if base == ABSENT else start + count
        self.lanes.append([seat, base, len(accepted), row, count, ABSENT, 0, end])
        self._positions_A[seat] = ABSENT
        return history

    def _accepted(self, seat: int, start: int) -> list[int] | None:
        """Return the columns of the accepted nodes before a position; None if the state is not that of
        such a position."""
        position = int(self._positions_A[seat])
        if not 0 <= position <= start or start - position > self._most_stored:
            return None
        own = self._node_slots_AW[seat].tolist()
        slots = self._slots_AC[seat, position:start].tolist()
        if not all(slot in own for slot in slots):
            return None
        return [self._reach + own.index(slot) for slot in slots]

    def _add_tree(self, tree: int, rows: list[int], parents: list[int], history: list[int]) -> None:
        reach = self._reach
        paths: list[list[int]] = []
        inner: set[int] = set()
        for row, parent in zip(rows, parents, strict=True):
            path = [] if row < 0 else [*(paths[parent] if parent >= 0 else ()), row]
            paths.append(path)
            if row >= 0:
                inner.add(parent)
                self.taps[row] = [*history, *path][-reach - 1 :]
        for node, row in enumerate(rows):
            if row >= 0 and node not in inner:
                walk = [2 * step for step in paths[node]]
                walk[0] += bool(self.steps[tree])
                self.steps[tree] += walk
