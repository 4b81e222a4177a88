"""What rank 0 tells the other ranks: forward passes, graphs of them, changes of states and windows.

Promises: the tensors that follow the message of a forward pass have the shapes that it says.
Does not know: how messages are sent.

Legend: A seats, B sequences, L columns (positions).
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch

from eyas.runner.rows import ForwardRows

StateChange = Literal["resize", "reserve_snapshots", "assume", "save", "restore"]
"""A method of `SequenceStates` that changes states beside a forward pass."""
WindowChange = Literal["assign", "assign_first", "clear"]
"""A method of `WindowMap` that changes window slots."""


class ForwardMessage(msgspec.Struct, frozen=True, tag="forward", array_like=True):
    """The sizes of a forward pass; a tensor with its numbers follows.

    num_logits: rows whose logits are wanted; None is none. num_leading, num_outputs, max_position: as
    `ForwardRows` and its layout. num_seats, num_sequences, num_columns: A, B and L of the sequence
    table's part. contexts: prompt chunks. grid: sequences and nodes of each, where there are nodes.
    has_parents: they are trees. ranks: as `ForwardRows`. taps: layers whose output rank 0 asks for.
    capture: the number of the CUDA graph that this pass is captured in; None runs it.
    """

    num_rows: int
    num_logits: int | None
    num_leading: int
    num_outputs: int | None
    max_position: int
    num_seats: int
    num_sequences: int
    num_columns: int
    contexts: list[tuple[int, int, int, int]]
    grid: tuple[int, int] | None
    has_parents: bool
    ranks: list[int]
    taps: list[int]
    capture: int | None = None

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


class ReplayMessage(msgspec.Struct, frozen=True, tag="replay", array_like=True):
    """A forward pass that was captured under this number."""

    number: int


class DropMessage(msgspec.Struct, frozen=True, tag="drop", array_like=True):
    """The captured passes of these numbers are not replayed any more."""

    numbers: list[int]


class WindowMessage(msgspec.Struct, frozen=True, tag="window", array_like=True):
    """A change of window slots: a method of `WindowMap` and its arguments, the bytes of int64 each."""

    change: WindowChange
    arguments: list[bytes]


class CacheMessage(msgspec.Struct, frozen=True, tag="cache", array_like=True):
    """The slots that rank 0 has memory for; every rank answers with the number that it has.

    num_bytes: what steps and states of sequences take beside them, on any rank at most.
    """

    num_slots: int
    num_window_slots: int
    num_bytes: int


class HeartbeatMessage(msgspec.Struct, frozen=True, tag="heartbeat", array_like=True):
    """Nothing to do; whether it arrives tells rank 0 that the others are there."""


class EndMessage(msgspec.Struct, frozen=True, tag="end", array_like=True):
    """The ranks end."""


Message = (
    ForwardMessage
    | ReplayMessage
    | DropMessage
    | StateMessage
    | WindowMessage
    | CacheMessage
    | HeartbeatMessage
    | EndMessage
)
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode


def describe(
    rows: ForwardRows, taps: tuple[int, ...] = ()
) -> tuple[ForwardMessage, list[torch.Tensor]]:
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
        num_outputs=rows.num_outputs,
        max_position=layout.max_position,
        num_seats=len(layout.slots_AC),
        num_sequences=len(layout.seats_B),
        num_columns=num_columns,
        contexts=[(run.sequence, run.row, run.start, run.count) for run in layout.contexts],
        grid=None if nodes is None else (nodes.rows_BW.shape[0], nodes.rows_BW.shape[1]),
        has_parents=nodes is not None and nodes.parents_BW is not None,
        ranks=list(rows.ranks),
        taps=list(taps),
    )
    return message, tensors
