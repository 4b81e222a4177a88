"""The listening socket: accepts connections while there is capacity for them.

Promises: no more connections are open than the server allows, so that file descriptors are left for
everything else. At the limit an idle connection is closed to make place for a new one
(`eyas.server.http.protocol.Connections`); until then new connections wait in the system's queue.
Does not know: HTTP, what the connections are for.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import uvicorn

from eyas.server.http.protocol import BoundedProtocol, Connections

MAX_ACCEPTED_AT_ONCE = 64
"""Connections that are accepted in one turn of the event loop."""
RETRY_SECONDS = 1.0
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Server(uvicorn.Server):
    """uvicorn's server, with an `Acceptor` for connections and with our handler of signals."""

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
        acceptors = [
            Acceptor(listener, self._connections, self._new_protocol) for listener in sockets
        ]
        self.servers = cast("list[asyncio.base_events.Server]", acceptors)
        self.started = True

    def _new_protocol(self) -> BoundedProtocol:
        new: Any = self.config.http_protocol_class  # a partial of BoundedProtocol
        return new(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class Acceptor:
    """Accepts the connections of one listening socket until it is closed."""

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
        connections.when_changed = self._listen
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections."""
        self._pause()
        self._is_closed = True

    async def wait_closed(self) -> None:
        """Wait until all accepted connections are open."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen(self) -> None:
        """Accept connections from now on."""
        if not (self._is_listening or self._is_closed):
            self._is_listening = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _pause(self) -> None:
        """Accept no connections until `_listen` is called."""
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        """Accept waiting connections."""
        if not self._connections.has_capacity():
            self._pause()
            self._connections.close_idle()
            self._connections.warn_rarely(
                "as many connections are open as are allowed; idle ones are closed for new ones"
            )
            return
        for _ in range(MAX_ACCEPTED_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._pause()
                    self._connections.close_idle()
                    self._loop.call_later(RETRY_SECONDS, self._listen)
                    reason = error.strerror
                    self._connections.warn_rarely(f"no connection can be accepted now: {reason}")
                return  # or no more connections are waiting
            protocol = self._new_protocol()
            self._connections.add(protocol)
            task = self._loop.create_task(self._open(connection, protocol))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if not self._connections.has_capacity():
                return

    async def _open(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except (OSError, asyncio.CancelledError):
            connection.close()
            self._connections.closed(protocol)
