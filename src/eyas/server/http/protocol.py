"""HTTP/1.1 connections with limits that uvicorn lacks.

Promises: a connection that sends no complete request head in time is closed. At the limit of
connections, the one that has been without a complete request for the longest time is closed, so that
a new one is always accepted. A client that reads nothing of its answer is cut off. One that closes its
side of the connection counts as gone, since both look the same, but what the server still answers is
written for it. A request that cannot be parsed as HTTP, or that a proxy in front of this server may
parse differently, gets an error in OpenAI's shape. Does not know: routes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NoReturn

import h11
import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from eyas.server.http.body import PROGRESS_BYTES
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.middleware import request_id_of

log = logging.getLogger("eyas.server")

HEAD_TIMEOUT_SECONDS = 30.0
LINGER_SECONDS = 2.0
WARNING_SECONDS = 60.0
NO_REQUEST = (
    "this is not an HTTP request, or its head is not valid; send valid fields, with one Host and at "
    "most one length"
)
NO_BODY = "the request's body is not in the form that its head announces"
TWO_LENGTHS = (
    "the request has content-length and transfer-encoding, which may say two lengths; send one"
)
ODD_LINES = (
    "the request has lines that do not end in CR LF, or that go on in the next one; send each field in "
    "one line that ends in CR LF"
)
_ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_errors_alone = logging.getLogger("uvicorn.error.alone")
_errors_alone.setLevel(logging.ERROR)
"""uvicorn's warnings, one for each request that cannot be parsed, are ours here (`warn_rarely`)."""
_ODD_LINE_END = re.compile(rb"(?<!\r)\n|\n[ \t]")


class Connections:
    """The open connections of a server, and the idle ones in the order in which they became idle.

    A connection is idle while it has no complete request. An upload becomes idle anew whenever it makes
    progress (see `eyas.server.http.body`).
    when_changed: called when a connection has closed or become idle, so that a new one can be accepted.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._open: set[BoundedProtocol] = set()
        self._idle: dict[BoundedProtocol, None] = {}
        self._ending: BoundedProtocol | None = None
        self._warned_at: dict[str, float] = {}
        self.when_changed: Callable[[], None] = lambda: None

    def has_capacity(self) -> bool:
        """Whether another connection can be opened."""
        return len(self._open) < self._max_open

    def close_idle(self) -> None:
        """Start to close the connection that has been idle longest, unless one is being closed
        already."""
        if self._ending is None and self._idle:
            self._ending = next(iter(self._idle))
            del self._idle[self._ending]
            transport = self._ending.transport
            if transport.get_write_buffer_size():
                transport.abort()  # close() would wait for a client that may never read the rest
            else:
                transport.close()

    def warn_rarely(self, message: str) -> None:
        """Log a warning, at most once in WARNING_SECONDS. message: one of a few, without data of
        clients."""
        now = time.monotonic()
        if now - self._warned_at.get(message, -WARNING_SECONDS) >= WARNING_SECONDS:
            self._warned_at[message] = now
            log.warning("%s", message)

    def add(self, connection: BoundedProtocol) -> None:
        """Count a connection that is about to be opened."""
        self._open.add(connection)

    def opened(self, connection: BoundedProtocol) -> None:
        """Record that a connection is open, and idle."""
        self._idle[connection] = None
        self.when_changed()

    def closed(self, connection: BoundedProtocol) -> None:
        """Record that a connection is closed."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if self._ending is connection:
            self._ending = None
        self.when_changed()

    def update(
        self, connection: BoundedProtocol, *, has_request: bool, has_progress: bool = False
    ) -> None:
        """Record whether a connection has a complete request now, or has made progress with one."""
        if has_request or has_progress:
            self._idle.pop(connection, None)
        if not has_request and connection in self._open and connection is not self._ending:
            self._idle.setdefault(connection)
            self.when_changed()


class _RequestParser(h11.Connection):
    """A parser of requests.

    The limit of the head's length does not depend on how it was cut into packets. A target in
    absolute form (RFC 9112, 3.2.2) is replaced by its path, and its authority becomes the header
    Host. fault: the error in what was received, if it is known.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self.max_head_bytes = max_head_bytes
        self.fault: ApiError | None = None
        self.headers: list[tuple[bytes, bytes]] = []

    def next_event(self) -> Any:
        unparsed = self.trailing_data[0]
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.fault = self._head_too_long()
            raise
        if not isinstance(event, (h11.Request, h11.EndOfMessage)):
            return event
        lines = unparsed[: len(unparsed) - len(self.trailing_data[0])]
        if isinstance(event, h11.EndOfMessage):
            if _ODD_LINE_END.search(lines):
                self._refuse(ApiError(Code.MALFORMED_HTTP, ODD_LINES))
            return event
        self.headers = list(event.headers)
        num_bytes = len(event.method) + len(event.target) + sum(map(_num_bytes, self.headers))
        if num_bytes > self.max_head_bytes:
            self._refuse(self._head_too_long())
        if _ODD_LINE_END.search(lines):
            self._refuse(ApiError(Code.MALFORMED_HTTP, ODD_LINES))
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
            self._refuse(ApiError(Code.MALFORMED_HTTP, TWO_LENGTHS))
        absolute = _ABSOLUTE_TARGET.match(event.target)
        if absolute is None:
            return event
        target = event.target[absolute.end() :]
        others = [(name, value) for name, value in self.headers if name != b"host"]
        return h11.Request(
            method=event.method,
            target=target if target.startswith(b"/") else b"/" + target,
            headers=[(b"host", absolute[1]), *others],
            http_version=event.http_version,
        )

    def _refuse(self, fault: ApiError) -> NoReturn:
        self.fault = fault
        raise h11.RemoteProtocolError(fault.message)

    def _head_too_long(self) -> ApiError:
        limit = self.max_head_bytes
        message = f"the request's head is longer than {limit} bytes; shorten it"
        return ApiError(Code.HEAD_TOO_LARGE, message)


def _num_bytes(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1]) + len(b": \r\n")


_connection_numbers = itertools.count(1)


class BoundedProtocol(H11Protocol):
    """One connection of a server."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        *args: Any,
        connections: Connections,
        max_header_bytes: int,
        write_timeout_seconds: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _errors_alone
        self._connections = connections
        self._write_timeout_seconds = write_timeout_seconds
        self._num_since_progress = 0
        self._is_ended = False
        self._has_client_ended = False
        self.app = self._with_end_of_client(self.app)  # pyrefly: ignore
        self.conn = self._reader = _RequestParser(max_header_bytes)  # pyrefly: ignore

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_complete_request(self) -> bool:
        return self._has_request and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is None:  # connections of a Unix socket have no addresses
            self.client = ("unix", next(_connection_numbers))
        transport.set_write_buffer_limits(high=0)  # call pause_writing for any unsent data
        self._connections.opened(self)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, transport.close)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            # asyncio does not set it for sockets made elsewhere. Without it a delta waits 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        self._connections.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_ended:
            return
        had_request = self._has_request
        super().data_received(data)
        self._num_since_progress += len(data)
        has_progress = self._has_request and (
            not had_request or self._num_since_progress >= PROGRESS_BYTES
        )
        if has_progress:
            self._num_since_progress = 0
        self._connections.update(
            self, has_request=self._has_complete_request, has_progress=has_progress
        )
        if self._has_request:
            self._stop_head_timer()
        elif not had_request and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self.transport.close)

    def eof_received(self) -> bool:  # pyrefly: ignore
        """Keep the connection open until the requests that have arrived are answered."""
        self._has_client_ended = True
        self._pass_end_of_client()
        return True

    def _pass_end_of_client(self) -> None:
        """Tell the running request that the client sends nothing more; without one, close the
        connection."""
        if not self._has_request:
            self.transport.close()
        elif self.cycle.more_body:
            self.conn.receive_data(b"")
            self.handle_events()
        else:
            self.cycle.message_event.set()

    def _with_end_of_client(self, app: ASGIApp) -> ASGIApp:
        """Return an app for which a client that sends nothing more has disconnected, but can still be
        sent an answer."""

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            cycle, is_whole = self.cycle, False

            async def receive_until_end() -> Message:
                nonlocal is_whole
                if is_whole and self._has_client_ended:
                    return {"type": "http.disconnect"}
                message = await receive()
                if is_whole:  # woken by the end of the client, or of the answer
                    return {"type": "http.disconnect"}
                is_whole = message["type"] == "http.request" and not message["more_body"]
                return message

            await app(scope, receive_until_end, send)
            if self._has_client_ended and not cycle.response_complete:
                cycle.disconnected = True  # a stream that has been ended in the middle
                self.transport.close()

        return run

    def pause_writing(self) -> None:
        """Start the timeout of writing: the client has not read all data. Also called while closing."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._write_timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # starts the next request, if it has arrived already
        self._connections.update(self, has_request=self._has_complete_request)
        if self._has_client_ended:
            self._pass_end_of_client()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, unless its answer has begun, and close the
        connection.

        Discards further data for a while before closing: with unread data the system would reset the
        connection, and the client might lose the answer.
        """
        has_head = self.conn.our_state is not h11.IDLE
        headers_sent = Headers(raw=self._reader.headers if has_head else [])
        error = self._reader.fault
        if error is None:
            error = ApiError(Code.MALFORMED_HTTP, NO_BODY if has_head else NO_REQUEST)
        self._connections.warn_rarely(f"a connection sent no valid request: {error.message}")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(error.body())
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                (b"x-request-id", request_id_of(headers_sent).encode()),
            ]
            reason = HTTPStatus(error.status).phrase.encode()
            for event in (
                h11.Response(status_code=error.status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # tell the route that the client has disconnected
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._is_ended = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
