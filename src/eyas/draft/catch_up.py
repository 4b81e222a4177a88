"""The rows (keys and values) that a drafting network has not computed yet, and the forwards for them.

Rows are missing after prompt chunks, accepted drafts, a prefix that another sequence stored, and steps
without a draft. Missing rows of prompts are *runs*, whose positions the host knows. The rows of the
tokens accepted last, up to the root, are *tails*; while a step is in flight only the device knows where
they start.

Promises: each row is computed once for the content of its slot, from committed tokens only. If more
rows are missing than one step can compute, the sequence does not draft until all are computed.
Does not know: how a network computes a row, trees.

Legend: A seats, B rooted sequences, P rows of a sequence in the tails, T rows, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.cache.slots import NULL_SLOT
from eyas.ops.tail_rows import TailRows, tail_rows
from eyas.runner.batch import Batch, Span
from eyas.runner.rows import ForwardRows
from eyas.runner.table import SequenceTable
from eyas.transfer import send

LONGEST_TAIL = 24
"""Rows of a sequence that are computed as a tail, in one forward with the tails of other sequences. If
so many or more are missing, they are computed as a run first."""


@dataclass(slots=True, eq=False)
class MissingRun:
    """Missing rows of the sequence in a seat, at positions [start, stop). slots: of these positions."""

    seat: int
    start: int
    stop: int
    slots: np.ndarray


@dataclass(slots=True, eq=False)
class _SeatRows:
    """What the host knows of the rows of a seat.

    seating: number of the seating, which tells sequences in one seat apart. made: rows before this
    position are computed. gap: upper bound of the rows missing up to the root; None if unknown, and
    then `made` is exact.
    """

    seating: int
    made: int
    gap: int | None = None


@dataclass(slots=True, eq=False)
class MissingRows:
    """The missing rows that a step computes.

    runs: computed first. drafts: whether each rooted sequence drafts. longest: most rows of a tail (P);
    0 if no sequence drafts. num_rows: most rows of all tails, which is their number if no step is in
    flight.
    """

    runs: list[MissingRun]
    drafts: list[bool]
    longest: int
    num_rows: int


class RowTracker:
    """Tracks which rows of a network are computed, by slot and by seat.

    first_position: first position that has a row. reads_features: a row needs the target's feature of
    the position before it. num_slots: slots of the network's store that sequences own. max_rows: most
    rows of runs in one step.
    """

    def __init__(
        self, first_position: int, reads_features: bool, num_slots: int, max_rows: int
    ) -> None:
        self.first_position = first_position
        self.reads_features = reads_features
        self.max_rows = max_rows
        self._is_made_S = np.zeros(num_slots + 1, dtype=bool)
        self._seats: dict[int, _SeatRows] = {}
        self._made_A: torch.Tensor | None = None
        self._saved_A: torch.Tensor | None = None

    def forget(self, batch: Batch) -> None:
        """Mark the slots that a step writes as having no rows: their content changes."""
        written = [span.context_slots for span in batch.spans if span.context_count]
        written += [span.node_slots for span in batch.rooted if span.node_slots is not None]
        self._is_made_S[np.concatenate(written)] = False

    def num_missing(self, batch: Batch) -> int:
        """Return how many rows before the roots are not computed. Until `missing` has seen a sequence,
        rows of a prefix that another one stored count too."""
        total = 0
        for span in batch.rooted:
            seat, made = self._seats.get(span.seat), self.first_position
            if seat is not None and seat.seating == batch.table.num_seatings[span.seat]:
                made = seat.made
            total += max(0, span.root_low - made)
        return total

    def missing(self, batch: Batch) -> MissingRows | None:
        """Return the missing rows of the sequences of a step; None if there is nothing to compute."""
        runs: list[MissingRun] = []
        drafting: list[bool] = []
        longest, num_rows, budget = 0, 0, self.max_rows
        for span in batch.spans:
            seat = self._look_up(batch, span)
            ready = span.root_low
            if span.context_count:
                ready = span.context_start + (0 if self.reads_features else span.context_count)
            drafts = span.node_slots is not None and span.root_low >= self.first_position
            drafts &= not (span.context_count and self.reads_features)
            is_long = not drafts or span.root_low - seat.made >= LONGEST_TAIL
            if is_long and ready > seat.made:
                stop = min(ready, seat.made + budget)
                if stop > seat.made:
                    assert seat.made >= self.first_position
                    slots = span.stored_slots[seat.made : stop]
                    runs.append(MissingRun(span.seat, seat.made, stop, slots))
                    budget -= stop - seat.made
                drafts &= stop == ready
                seat.gap = None
            else:
                stop = seat.made
            if span.node_slots is not None:
                drafting.append(drafts)
                num_rows += not drafts  # the root's
            if drafts:
                length = span.root_high - min(stop, span.root_low) + 1
                length = length if seat.gap is None else min(length, seat.gap)
                longest, num_rows = max(longest, length), num_rows + length
        if not runs and not longest:
            return None
        return MissingRows(runs, drafting, longest, num_rows)

    def step(self, batch: Batch, missing: MissingRows | None) -> None:
        """Account for a step that is launched: its tails are computed, its verdict adds missing
        rows."""
        for b, span in enumerate(batch.rooted):
            seat = self._seats.get(span.seat)
            if seat is None:  # `missing` was never called for this seat
                continue
            if missing is not None and missing.drafts[b]:
                seat.made = max(seat.made, span.root_low + 1)
                seat.gap = 0
            if seat.gap is not None:
                seat.gap += batch.levels

    def next_rows(self, table: SequenceTable) -> torch.Tensor:
        """Return by seat, on the device, the position of the first row that is not computed."""
        if self._made_A is None:
            self._made_A = torch.zeros_like(table.lengths_A)
        return self._made_A

    def save(self, table: SequenceTable) -> None:
        """Keep `next_rows` as they are, for `restore`."""
        made_A = self.next_rows(table)
        if self._saved_A is None:
            self._saved_A = torch.empty_like(made_A)
        self._saved_A.copy_(made_A)

    def restore(self) -> None:
        """Set `next_rows` to what was saved. A stage that begins with this can end anywhere and then
        run again: tails are computed from the rows that were missing, not from those that it began."""
        assert self._made_A is not None and self._saved_A is not None, "nothing was saved"
        self._made_A.copy_(self._saved_A)

    def made_run(self, run: MissingRun, table: SequenceTable) -> None:
        """Mark the rows of a run as computed."""
        self._is_made_S[run.slots] = True
        self._seats[run.seat].made = run.stop
        self.next_rows(table)[run.seat].fill_(run.stop)

    def made_slots(self, slots_T: torch.Tensor) -> None:
        """Mark the rows of these slots as computed. Does nothing on a device: reading the slots would
        wait for it."""
        if slots_T.device.type == "cpu":
            self._is_made_S[slots_T.numpy()] = True

    def num_made(self, slots: np.ndarray) -> int:
        """Return how many leading positions of a prefix have rows, or need none. slots: of the
        prefix."""
        is_made = self._is_made_S[slots[self.first_position :]]
        num_made = len(is_made) if is_made.all() else int(is_made.argmin())
        return min(len(slots), self.first_position + num_made)

    def mark(self, slots: np.ndarray, *, is_made: bool) -> None:
        """Note whether these slots hold rows, which came from elsewhere."""
        self._is_made_S[slots] = is_made

    def _look_up(self, batch: Batch, span: Span) -> _SeatRows:
        """Return the state of a span's seat. A new sequence's is found by the slots of its prefix."""
        seating = batch.table.num_seatings[span.seat]
        seat = self._seats.get(span.seat)
        if seat is None or seat.seating != seating:
            stored = span.context_start if span.context_count else span.root_low
            made = max(self.first_position, self.num_made(span.stored_slots[:stored]))
            seat = self._seats[span.seat] = _SeatRows(seating, made)
            self.next_rows(batch.table)[span.seat].fill_(seat.made)
        return seat


def run_pass(batch: Batch, runs: list[MissingRun]) -> tuple[ForwardRows, torch.Tensor]:
    """Return the rows of one forward pass over all runs, and the slots [T] of the positions before."""
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
    layout = AttentionLayout(table.slots_AC, seats_B, batch.max_length - 1, tuple(contexts))
    rows = ForwardRows(
        tokens_T=table.tokens_AC[seats_T, positions_T],
        positions_T=positions_T,
        write_slots_T=table.slots_AC[seats_T, positions_T],
        layout=layout,
        logits_rows_R=None,
        num_outputs=0,
    )
    return rows, table.slots_AC[seats_T, (positions_T - 1).clamp(min=0)]


def tail_pass(
    tracker: RowTracker, batch: Batch, longest: int, drafts_B: torch.Tensor | None
) -> tuple[ForwardRows, TailRows]:
    """Return the rows of one forward pass over all tails: of each sequence, from the first missing row
    to the root.

    longest: most rows of a tail. drafts_B: which sequences draft; None is all. One that does not draft
    has the row of its root only, which is written to the null slot.
    """
    table = batch.table
    tails = tail_rows(tracker.next_rows(table), drafts_B, batch.in_table, longest, NULL_SLOT)
    nodes = NodeGrid(tails.grid_BP, tails.slots_BP, tails.starts_B)
    rows = ForwardRows(
        tokens_T=tails.tokens_T,
        positions_T=tails.positions_T,
        write_slots_T=tails.write_slots_T,
        layout=AttentionLayout(table.slots_AC, batch.seats_B, batch.max_length - 1, nodes=nodes),
        logits_rows_R=tails.root_rows_B,
    )
    return rows, tails
