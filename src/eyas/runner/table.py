"""What the device knows of every admitted sequence: its tokens, its slots, its length.

Promises: one row (*seat*) a sequence; a launched step reads lengths and roots from here, so the host
may plan a step before the one before it has landed. The host writes a seat only at admission and for
prompt chunks; from then on verdicts advance it on the device. One more seat is nobody's: rows that only
fill up a batch sit there, with a length of 1 and the null slot.
Does not know: schedulers, drafters, why a sequence ended.

Legend: A seats, C columns (positions), B sequences of a batch, W nodes.
"""

from __future__ import annotations

import numpy as np
import torch

from eyas.core import Verdict
from eyas.kernels import usable
from eyas.transfer import send


class SequenceTable:
    """tokens_AC[a, :length], slots_AC[a, :length - 1]; columns past the longest sequence are scratch
    for nodes that turn out to lie beyond a verdict. num_seatings[a]: how many sequences have had seat
    a, so that who keeps something by seat can tell them apart. last_position: of the longest sequence;
    rows of what stands beyond it, which nobody reads, run as if they stood there."""

    def __init__(
        self, num_seats: int, max_length: int, max_width: int, device: torch.device
    ) -> None:
        self.last_position = max_length - 1
        self.num_columns = max_length + 3 * max_width
        self.trash_column = self.num_columns
        self.max_width = max_width
        self.num_seats = self.padding_seat = num_seats
        shape = (num_seats + 1, self.num_columns + 1)
        self.tokens_AC = torch.zeros(shape, dtype=torch.int64, device=device)
        self.slots_AC = torch.zeros(shape, dtype=torch.int64, device=device)
        self.lengths_A = torch.ones(num_seats + 1, dtype=torch.int64, device=device)
        self.num_seatings = [0] * (num_seats + 1)
        self.device = device
        self._free_seats = list(range(num_seats - 1, -1, -1))

    @property
    def num_free_seats(self) -> int:
        return len(self._free_seats)

    def seat(self, tokens: list[int], stored_slots: np.ndarray) -> int:
        """Give a sequence a seat; `stored_slots` are those of its shared prefix."""
        seat = self._free_seats.pop()
        self.num_seatings[seat] += 1
        self.tokens_AC[seat, : len(tokens)] = send(tokens, self.device)
        self.lengths_A[seat].fill_(len(tokens))  # a number set by index would be waited for
        if len(stored_slots):
            self.write_slots(seat, 0, stored_slots)
        return seat

    def unseat(self, seat: int) -> None:
        self._free_seats.append(seat)

    def write_slots(self, seat: int, start: int, slots: np.ndarray) -> None:
        """Where the keys and values of positions start.. of this seat live."""
        self.slots_AC[seat, start : start + len(slots)] = send(slots, self.device)

    def place_nodes(
        self, seats_B: torch.Tensor, roots_B: torch.Tensor, node_slots_BW: torch.Tensor
    ) -> None:
        """Put the slots of nodes into the columns of their positions, as if all were one chain."""
        offsets_W = torch.arange(node_slots_BW.shape[1], device=self.device)
        columns_BW = roots_B.unsqueeze(1) + offsets_W
        self.slots_AC[seats_B.unsqueeze(1), columns_BW] = node_slots_BW

    def advance(
        self,
        seats_B: torch.Tensor,
        roots_B: torch.Tensor,
        verdict: Verdict,
        node_slots_BW: torch.Tensor,
        *,
        is_chain: bool,
    ) -> None:
        """Append each verdict: its tokens after the root, the accepted nodes' slots from the root on.

        A faulty verdict (count -1) appends nothing, and nothing happens to the padding seat.
        """
        if usable(self.device):
            from eyas.kernels import walk

            walk.advance(
                seats_B,
                roots_B,
                verdict.report_BX,
                node_slots_BW,
                self.tokens_AC,
                self.slots_AC,
                self.lengths_A,
                is_chain=is_chain,
                trash_seat=self.padding_seat,
            )
            return
        counts_B = torch.where(seats_B == self.padding_seat, 0, verdict.counts_B.clamp(min=0))
        offsets_W = torch.arange(verdict.width, device=self.device)
        kept_BW = offsets_W < counts_B.unsqueeze(1)
        columns_BW = roots_B.unsqueeze(1) + offsets_W
        seats_B1 = seats_B.unsqueeze(1)
        token_columns_BW = torch.where(kept_BW, columns_BW + 1, self.trash_column)
        self.tokens_AC[seats_B1, token_columns_BW] = verdict.tokens_BW
        if not is_chain:
            slot_columns_BW = torch.where(kept_BW, columns_BW, self.trash_column)
            self.slots_AC[seats_B1, slot_columns_BW] = node_slots_BW.gather(1, verdict.nodes_BW)
        self.lengths_A[seats_B] = roots_B + 1 + counts_B
