"""What rank 0 tells the other ranks, so that they run the same forward passes.

Rank 0 schedules, drafts and chooses tokens. Before a forward pass it sends a message with the sizes of
the pass, and a tensor with its rows and slots; then all ranks run the model, each its part. Where rank
0 captures the pass in a CUDA graph, the others capture theirs, and a replay is announced by the graph's
number alone: the tensor is sent by the graph. States of sequences are copied and dropped on all ranks,
and window slots are assigned, by further messages in the same order.

Promises: a rank that receives has the same rows, slots and seats as rank 0. A pass that fails on rank 0
ends the group, because the others are in the middle of it; one that is only captured does not.
Does not know: schedules, trees, how processes are started.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet, finalize

import msgspec
import numpy as np
import torch

from eyas.parallel.group import Group
from eyas.parallel.lost import GroupLost
from eyas.runner.rank_messages import (
    CacheMessage,
    DropMessage,
    EndMessage,
    HeartbeatMessage,
    Message,
    ReplayMessage,
    StateChange,
    StateMessage,
    WindowChange,
    WindowMessage,
    describe,
    encode,
)
from eyas.runner.rows import ForwardRows

HEARTBEAT_SECONDS = 5.0
MOST_WATCHED = 64
"""Replays whose end is waited for; more than a step has in flight."""


@dataclass(slots=True, eq=False)
class CapturedPass:
    """number: of the forward pass that a stage has announced while it was captured; None if it has
    none."""

    number: int | None = None


class Destroyable(Protocol):
    """A captured pass. destroy: frees its graph, which is not replayed any more."""

    def destroy(self) -> None: ...


class Leader:
    """Rank 0's side: announces forward passes and changes of states."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sent_at = time.monotonic()
        self._capture: CapturedPass | None = None
        self._num_captured = 0
        self._kept: WeakSet[Destroyable] = WeakSet()
        self._dropped: list[int] = []
        self._launched: deque[tuple[float, torch.cuda.Event]] = deque(maxlen=MOST_WATCHED)

    def _send(self, message: Message) -> None:
        self._sent_at = time.monotonic()
        self._group.send(encode(message))

    @contextmanager
    def forward(self, rows: ForwardRows, taps: tuple[int, ...] = ()) -> Iterator[None]:
        """Announce a forward pass, which is run or captured inside the context."""
        message, tensors = describe(rows, taps)
        capture = self._capture
        if capture is not None:
            assert capture.number is None, "a captured stage has one forward pass"
            capture.number = self._num_captured
            self._num_captured += 1
            message = msgspec.structs.replace(message, capture=capture.number)
        try:
            self._send(message)
            flat = torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in tensors])
            self._group.broadcast(flat)
            yield
        except BaseException as error:
            if capture is None:
                self._group.give_up(f"a forward pass failed on rank 0 ({type(error).__name__})")
            raise

    @contextmanager
    def capturing(self) -> Iterator[CapturedPass]:
        """Have the forward pass that is captured inside the context captured on all ranks.

        Raises RuntimeError if another rank cannot capture it.
        """
        capture = self._capture = CapturedPass()
        has_worked = False
        try:
            yield capture
            has_worked = True
        finally:
            self._capture = None
            everywhere = capture.number is None or self._group.least(int(has_worked))
        if not everywhere:
            raise RuntimeError("another rank cannot capture it; its log says why")

    @contextmanager
    def replaying(self, number: int) -> Iterator[None]:
        """Announce a replay of a captured pass, which is launched inside the context."""
        if self._dropped:
            dropped, self._dropped = self._dropped, []
            self._send(DropMessage(dropped))
        self._send(ReplayMessage(number))
        yield
        if torch.cuda.is_available():
            end = torch.cuda.Event()
            end.record()
            self._launched.append((time.monotonic(), end))

    def check_replays(self, most_seconds: float) -> None:
        """Raise GroupLost if a replay has not ended in this time, because a rank does not come to one
        of its exchanges. Can run in any thread."""
        while self._launched:
            launched_at, end = self._launched[0]
            if not end.query():
                if time.monotonic() - launched_at > most_seconds:
                    raise GroupLost(f"an exchange has not ended in {most_seconds:g} seconds")
                return
            self._launched.popleft()

    def own(self, captured: Destroyable, number: int) -> None:
        """Note a pass that was captured on all ranks. The others let theirs go after this one's has
        been garbage collected."""
        self._kept.add(captured)
        finalize(captured, self._dropped.append, number)

    def change_states(self, change: StateChange, *arguments: int) -> None:
        """Announce a change of the states of sequences."""
        self._send(StateMessage(change, list(arguments)))

    def change_windows(self, change: WindowChange, *arguments: np.ndarray) -> None:
        """Announce a change of window slots."""
        self._send(WindowMessage(change, [each.astype(np.int64).tobytes() for each in arguments]))

    def agree_on_slots(self, num_slots: int, num_window_slots: int, num_bytes: int) -> int:
        """Return the number of slots that every rank has memory for, at most `num_slots`.

        num_window_slots: of layers with a window, unless there are fewer slots than that. num_bytes: as
        in `CacheMessage`.
        """
        self._send(CacheMessage(num_slots, num_window_slots, num_bytes))
        return self._group.least(num_slots)

    def send_heartbeat(self) -> None:
        """Send a message that asks for nothing, if none was sent for a while. Raises GroupLost if a
        rank is not there."""
        if time.monotonic() - self._sent_at > HEARTBEAT_SECONDS:
            self._send(HeartbeatMessage())

    def end(self) -> None:
        """Tell the other ranks to end, and destroy the captured passes: NCCL would wait forever for the
        graphs that contain its exchanges, once these are ended."""
        if not self._group.is_lost:
            with suppress(GroupLost):
                self._send(EndMessage())
        for captured in self._kept:
            captured.destroy()
