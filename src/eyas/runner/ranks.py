"""What rank 0 tells the other ranks, so that they run the same forward passes.

Rank 0 schedules, drafts and chooses tokens. Before a forward pass it sends a message with the sizes of
the pass, and a tensor with its rows and slots; then all ranks run the model, each its part. States of
sequences are copied and dropped on all ranks by further messages, in the same order.

Promises: a rank that receives has the same rows, slots and seats as rank 0. A pass that fails on rank 0
ends the group, because the others are in the middle of it.
Does not know: schedules, trees, how processes are started.

Legend: T rows, R logits rows, B sequences, W nodes, L columns (positions), A seats.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
import torch

from eyas.attention.base import ContextRun, Layout, NodeGrid
from eyas.parallel.group import Group
from eyas.runner.rows import ForwardRows

ALIVE_SECONDS = 5.0
StateChange = Literal["resize", "reserve_snapshots", "assume", "save", "restore"]
"""A method of `SequenceStates` that changes states beside a forward pass."""


class ForwardMessage(msgspec.Struct, frozen=True, tag="forward", array_like=True):
    """The sizes of a forward pass; a tensor with its numbers follows.

    num_logits: rows whose logits are wanted; None is none. num_leading, max_position: as `ForwardRows`
    and `Layout`. num_seats, num_sequences, num_columns: A, B and L of the sequence table's part.
    contexts: prompt chunks. grid: sequences and nodes of each, where there are nodes. has_parents: they
    are trees.
    """

    num_rows: int
    num_logits: int | None
    num_leading: int
    max_position: int
    num_seats: int
    num_sequences: int
    num_columns: int
    contexts: list[tuple[int, int, int, int]]
    grid: tuple[int, int] | None
    has_parents: bool

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors that follow."""
        rows, sequences = (self.num_rows,), (self.num_sequences,)
        shapes: list[tuple[int, ...]] = [rows, rows, rows, sequences]
        shapes.append((self.num_sequences, self.num_columns))
        if self.num_logits is not None:
            shapes.append((self.num_logits,))
        if self.grid is not None:
            shapes += [self.grid, self.grid, self.grid[:1]]
            shapes += [self.grid] if self.has_parents else []
        return shapes


class StateMessage(msgspec.Struct, frozen=True, tag="state", array_like=True):
    """A change of the states of sequences: a method and its arguments."""

    change: StateChange
    arguments: list[int]


class AliveMessage(msgspec.Struct, frozen=True, tag="alive", array_like=True):
    """Nothing to do; whether it arrives tells rank 0 that the others are there."""


class EndMessage(msgspec.Struct, frozen=True, tag="end", array_like=True):
    """The ranks end."""


Message = ForwardMessage | StateMessage | AliveMessage | EndMessage
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def describe(rows: ForwardRows) -> tuple[ForwardMessage, list[torch.Tensor]]:
    """Return the message of a forward pass, and the tensors of `ForwardMessage.shapes`."""
    layout, wanted_R = rows.layout, rows.logits_rows_R
    num_columns = min(layout.max_position + 1, layout.slots_AC.shape[1])
    slots_BL = layout.slots_AC[layout.seats_B, :num_columns]
    tensors = [rows.tokens_T, rows.positions_T, rows.write_slots_T, layout.seats_B, slots_BL]
    tensors += [] if wanted_R is None else [wanted_R]
    nodes = layout.nodes
    if nodes is not None:
        tensors += [nodes.rows_BW, nodes.slots_BW, nodes.roots_B]
        tensors += [] if nodes.parents_BW is None else [nodes.parents_BW]
    message = ForwardMessage(
        num_rows=len(rows.tokens_T),
        num_logits=None if wanted_R is None else len(wanted_R),
        num_leading=rows.num_leading,
        max_position=layout.max_position,
        num_seats=len(layout.slots_AC),
        num_sequences=len(layout.seats_B),
        num_columns=num_columns,
        contexts=[(run.sequence, run.row, run.start, run.count) for run in layout.contexts],
        grid=None if nodes is None else (nodes.rows_BW.shape[0], nodes.rows_BW.shape[1]),
        has_parents=nodes is not None and nodes.parents_BW is not None,
    )
    return message, tensors


class Leader:
    """Rank 0's side: announces forward passes and changes of states."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sent_at = time.monotonic()

    def _send(self, message: Message) -> None:
        self._sent_at = time.monotonic()
        self._group.send(_encode(message))

    @contextmanager
    def forward(self, rows: ForwardRows) -> Iterator[None]:
        """Announce a forward pass, which is run inside the context."""
        message, tensors = describe(rows)
        self._send(message)
        try:
            flat = torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in tensors])
            self._group.broadcast(flat)
            yield
        except BaseException as error:
            self._group.give_up(f"a forward pass failed on rank 0 ({type(error).__name__})")
            raise

    def change_states(self, change: StateChange, *arguments: int) -> None:
        """Announce a change of the states of sequences."""
        self._send(StateMessage(change, list(arguments)))

    def look(self) -> None:
        """Send a message that asks for nothing, if none was sent for a while. Raises GroupLost if a
        rank is not there."""
        if time.monotonic() - self._sent_at > ALIVE_SECONDS:
            self._send(AliveMessage())

    def end(self) -> None:
        """Tell the other ranks to end."""
        self._send(EndMessage())


class Listener:
    """Another rank's side: receives what rank 0 announces."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._slots_AC = torch.zeros((0, 0), dtype=torch.int64, device=device)

    def next(self) -> ForwardRows | StateMessage | EndMessage:
        """Return the next forward pass or other message, however long it takes."""
        message: Message = AliveMessage()
        while isinstance(message, AliveMessage):
            message = _decode(self._group.receive())
        return self._rows(message) if isinstance(message, ForwardMessage) else message

    def _rows(self, message: ForwardMessage) -> ForwardRows:
        shapes = message.shapes
        sizes = [torch.Size(shape).numel() for shape in shapes]
        flat = torch.empty(sum(sizes), dtype=torch.int64, device=self._device)
        self._group.broadcast(flat)
        parts = iter(
            part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)
        )
        tokens_T, positions_T, write_slots_T, seats_B, slots_BL = (next(parts) for _ in range(5))
        wanted_R = None if message.num_logits is None else next(parts)
        nodes = None
        if message.grid is not None:
            rows_BW, slots_BW, roots_B = (next(parts) for _ in range(3))
            parents_BW = next(parts) if message.has_parents else None
            nodes = NodeGrid(rows_BW, slots_BW, roots_B, parents_BW)
        layout = Layout(
            self._table(message, seats_B, slots_BL),
            seats_B,
            message.max_position,
            tuple(ContextRun(*run) for run in message.contexts),
            nodes,
        )
        return ForwardRows(
            tokens_T=tokens_T,
            positions_T=positions_T,
            write_slots_T=write_slots_T,
            layout=layout,
            logits_rows_R=wanted_R,
            num_leading=message.num_leading,
        )

    def _table(
        self, message: ForwardMessage, seats_B: torch.Tensor, slots_BL: torch.Tensor
    ) -> torch.Tensor:
        """Return the sequence table, in which the rows of the pass are those of rank 0."""
        num_seats, num_columns = message.num_seats, message.num_columns
        seats, columns = self._slots_AC.shape
        if num_seats > seats or num_columns > columns:
            shape = (max(seats, num_seats), max(columns, 2 * num_columns))
            self._slots_AC = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._slots_AC[seats_B, :num_columns] = slots_BL
        return self._slots_AC[:num_seats]
