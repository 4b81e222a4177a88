"""How the rows of a prompt get from the slots of one engine to those of another.

Promises: `take` returns when all rows are in their places, and raises OSError if they cannot be. When
it has returned or raised, nothing writes to the places any more.
Does not know: prompts, handles, who holds what how long.
"""

from __future__ import annotations

from typing import Protocol

import torch

from eyas.engine.disaggregation.memory import Places, SlotMemory, runs_of
from eyas.engine.disaggregation.messages import Link

PIECE_BYTES = 4 * 2**20
"""Most bytes that are sent at a time, so that deadlines are kept."""


class Transport(Protocol):
    """A way to move rows. name: that of the setting."""

    name: str

    def describe(self, places: Places) -> bytes:
        """Return what the other side needs to take the rows of these places."""
        ...

    def give(self, link: Link, places: Places) -> None:
        """Move the rows of these places, as far as it is this side that moves them."""
        ...

    def take(self, link: Link, description: bytes, places: Places) -> None:
        """Move the rows that the other side described to these places, which are as many."""
        ...

    def close(self) -> None: ...


class TcpTransport:
    """Rows as bytes on the connection of the conversation: tensor by tensor, in order of position.

    On a CPU they are sent from the cache and received into it, without a copy; on a GPU they go through
    host memory, on a stream of their own.
    """

    name = "tcp"

    def __init__(self, memory: SlotMemory) -> None:
        self._memory = memory
        self._is_host = memory.device.type == "cpu"

    def describe(self, places: Places) -> bytes:
        return b""

    def give(self, link: Link, places: Places) -> None:
        with self._own_stream():
            for piece_TX in self._pieces(places):
                link.send_bytes(_bytes_of(piece_TX if self._is_host else piece_TX.cpu()))

    def take(self, link: Link, description: bytes, places: Places) -> None:
        with self._own_stream():
            for piece_TX in self._pieces(places):
                host_TX = piece_TX if self._is_host else torch.empty_like(piece_TX, device="cpu")
                link.receive_into(_bytes_of(host_TX))
                if not self._is_host:
                    piece_TX.copy_(host_TX)
            if not self._is_host:
                torch.cuda.current_stream(self._memory.device).synchronize()

    def close(self) -> None:
        return None

    def _own_stream(self) -> torch.cuda.StreamContext:
        stream = None if self._is_host else torch.cuda.Stream(self._memory.device)
        return torch.cuda.stream(stream)  # pyrefly: ignore

    def _pieces(self, places: Places):
        """Yield the rows in order, a part of a contiguous run at a time."""
        for group, own in zip(self._memory.groups, places, strict=True):
            runs = list(runs_of(own))
            for rows_PX in group:
                most = max(1, PIECE_BYTES // rows_PX.shape[1])
                for _, first, count in runs:
                    for start in range(first, first + count, most):
                        yield rows_PX[start : min(start + most, first + count)]


def _bytes_of(rows_TX: torch.Tensor) -> memoryview:
    return rows_TX.view(-1).numpy().data


def open_transport(name: str, memory: SlotMemory, agent: str) -> Transport:
    """Return the transport that a setting names. agent: a name that no other engine has. Raises
    ValueError if it cannot be used here."""
    if name == "tcp":
        return TcpTransport(memory)
    from eyas.engine.disaggregation.nixl import NixlTransport

    return NixlTransport(memory, agent)
