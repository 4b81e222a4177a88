"""The device's table of sequences: tokens, slots and length of each.

Promises: each sequence has one row, its seat. A launched step reads lengths and roots from the
table, so the host may plan a step before the one before it has landed. The host writes a seat at
admission and for prompt chunks; after that, verdicts advance it on the device. Two more seats are for
padding: one for trees, whose length is 1 and whose root has the null slot, and one for prompt chunks,
whose slots are all the null slot.
Does not know: schedulers, drafters, why a sequence ended.

Legend: A seats, C columns (positions), B sequences of a batch, W nodes, S slots.
"""

from __future__ import annotations

import numpy as np
import torch

from eyas.cache.kv import WindowMap
from eyas.cache.states import SequenceStates
from eyas.draft_tree import Verdict
from eyas.ops.advance import advance
from eyas.ops.table import TableSequences
from eyas.transfer import send


class SequenceTable:
    """The tables tokens_AC[a, :length] and slots_AC[a, :length - 1], and lengths_A.

    Columns past the longest sequence are scratch for nodes that a verdict does not accept; the last
    one is written with what is not appended. num_seatings[a]: how many sequences have had seat a,
    to tell sequences apart in caches by seat. last_position: of the longest sequence; the rows of
    later positions, whose results are not read, run at this position. states: by seat, of layers that
    have one per sequence; None if there are none. windows: where layers with a window store what
    belongs to a slot; None if all layers have all slots.
    """

    def __init__(
        self,
        num_seats: int,
        max_length: int,
        max_width: int,
        device: torch.device,
        states: SequenceStates | None = None,
        windows: WindowMap | None = None,
    ) -> None:
        self.last_position = max_length - 1
        self.num_columns = max_length + 3 * max_width
        self.max_width = max_width
        self.num_seats = self.padding_seat = num_seats
        self.prompt_padding_seat = num_seats + 1  # drafts leave their own slots behind a root
        num_all = num_seats + 2
        shape = (num_all, self.num_columns + 1)
        self.tokens_AC = torch.zeros(shape, dtype=torch.int64, device=device)
        self.slots_AC = torch.zeros(shape, dtype=torch.int64, device=device)
        self.lengths_A = torch.ones(num_all, dtype=torch.int64, device=device)
        self.num_seatings = [0] * num_all
        self.device = device
        self.states = states
        self._windows = windows
        if states is not None:
            states.resize(num_seats + 1, max_width)
        self._free_seats = list(range(num_seats - 1, -1, -1))

    @property
    def num_free_seats(self) -> int:
        return len(self._free_seats)

    def seat(self, tokens: list[int], stored_slots: np.ndarray, snapshot: int | None = None) -> int:
        """Return the seat that a new sequence gets. stored_slots: of its shared prefix. snapshot: of
        the state after that prefix."""
        seat = self._free_seats.pop()
        self.num_seatings[seat] += 1
        self.tokens_AC[seat, : len(tokens)] = send(tokens, self.device)
        self.lengths_A[seat].fill_(len(tokens))  # setting an item by index would synchronise
        if len(stored_slots):
            self.write_slots(seat, 0, stored_slots)
        if self.states is not None and snapshot is not None:
            self.states.restore(seat, snapshot)
        return seat

    def save_state(self, seat: int, snapshot: int) -> None:
        """Copy a seat's state, after what was launched, to a snapshot."""
        assert self.states is not None
        self.states.save(seat, snapshot)

    def unseat(self, seat: int) -> None:
        self._free_seats.append(seat)

    def write_slots(self, seat: int, start: int, slots: np.ndarray) -> None:
        """Set the slots of the positions from `start` on."""
        self.slots_AC[seat, start : start + len(slots)] = send(slots, self.device)

    def write_window_slots(self, slots: np.ndarray, window_slots: np.ndarray) -> None:
        """Set the window slots of these slots, each of which occurs once."""
        assert self._windows is not None
        self._windows.assign(slots, window_slots)

    def advance(self, sequences: TableSequences, verdict: Verdict, *, is_chain: bool) -> None:
        """Append each verdict: its tokens after the root, the accepted nodes' slots from the root on.

        A faulty verdict (count -1) appends nothing, and the padding seat does not change.
        """
        advance(verdict.report_BX, sequences, self.lengths_A, is_chain, self.padding_seat)
