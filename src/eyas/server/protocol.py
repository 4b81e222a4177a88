"""HTTP/1.1 connections with bounds that the web server lacks.

Promises: a connection that sends no whole request head in time is closed; what cannot be read as
HTTP is answered in OpenAI's shape. Does not know: routes.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from eyas.server.errors import ApiError

HEAD_TIMEOUT_SECONDS = 30.0


class BoundedProtocol(H11Protocol):
    """One connection of the server."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, transport.close)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            # asyncio leaves this out for sockets made elsewhere; without it a delta waits 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif is_idle and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(
            ApiError(400, "this is no HTTP request, or its head is too long").body()
        )
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state is h11.IDLE:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
