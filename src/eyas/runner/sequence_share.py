"""Which rows of a forward pass a rank runs, where ranks have sequences of their own.

Promises: every rank derives the same division from the same pass. Slots are numbered through all
ranks: rank r has those from r * num_slots + 1 to (r + 1) * num_slots, and in its own tensors they begin
with 1. A rank without rows runs one that reads and writes the null slot alone.
Does not know: how a sequence gets its rank, models, how ranks exchange rows.

Legend: T rows of the pass, t of a rank, B sequences of the pass, b of a rank, W nodes, L columns
(positions), N ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.cache.slots import NULL_SLOT
from eyas.parallel.group import Group
from eyas.runner.rows import ForwardRows
from eyas.transfer import send


class AllRows:
    """The rows of a rank that runs all of them.

    rows: to run. rank_rows: number of rows of each rank; empty where ranks have no rows of their own.
    """

    rank_rows: tuple[int, ...] = ()

    def __init__(self, rows: ForwardRows) -> None:
        self.rows = rows

    def everywhere(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return what belongs to the pass's rows, of what belongs to the rows that were run."""
        return x_TD

    def on_first(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the same without padding; on other ranks than the first it may be nothing."""
        return x_TD[: len(self.rows.tokens_T)]


class OwnRows:
    """The rows of a rank's own sequences. rows, rank_rows: as `AllRows`."""

    def __init__(self, rows: ForwardRows, num_slots: int, group: Group) -> None:
        self._group = group
        self._device = rows.tokens_T.device
        counts_B, ranks_B = _sequences(rows)
        owner_T = np.repeat(ranks_B, counts_B)
        self._rows_of = [np.flatnonzero(owner_T == rank) for rank in range(group.size)]
        self.rank_rows = tuple(map(len, self._rows_of))
        own_B = np.flatnonzero(ranks_B == group.rank)
        if len(own_B):
            self.rows = _rows_of(rows, self._rows_of[group.rank], own_B, group.rank, num_slots)
        else:
            self.rows = _nothing(self._device)

    def everywhere(self, x_tD: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, D] of all ranks, on every rank."""
        return self._in_order(self._group.all_gather(self._alike(x_tD)))

    def on_first(self, x_tD: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, D] of all ranks on rank 0; elsewhere nothing [0, D]."""
        all_NtD = self._group.gather(self._alike(x_tD))
        return x_tD[:0] if all_NtD is None else self._in_order(all_NtD)

    def _alike(self, x_tD: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows, with as much padding as makes them as many on every rank."""
        own_tD = x_tD[: self.rank_rows[self._group.rank]]
        return F.pad(own_tD, (0, 0, 0, max(self.rank_rows) - len(own_tD)))

    def _in_order(self, all_NtD: torch.Tensor) -> torch.Tensor:
        most = all_NtD.shape[1]
        places_T = np.empty(sum(self.rank_rows), dtype=np.int64)
        for rank, own in enumerate(self._rows_of):
            places_T[own] = rank * most + np.arange(len(own))
        return all_NtD.flatten(0, 1)[send(places_T, self._device)]


def _sequences(rows: ForwardRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of rows and the rank of each sequence of the layout, whose rows follow each
    other."""
    runs, nodes = rows.layout.contexts, rows.layout.nodes
    counts: list[int] = []
    if nodes is not None:
        num, width = nodes.rows_BW.shape
        counts = [width] * num
        if len(rows.tokens_T) < num * width + sum(run.count for run in runs):
            counts = (nodes.rows_BW >= 0).sum(1).tolist()  # trees are ragged on a CPU alone
    for run in runs:
        assert (run.sequence, run.row) == (len(counts), sum(counts)), (
            "sequences are in order of rows"
        )
        counts.append(run.count)
    ranks = rows.ranks or (0,) * len(counts)
    assert len(ranks) == len(counts), "each sequence of the layout has a rank"
    return np.array(counts, dtype=np.int64), np.array(ranks, dtype=np.int64)


def _rows_of(
    rows: ForwardRows, own: np.ndarray, own_B: np.ndarray, rank: int, num_slots: int
) -> ForwardRows:
    """Return a rank's rows. own: their numbers in the pass. own_B: its sequences."""
    layout, device = rows.layout, rows.tokens_T.device

    def local(slots: torch.Tensor) -> torch.Tensor:
        return (slots - rank * num_slots).clamp(NULL_SLOT, num_slots)

    own_t, own_b = send(own, device), send(own_B, device)
    num_columns = min(layout.max_position + 1, layout.slots_AC.shape[1])
    table_bL = local(layout.slots_AC[layout.seats_B[own_b], :num_columns])
    num_grid = 0 if layout.nodes is None else len(layout.nodes.rows_BW)
    num_nodes = int((own_B < num_grid).sum())
    nodes = None
    if num_nodes:
        assert layout.nodes is not None
        grid, roots_b = layout.nodes, own_b[:num_nodes]
        row_of_T = torch.zeros_like(rows.tokens_T)
        row_of_T[own_t] = torch.arange(len(own), device=device)
        rows_bW = grid.rows_BW[roots_b]
        nodes = NodeGrid(
            torch.where(rows_bW < 0, rows_bW, row_of_T[rows_bW.clamp(min=0)]),
            local(grid.slots_BW[roots_b]),
            grid.roots_B[roots_b],
            None if grid.parents_BW is None else grid.parents_BW[roots_b],
        )
    contexts = []
    for place, sequence in enumerate(own_B[num_nodes:].tolist()):
        run = layout.contexts[sequence - num_grid]
        row = int(np.searchsorted(own, run.row))
        contexts.append(ContextRun(num_nodes + place, row, run.start, run.count))
    return ForwardRows(
        tokens_T=rows.tokens_T[own_t],
        positions_T=rows.positions_T[own_t],
        write_slots_T=local(rows.write_slots_T[own_t]),
        layout=replace(
            layout,
            slots_AC=table_bL,
            seats_B=torch.arange(len(own_B), device=device),
            contexts=tuple(contexts),
            nodes=nodes,
        ),
        logits_rows_R=None,
    )


def _nothing(device: torch.device) -> ForwardRows:
    """Return one row that reads and writes the null slot alone."""
    zero_1 = torch.zeros(1, dtype=torch.int64, device=device)
    zero_11 = zero_1.view(1, 1)
    nodes = NodeGrid(zero_11, zero_11, zero_1)
    return ForwardRows(
        tokens_T=zero_1,
        positions_T=zero_1,
        write_slots_T=zero_1,
        layout=AttentionLayout(zero_11, zero_1, 0, nodes=nodes),
        logits_rows_R=None,
    )


@dataclass(frozen=True, slots=True)
class SequenceRanks:
    """Divides forward passes among the ranks of a group. num_slots: of each rank."""

    num_slots: int
    group: Group

    def own(self, rows: ForwardRows) -> OwnRows:
        return OwnRows(rows, self.num_slots, self.group)
