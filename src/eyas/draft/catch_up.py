"""Which of a network's rows are missing, and the forwards that make them.

Promises: a row is made once for the content of its slot, however the sequence got there: prompt
chunks, accepted drafts, a prefix that another sequence stored, steps in which nobody drafted. Rows are
made of what is committed; where more are missing than a step can make, the sequence does not draft
until it is caught up. Rows of prompts are *runs*, which the host knows; the rows of what was accepted
last are *tails*, whose beginnings only the device knows while a step is under way.
Does not know: what a row is made of (a network does), trees.

Legend: A seats, B rooted sequences, P rows of a sequence in the tails, T rows, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from eyas.attention.base import ContextRun, Layout, NodeGrid
from eyas.cache.slots import NULL_SLOT
from eyas.ops.tail_rows import tail_rows as tail_rows_of_table
from eyas.runner.batch import Batch, Span
from eyas.runner.rows import ForwardRows
from eyas.runner.table import SequenceTable
from eyas.transfer import send

LONGEST_TAIL = 24
"""Rows of a sequence that are made as a short chain beside those of the others; what is missing beyond
that is a run of its own."""


@dataclass(slots=True, eq=False)
class MissingRun:
    """Rows [start, stop) of the sequence in a seat."""

    seat: int
    start: int
    stop: int
    slots: np.ndarray


@dataclass(slots=True, eq=False)
class _Known:
    """What the host knows of a seat. seating: whose it is. made: rows before this position are made.
    gap: most rows that can be missing up to the root; None where only `made` tells."""

    seating: int
    made: int
    gap: int | None = None


@dataclass(slots=True, eq=False)
class MissingRows:
    """What a step has to make. longest: P of the tails, 0 where nobody drafts. drafts: which rooted
    sequences draft."""

    runs: list[MissingRun]
    drafts: list[bool]
    longest: int


@dataclass(slots=True, eq=False)
class CatchUpRows:
    """rows: a forward. previous_slots_T: the slot before each row's, None where features are not read.
    root_rows_B, root_tokens_B, sequence_B: the roots' rows and tokens, and 0, 1, ...; for tails."""

    rows: ForwardRows
    previous_slots_T: torch.Tensor | None
    root_rows_B: torch.Tensor | None = None
    root_tokens_B: torch.Tensor | None = None
    sequence_B: torch.Tensor | None = None


class RowTracker:
    """What has been made. first_position: of a row. reads_features: a row needs the target's feature
    one position before. max_rows: most rows of runs in one step."""

    def __init__(
        self, first_position: int, reads_features: bool, num_slots: int, max_rows: int
    ) -> None:
        self.first_position = first_position
        self.reads_features = reads_features
        self.max_rows = max_rows
        self._is_made_S = np.zeros(num_slots + 1, dtype=bool)
        self._known: dict[int, _Known] = {}
        self._made_A: torch.Tensor | None = None

    def forget(self, batch: Batch) -> None:
        """The slots that a step writes get new content: they have no rows."""
        for span in batch.spans:
            self._is_made_S[span.context_slots] = False
            if span.node_slots is not None:
                self._is_made_S[span.node_slots] = False

    def missing(self, batch: Batch) -> MissingRows | None:
        """The rows that are missing for the sequences of a step; None when nothing is to be done."""
        runs: list[MissingRun] = []
        drafting: list[bool] = []
        longest, room = 0, self.max_rows
        for span in batch.spans:
            known = self._look_up(batch, span)
            ready = span.root_low
            if span.context_count:
                ready = span.context_start + (0 if self.reads_features else span.context_count)
            drafts = span.node_slots is not None and span.root_low >= self.first_position
            drafts &= not (span.context_count and self.reads_features)
            is_long = not drafts or span.root_low - known.made >= LONGEST_TAIL
            if is_long and ready > known.made:
                stop = min(ready, known.made + room)
                if stop > known.made:
                    assert known.made >= self.first_position
                    slots = span.stored_slots[known.made : stop]
                    runs.append(MissingRun(span.seat, known.made, stop, slots))
                    room -= stop - known.made
                drafts &= stop == ready
                known.gap = None
            else:
                stop = known.made
            if span.node_slots is not None:
                drafting.append(drafts)
            if drafts:
                length = span.root_high - min(stop, span.root_low) + 1
                longest = max(longest, length if known.gap is None else min(length, known.gap))
        if not runs and not longest:
            return None
        return MissingRows(runs, drafting, longest)

    def step(self, batch: Batch, missing: MissingRows | None) -> None:
        """A step goes out: its tails are made, and its verdict adds to what is missing."""
        for b, span in enumerate(batch.rooted):
            known = self._known.get(span.seat)
            if known is None:  # nobody has asked yet
                continue
            if missing is not None and missing.drafts[b]:
                known.made = max(known.made, batch.rooted[b].root_low + 1)
                known.gap = 0
            if known.gap is not None and span.node_slots is not None:
                known.gap += batch.levels

    def next_rows(self, table: SequenceTable) -> torch.Tensor:
        """By seat, the position of the first row that is not made."""
        if self._made_A is None:
            self._made_A = torch.zeros_like(table.lengths_A)
        return self._made_A

    def made_run(self, run: MissingRun, table: SequenceTable) -> None:
        """A run is made."""
        self._is_made_S[run.slots] = True
        self._known[run.seat].made = run.stop
        self.next_rows(table)[run.seat].fill_(run.stop)

    def made_slots(self, slots_T: torch.Tensor) -> None:
        """Rows are made in these slots; a device tells too late to be asked."""
        if slots_T.device.type == "cpu":
            self._is_made_S[slots_T.numpy()] = True

    def _look_up(self, batch: Batch, span: Span) -> _Known:
        seating = batch.table.num_seatings[span.seat]
        known = self._known.get(span.seat)
        if known is None or known.seating != seating:
            stored = span.context_start if span.context_count else span.root_low
            is_made = self._is_made_S[span.stored_slots[self.first_position : stored]]
            num_made = int(is_made.argmin()) if not is_made.all() else len(is_made)
            known = self._known[span.seat] = _Known(seating, self.first_position + num_made)
            self.next_rows(batch.table)[span.seat].fill_(known.made)
        return known


def run_rows(tracker: RowTracker, batch: Batch, runs: list[MissingRun]) -> CatchUpRows:
    """The forward of all runs."""
    table, device = batch.table, batch.table.device
    contexts: list[ContextRun] = []
    seats: list[int] = []
    positions: list[int] = []
    for number, run in enumerate(runs):
        count = run.stop - run.start
        contexts.append(ContextRun(number, len(positions), run.start, count))
        seats += [run.seat] * count
        positions += range(run.start, run.stop)
    seats_T, positions_T = send(seats, device), send(positions, device)
    seats_B = send([run.seat for run in runs], device)
    layout = Layout(table.slots_AC, seats_B, batch.max_length - 1, tuple(contexts))
    rows = ForwardRows(
        tokens_T=table.tokens_AC[seats_T, positions_T],
        positions_T=positions_T,
        write_slots_T=table.slots_AC[seats_T, positions_T],
        layout=layout,
        logits_rows_R=None,
    )
    previous_slots_T = None
    if tracker.reads_features:
        previous_slots_T = table.slots_AC[seats_T, (positions_T - 1).clamp(min=0)]
    return CatchUpRows(rows, previous_slots_T)


def tail_rows(
    tracker: RowTracker, batch: Batch, longest: int, drafts_B: torch.Tensor | None
) -> CatchUpRows:
    """The forward of all tails: sequence by sequence, from the first missing row to the root. One that
    does not draft (drafts_B) is there with its root alone, which leaves no trace."""
    table = batch.table
    tails = tail_rows_of_table(
        batch.seats_B,
        batch.roots_B,
        tracker.next_rows(table),
        drafts_B,
        batch.node_slots_BW,
        table.tokens_AC,
        table.slots_AC,
        longest,
        table.last_position,
        NULL_SLOT,
    )
    nodes = NodeGrid(tails.grid_BP, tails.slots_BP, tails.starts_B)
    rows = ForwardRows(
        tokens_T=tails.tokens_T,
        positions_T=tails.positions_T,
        write_slots_T=tails.write_slots_T,
        layout=Layout(table.slots_AC, batch.seats_B, batch.max_length - 1, nodes=nodes),
        logits_rows_R=tails.root_rows_B,
    )
    previous_slots_T = tails.previous_slots_T if tracker.reads_features else None
    return CatchUpRows(
        rows, previous_slots_T, tails.root_rows_B, tails.root_tokens_B, tails.sequence_B
    )
