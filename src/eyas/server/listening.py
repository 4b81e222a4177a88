"""The listening socket: accepts connections while there is capacity for them.

Promises: no more connections are open than the server allows, so that file descriptors are left for
everything else. At the limit an idle connection is closed to make place for a new one
(`eyas.server.http_protocol.Connections`); until then new connections wait in the system's queue. When
the system has no free file descriptors, the log says so at most once a minute.
Does not know: HTTP, what the connections are for.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import uvicorn

from eyas.server.http_protocol import BoundedProtocol, Connections

log = logging.getLogger("eyas.server")

MAX_AT_ONCE = 64
"""Connections that are taken before others get their turn."""
RETRY_SECONDS = 1.0
LOG_SECONDS = 60.0
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Server(uvicorn.Server):
    """uvicorn, but connections are taken by an `Acceptor`, and what a signal means is ours to say."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, on_signal: Callable[[int], None]
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal(sig)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        assert sockets is not None
        acceptors = [Acceptor(each, self._connections, self._new_protocol) for each in sockets]
        self.servers = cast("list[asyncio.base_events.Server]", acceptors)
        self.started = True

    def _new_protocol(self) -> BoundedProtocol:
        new: Any = self.config.http_protocol_class  # of our making, with its bounds
        return new(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class Acceptor:
    """Takes connections from one listening socket, from now on until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        new_protocol: Callable[[], BoundedProtocol],
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_listening = self._is_closed = False
        self._said_at = -LOG_SECONDS
        connections.when_changed = self._listen
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take no more."""
        self._pause()
        self._is_closed = True

    async def wait_closed(self) -> None:
        """Until those that were taken are there."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen(self) -> None:
        if not (self._is_listening or self._is_closed):
            self._is_listening = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        """Until something changes."""
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        """Somebody waits to be let in."""
        if not self._connections.has_capacity():
            self._pause()
            self._connections.close_idle()
            self._say("as many connections are open as there may be; idle ones end for new ones")
            return
        for _ in range(MAX_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._pause()
                    self._connections.close_idle()
                    self._loop.call_later(RETRY_SECONDS, self._listen)
                    self._say(f"no connection can be taken now: {error.strerror}")
                return  # or nobody waits any more
            protocol = self._new_protocol()
            self._connections.coming(protocol)
            task = self._loop.create_task(self._hand_over(connection, protocol))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if not self._connections.has_capacity():
                return

    async def _hand_over(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except (OSError, asyncio.CancelledError):
            connection.close()
            self._connections.closed(protocol)

    def _say(self, words: str) -> None:
        """In the log, but not for every connection."""
        if time.monotonic() - self._said_at >= LOG_SECONDS:
            self._said_at = time.monotonic()
            log.warning("%s", words)
