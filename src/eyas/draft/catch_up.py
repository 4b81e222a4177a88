"""Which of a network's rows are missing, and the forward that makes them.

Promises: a row is made once for the content of its slot, however the sequence got there: prompt
chunks, accepted drafts, a prefix that another sequence stored, steps in which nobody drafted. Rows are
made of what is committed; where more are missing than a step can make, the sequence does not draft
until it is caught up.
Does not know: what a row is made of (a network does), trees.

Legend: A seats, B drafting sequences, P rows of a sequence in the chain part, T rows, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from eyas.attention.base import ContextRun, Layout
from eyas.cache.slots import NULL_SLOT
from eyas.runner.batch import Batch, Span
from eyas.runner.rows import ForwardRows, ragged_rows

LONGEST_TAIL = 24
"""Rows of a sequence that are made as a short chain beside those of the others; what is missing beyond
that is a run of its own."""


@dataclass(slots=True, eq=False)
class Run:
    """Rows [start, stop) of the sequence in a seat."""

    seat: int
    start: int
    stop: int
    slots: np.ndarray


@dataclass(slots=True, eq=False)
class CatchUp:
    """rows: the forward. previous_slots_T: the slot before each row's, None where features are not
    read. own_B: places in the batch of the sequences that draft; root_rows_B: their roots' rows."""

    rows: ForwardRows
    previous_slots_T: torch.Tensor | None
    own_B: torch.Tensor
    root_rows_B: torch.Tensor
    runs: list[Run]
    tails: list[tuple[int, int]]


class RowBook:
    """What has been made. first_position: of a row. reads_features: a row needs the target's feature
    one position before. max_rows: most rows of runs in one step."""

    def __init__(
        self, first_position: int, reads_features: bool, num_slots: int, max_rows: int
    ) -> None:
        self.first_position = first_position
        self.reads_features = reads_features
        self.max_rows = max_rows
        self._is_made_S = np.zeros(num_slots + 1, dtype=bool)
        self._known: dict[int, tuple[int, int]] = {}  # seat -> (seating, rows made for sure)

    def forget(self, batch: Batch) -> None:
        """The slots that a step writes get new content: they have no rows."""
        for span in batch.spans:
            self._is_made_S[span.context_slots] = False
            if span.node_slots is not None:
                self._is_made_S[span.node_slots] = False

    def known(self, batch: Batch, span: Span) -> int:
        """Every row before this position is made."""
        seating = batch.table.num_seatings[span.seat]
        seen, known = self._known.get(span.seat, (-1, 0))
        if seen == seating:
            return known
        stored = span.context_start if span.context_count else span.root_low
        made = self._is_made_S[span.stored_slots[self.first_position : stored]]
        known = self.first_position + (int(made.argmin()) if not made.all() else len(made))
        self._known[span.seat] = (seating, known)
        return known

    def made(self, catch_up: CatchUp) -> None:
        """The forward has run."""
        for run in catch_up.runs:
            self._is_made_S[run.slots] = True
            self._advance(run.seat, run.stop)
        for seat, stop in catch_up.tails:
            self._advance(seat, stop)
        if catch_up.rows.write_slots_T.device.type == "cpu":
            self._is_made_S[catch_up.rows.write_slots_T.numpy()] = True

    def _advance(self, seat: int, stop: int) -> None:
        seating, known = self._known[seat]
        self._known[seat] = (seating, max(known, stop))


def plan_catch_up(book: RowBook, batch: Batch) -> CatchUp | None:
    """The rows that are missing for the sequences of a step; None when nothing is to be done."""
    runs: list[Run] = []
    own: list[int] = []
    tails: list[tuple[int, int, int]] = []  # seat, first row for sure made, upper bound of the root
    room, b = book.max_rows, 0
    for span in batch.spans:
        known = book.known(batch, span)
        ready = span.root_low
        if span.context_count:
            ready = span.context_start + (0 if book.reads_features else span.context_count)
        drafts = span.node_slots is not None and span.root_low >= book.first_position
        drafts &= not (span.context_count and book.reads_features)
        is_long = not drafts or span.root_low - known >= LONGEST_TAIL
        if is_long and ready > known:
            stop = min(ready, known + room)
            if stop > known:
                assert known >= book.first_position
                runs.append(Run(span.seat, known, stop, span.stored_slots[known:stop]))
                room -= stop - known
            drafts &= stop == ready
            known = stop
        if span.node_slots is not None:
            if drafts:
                own.append(b)
                tails.append((span.seat, min(known, span.root_low), span.root_high))
            b += 1
    if not runs and not own:
        return None
    return _assemble(book, batch, runs, own, tails)


def _assemble(
    book: RowBook, batch: Batch, runs: list[Run], own: list[int], tails: list[tuple[int, int, int]]
) -> CatchUp:
    """Tails first (sequence by sequence, from the first missing row to the root), then the runs."""
    table, device = batch.table, batch.table.device
    num = len(own)
    own_B = torch.tensor(own, dtype=torch.int64).to(device)
    tail_seats_B = batch.seats_B[own_B]
    roots_B = batch.roots_B[own_B]
    length = max((high - known + 1 for _, known, high in tails), default=0)
    starts_B = torch.tensor([known for _, known, _ in tails], dtype=torch.int64).to(device)
    table.place_nodes(tail_seats_B, roots_B, batch.node_slots_BW[own_B, :1])
    positions_BP = starts_B.unsqueeze(1) + torch.arange(length, device=device)
    real_BP = positions_BP <= roots_B.unsqueeze(1)
    positions_BP = torch.where(real_BP, positions_BP, 0)
    grid_BP, picked = ragged_rows(real_BP)
    root_rows_B = grid_BP.gather(1, (roots_B - starts_B).unsqueeze(1)).squeeze(1)
    seat_parts = [tail_seats_B.unsqueeze(1).expand(num, length).reshape(-1)]
    position_parts = [positions_BP.reshape(-1)]
    is_real_T = real_BP.reshape(-1)
    if picked is not None:
        seat_parts[0], position_parts[0] = seat_parts[0][picked], position_parts[0][picked]
        is_real_T = is_real_T[picked]
    contexts, row = [], len(position_parts[0])
    run_seats = [tail_seats_B]
    for run in runs:
        count = run.stop - run.start
        seat_parts.append(torch.full((count,), run.seat, device=device))
        position_parts.append(torch.arange(run.start, run.stop, device=device))
        contexts.append(ContextRun(num + len(contexts), row, run.start, count))
        run_seats.append(torch.tensor([run.seat], device=device))
        row += count
    seats_T, positions_T = torch.cat(seat_parts), torch.cat(position_parts)
    tokens_T = table.tokens_AC[seats_T, positions_T]
    write_slots_T = table.slots_AC[seats_T, positions_T]
    num_tail = len(is_real_T)
    if picked is None and num:
        write_slots_T[:num_tail] = torch.where(is_real_T, write_slots_T[:num_tail], NULL_SLOT)
    previous_slots_T = None
    if book.reads_features:
        previous_slots_T = table.slots_AC[seats_T, (positions_T - 1).clamp(min=0)]
    layout = Layout(
        slots_BL=table.slots_AC[torch.cat(run_seats), : batch.max_length],
        contexts=tuple(contexts),
        node_rows_BW=grid_BP if num else None,
        node_slots_BW=table.slots_AC[tail_seats_B.unsqueeze(1), positions_BP] if num else None,
        root_positions_B=starts_B if num else None,
        parents_BW=None,
        max_position=batch.max_length - 1,
    )
    rows = ForwardRows(
        tokens_T=tokens_T,
        positions_T=positions_T.clamp(max=table.max_length - 1),
        write_slots_T=write_slots_T,
        layout=layout,
        logits_rows_R=root_rows_B if num else None,
    )
    stops = [
        (seat, batch.rooted[b].root_low + 1) for b, (seat, _, _) in zip(own, tails, strict=True)
    ]
    return CatchUp(rows, previous_slots_T, own_B, root_rows_B, runs, stops)
