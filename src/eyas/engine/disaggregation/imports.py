"""Prompts that a decode server reads from a prefill server, on threads beside the engine's steps.

Promises: a prompt that cannot be read ends with a `KVTransferError`, after the time limit at the
latest. Slots may return when `is_quiet`: nothing writes to them any more.
Does not know: engines, which slots are used.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch

from eyas.cache.lease import Lease
from eyas.cache.slots import NO_SLOTS
from eyas.config import DisaggregationConfig
from eyas.constraint import Grammar
from eyas.core import KVHandle, Request
from eyas.engine.disaggregation.memory import Places
from eyas.engine.disaggregation.messages import (
    GRANT_BYTES,
    Claim,
    Denied,
    Done,
    Grant,
    KVTransferError,
    Link,
)
from eyas.engine.disaggregation.transport import Transport

log = logging.getLogger(__name__)

MOST_REASON = 300
"""Characters of a prefill server's reason that a client is shown."""
MAX_READINGS = 64
"""Prompts that are read at a time, each on a thread."""


@dataclass(slots=True, eq=False)
class Import:
    """A request whose prompt is read.

    lease, slots, places: where the positions from `first` on get to, once they are reserved. parts:
    `slots` as they were reserved. snapshot: where the state after the prompt gets to; None if it has
    none. free_at: event after which they may be written. result: the grant.
    """

    request: Request
    grammar: Grammar | None
    digest: str
    lease: Lease | None = None
    slots: np.ndarray = field(default_factory=lambda: NO_SLOTS)
    parts: list[np.ndarray] = field(default_factory=list)
    places: Places = field(default_factory=lambda: (NO_SLOTS, NO_SLOTS, NO_SLOTS))
    snapshot: int | None = None
    first: int = 0
    free_at: torch.cuda.Event | None = None
    result: Future[Grant] | None = None
    link: Link | None = None
    is_aborted: bool = False

    @property
    def is_quiet(self) -> bool:
        return self.result is not None and self.result.done()

    def abort(self) -> None:
        """End the reading, from any thread."""
        self.is_aborted = True
        if self.link is not None:
            self.link.shut()


class Importer:
    """Reads prompts. layout: of the slots. wake: called when a reading has ended."""

    def __init__(
        self,
        config: DisaggregationConfig,
        layout: str,
        transport: Transport,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._layout = layout
        self._transport = transport
        self._wake = wake

    def check(self, handle: KVHandle) -> None:
        """Raise KVTransferError if prompts of this server are not read."""
        if handle.host not in self._config.peers:
            raise KVTransferError(
                f"the host {handle.host[:100]!r} is no prefill server of this one; start it with "
                "--kv-peer to read from there",
                "kv_handle_invalid",
                has_room=handle.is_awaited,
            )

    def start(self, job: Import) -> None:
        """Begin to read, on a thread of its own."""
        job.result = Future()
        job.result.add_done_callback(lambda _: self._wake())
        try:
            threading.Thread(
                target=self._run, args=(job, job.result), name="kv-import", daemon=True
            ).start()
        except RuntimeError as error:  # no more threads can be started
            log.warning("the prompt of request %s was not read: %s", job.request.id, error)
            job.result.set_exception(_not_read(job))

    def _run(self, job: Import, result: Future[Grant]) -> None:
        try:
            result.set_result(self._read(job))
        except BaseException as error:
            result.set_exception(error)

    def _read(self, job: Import) -> Grant:
        handle = job.request.kv_handle
        assert handle is not None
        try:
            if job.free_at is not None:
                job.free_at.synchronize()
            address = (handle.host, handle.port)
            with socket.create_connection(address, self._config.timeout_seconds) as connection:
                job.link = Link(connection, self._config.timeout_seconds, GRANT_BYTES)
                if job.is_aborted:
                    raise OSError("the request was ended")
                return self._converse(job, job.link, handle)
        except (OSError, OverflowError) as error:
            log.warning("the prompt of request %s was not read: %s", job.request.id, error)
            raise _not_read(job) from error

    def _converse(self, job: Import, link: Link, handle: KVHandle) -> Grant:
        layout, transport, waits = self._layout, self._transport.name, handle.is_awaited
        link.send(Claim(handle.key, job.digest, layout, transport, job.first, waits))
        if waits:
            link.restart(self._config.hold_seconds + self._config.timeout_seconds)
        answer = link.receive()
        link.restart(self._config.timeout_seconds)
        if isinstance(answer, Denied):
            raise KVTransferError(answer.reason[:MOST_REASON], answer.code, has_room=waits)
        if not isinstance(answer, Grant):
            raise OSError("a claim was not answered")
        self._transport.take(link, answer.description, job.places)
        link.send(Done())
        if not isinstance(link.receive(), Done):
            raise OSError("the prompt was not held until all of it had arrived")
        return answer


def _not_read(job: Import) -> KVTransferError:
    handle = job.request.kv_handle
    return KVTransferError(
        "the prompt could not be read from the prefill server; send the request to it again",
        has_room=handle is not None and handle.is_awaited,
    )
