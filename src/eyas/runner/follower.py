"""The side of the other ranks: they run what rank 0 announces (`runner.leader`).

Promises: a captured pass receives its rows, slots and seats within its graph, so that a replay has
those of rank 0's. A pass that cannot be captured here is captured nowhere.
Does not know: how messages are made, how processes are started.

Legend: T rows, R logits rows, B sequences, W nodes, L columns (positions), A seats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.parallel.group import Group
from eyas.parallel.lost import GroupLost
from eyas.runner.graphs import recorded
from eyas.runner.rank_messages import (
    CacheMessage,
    DropMessage,
    EndMessage,
    ForwardMessage,
    HeartbeatMessage,
    Message,
    ReplayMessage,
    StateMessage,
    WindowMessage,
    decode,
)
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import ModelRunner, Output

log = logging.getLogger(__name__)


def agreed_slots(group: Group, most: Callable[[CacheMessage], int]) -> CacheMessage | None:
    """Return the number of slots, and of window slots, that every rank has memory for; None if rank 0
    ends, because it cannot serve.

    most: returns this rank's, if layers with a window have the slots that rank 0 offers.
    """
    offered = decode(group.receive())
    if isinstance(offered, EndMessage):
        return None
    assert isinstance(offered, CacheMessage), "rank 0 sizes the cache first"
    num_slots = group.least(most(offered))
    in_windows = min(offered.num_window_slots, num_slots)
    return CacheMessage(num_slots, in_windows, offered.num_bytes)


class Follower:
    """Runs a rank's part of the model. `run` returns when rank 0 says so."""

    def __init__(self, group: Group, runner: ModelRunner) -> None:
        self._group = group
        self._runner = runner
        self._device = runner.model.device
        self._slots_AC = torch.zeros((0, 0), dtype=torch.int64, device=self._device)
        self._replays: dict[int, Callable[[], object]] = {}
        self._pool: object = None

    @torch.inference_mode()
    def run(self) -> None:
        """Run what rank 0 announces, however long it takes. Raises GroupLost if a rank is lost."""
        while not isinstance(message := decode(self._group.receive()), EndMessage):
            self._obey(message)

    def _obey(self, message: Message) -> None:
        match message:
            case ForwardMessage(capture=None):
                self._forward(message)
            case ForwardMessage():
                self._capture(message)
            case ReplayMessage(number):
                self._replays[number]()
            case DropMessage(numbers):
                for number in numbers:
                    self._replays.pop(number, None)
            case StateMessage(change, arguments):
                states = self._runner.backend.kv.states
                assert states is not None
                getattr(states, change)(*arguments)
            case WindowMessage(change, arguments):
                windows = self._runner.backend.kv.windows
                assert windows is not None
                getattr(windows, change)(*(np.frombuffer(each, np.int64) for each in arguments))
            case HeartbeatMessage() | CacheMessage() | EndMessage():
                pass

    def _forward(self, message: ForwardMessage) -> Output:
        self._make_room(message)
        return self._runner.forward(self._rows(message), tuple(message.taps))

    def _capture(self, message: ForwardMessage) -> None:
        """Capture a forward pass, which has run before; on a CPU a replay runs it again."""
        assert message.capture is not None
        self._make_room(message)
        forward = partial(self._forward, message)
        has_worked = False
        try:
            if self._device.type == "cuda":
                if not self._replays:  # a pool without graphs cannot be used again
                    self._pool = torch.cuda.graph_pool_handle()
                table = self._slots_AC  # which the graph writes, also after a larger one is made
                graph, output = recorded(forward, self._pool)
                forward = partial(_replay, graph, (table, output))
            else:
                forward()
            has_worked = True
        except GroupLost:
            raise
        except Exception:
            log.warning("a forward pass cannot be captured", exc_info=True)
        if self._group.least(int(has_worked)):
            self._replays[message.capture] = forward

    def _rows(self, message: ForwardMessage) -> ForwardRows:
        """Receive the rows of a pass."""
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
        layout = AttentionLayout(
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
            num_outputs=message.num_outputs,
            ranks=tuple(message.ranks),
        )

    def _make_room(self, message: ForwardMessage) -> None:
        """Make the sequence table large enough for a pass."""
        num_seats, num_columns = message.num_seats, message.num_columns
        seats, columns = self._slots_AC.shape
        if num_seats > seats or num_columns > columns:
            shape = (max(seats, num_seats), max(columns, 2 * num_columns))
            self._slots_AC = torch.zeros(shape, dtype=torch.int64, device=self._device)

    def _table(
        self, message: ForwardMessage, seats_B: torch.Tensor, slots_BL: torch.Tensor
    ) -> torch.Tensor:
        """Return the sequence table, in which the rows of the pass are those of rank 0."""
        self._slots_AC[seats_B, : message.num_columns] = slots_BL
        return self._slots_AC[: message.num_seats]


def _replay(graph: torch.cuda.CUDAGraph, kept: object) -> None:
    """Replay a graph. kept: the tensors that it reads and writes outside of its own memory."""
    graph.replay()
