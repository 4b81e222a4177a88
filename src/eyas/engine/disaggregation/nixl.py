"""Rows moved by NIXL: the decode server reads the prefill server's memory, by RDMA where there is any.

NIXL's UCX backend also works without: over shared memory on one machine, over TCP between machines.

Promises: what `Transport` promises. NIXL is imported when a server is started with it.
Does not know: prompts, handles.
"""

from __future__ import annotations

import threading
import time
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from eyas.engine.disaggregation.memory import Places, SlotMemory, num_places, runs_of
from eyas.engine.disaggregation.messages import Link

POLL_SECONDS = 0.0005
NEEDS_NIXL = (
    "disaggregation.transport: 'nixl' needs NIXL; run pip install 'eyas[nixl]', or pass "
    "--kv-transport tcp"
)


class _Memory(msgspec.Struct, frozen=True):
    """A prompt in an engine's memory.

    agent: what NIXL says of the engine. kind: of the memory ("DRAM" or "VRAM"). tensors: (address of
    the first row, bytes of a row, device number) for each kind of places. runs: (first place, number)
    of each kind, in order of position.
    """

    agent: bytes
    kind: str
    tensors: list[list[tuple[int, int, int]]]
    runs: list[list[tuple[int, int]]]


_decode = msgspec.msgpack.Decoder(_Memory).decode


class NixlTransport:
    """Reads rows with NIXL. agent: the name of this engine. Raises ValueError if NIXL is missing."""

    name = "nixl"

    def __init__(self, memory: SlotMemory, agent: str) -> None:
        try:
            from nixl._api import nixl_agent, nixl_agent_config  # pyrefly: ignore
        except ImportError as error:
            raise ValueError(f"{NEEDS_NIXL} ({error})") from error
        self._lock = threading.Lock()
        self._kind = "DRAM" if memory.device.type == "cpu" else "VRAM"
        device = memory.device.index or 0
        self._tensors = [
            [(rows_PX.data_ptr(), rows_PX.shape[1], device) for rows_PX in group]
            for group in memory.groups
        ]
        self._agent: Any = nixl_agent(agent, nixl_agent_config(backends=["UCX"]))
        self._registered = self._agent.register_memory([*chain(*memory.groups)])
        self._peers: dict[bytes, str] = {}

    def describe(self, places: Places) -> bytes:
        with self._lock:
            agent = self._agent.get_agent_metadata()
        runs = [[(first, count) for _, first, count in runs_of(own)] for own in places]
        return msgspec.msgpack.encode(_Memory(agent, self._kind, self._tensors, runs))

    def give(self, link: Link, places: Places) -> None:
        return None

    def take(self, link: Link, description: bytes, places: Places) -> None:
        if not any(num_places(places)):
            return
        try:
            theirs = _decode(description)
        except msgspec.MsgspecError as error:
            raise OSError(f"not a description of memory: {error}") from error
        counts = tuple(sum(count for _, count in runs) for runs in theirs.runs)
        if counts != num_places(places):
            raise OSError("the description is of another number of rows")
        local: list[tuple[int, int, int]] = []
        remote: list[tuple[int, int, int]] = []
        for own, runs, tensors, their_tensors in zip(
            places, theirs.runs, self._tensors, theirs.tensors, strict=True
        ):
            if not len(own):
                continue
            other = np.concatenate([np.arange(first, first + n) for first, n in runs])
            pairs = _common_runs(own, other)
            for (base, size, device), (their_base, _, their_device) in zip(
                tensors, their_tensors, strict=True
            ):
                for first, their_first, count in pairs:
                    local.append((base + first * size, count * size, device))
                    remote.append((their_base + their_first * size, count * size, their_device))
        try:
            self._read(link, theirs, local, remote)
        except OSError:
            raise
        except Exception as error:  # NIXL has its own types of exceptions
            raise OSError(f"NIXL: {error}") from error

    def _read(
        self,
        link: Link,
        theirs: _Memory,
        local: list[tuple[int, int, int]],
        remote: list[tuple[int, int, int]],
    ) -> None:
        agent = self._agent
        with self._lock:
            if theirs.agent not in self._peers:
                self._peers[theirs.agent] = agent.add_remote_agent(theirs.agent)
            handle = agent.initialize_xfer(
                "READ",
                agent.get_xfer_descs(local, self._kind),
                agent.get_xfer_descs(remote, theirs.kind),
                self._peers[theirs.agent],
            )
            state = agent.transfer(handle)
        try:
            while state == "PROC":
                link.check_is_open()
                time.sleep(POLL_SECONDS)
                state = self._state(handle)
            if state != "DONE":
                raise OSError(f"NIXL: the transfer ended as {state}")
        except BaseException:
            self._peers.pop(theirs.agent, None)  # it is introduced again the next time
            raise
        finally:
            self._release(handle)

    def _state(self, handle: Any) -> str:
        with self._lock:
            return self._agent.check_xfer_state(handle)

    def _release(self, handle: Any) -> None:
        """Release a transfer, and wait until it writes no more if it cannot be cancelled."""
        while True:
            try:
                with self._lock:
                    self._agent.release_xfer_handle(handle)
                return
            except Exception:
                if self._has_ended(handle):
                    return
                time.sleep(POLL_SECONDS)

    def _has_ended(self, handle: Any) -> bool:
        try:
            return self._state(handle) != "PROC"
        except Exception:  # a broken connection ends a transfer too
            return True

    def close(self) -> None:
        with self._lock:
            self._agent.deregister_memory(self._registered)


def _common_runs(own: np.ndarray, other: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (own first place, other first place, number) of the runs that are contiguous in both."""
    breaks = (np.diff(own, prepend=own[0] - 2) != 1) | (np.diff(other, prepend=other[0] - 2) != 1)
    starts = np.flatnonzero(breaks)
    stops = [*starts[1:], len(own)]
    return [(int(own[a]), int(other[a]), int(b - a)) for a, b in zip(starts, stops, strict=True)]
