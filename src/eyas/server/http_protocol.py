"""HTTP/1.1 connections with bounds that the web server lacks.

Promises: a connection that sends no whole request head in time is closed; so is, where there are too
many, the one that has been without a request for longest, so that a new one is always heard; a client
that takes nothing of what is written for it is cut off; what cannot be read as HTTP, or what a server
in front of this one may read differently, is answered in OpenAI's shape. Does not know: routes.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NoReturn

import h11
import msgspec
from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol

from eyas.server.body import MOVE_BYTES
from eyas.server.codes import Code
from eyas.server.errors import ApiError
from eyas.server.middleware import request_id_of

HEAD_TIMEOUT_SECONDS = 30.0
LINGER_SECONDS = 2.0
NO_REQUEST = "this is no HTTP request"
NO_BODY = "the request's body is not in the form that its head announces"
TWO_LENGTHS = (
    "the request has content-length and transfer-encoding, which may say two lengths; send one"
)
ODD_LINES = (
    "the request has lines that do not end in CR LF, or that go on in the next one; send each field in "
    "one line that ends in CR LF"
)
_NAMED_TARGET = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_ODD_LINE_END = re.compile(rb"(?<!\r)\n|\n[ \t]")


class Connections:
    """The connections that a server has, and which of them have no whole request, longest first. An
    upload counts from when it last moved, as `eyas.server.body` has it.

    when_changed: called when there may be room for another, or one that can be ended to make it."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._open: set[BoundedProtocol] = set()
        self._resting: dict[BoundedProtocol, None] = {}
        self._ending: BoundedProtocol | None = None
        self.when_changed: Callable[[], None] = lambda: None

    def has_capacity(self) -> bool:
        """For one more?"""
        return len(self._open) < self._max_open

    def close_idle(self) -> None:
        """Begin the end of the one that has rested for longest; of one after the other."""
        if self._ending is None and self._resting:
            self._ending = next(iter(self._resting))
            del self._resting[self._ending]
            transport = self._ending.transport
            if transport.get_write_buffer_size():
                transport.abort()  # it would wait for a client that may never take the rest
            else:
                transport.close()

    def coming(self, connection: BoundedProtocol) -> None:
        """One more, which is about to be opened."""
        self._open.add(connection)

    def opened(self, connection: BoundedProtocol) -> None:
        """It is there, and rests."""
        self._resting[connection] = None
        self.when_changed()

    def closed(self, connection: BoundedProtocol) -> None:
        self._open.discard(connection)
        self._resting.pop(connection, None)
        if self._ending is connection:
            self._ending = None
        self.when_changed()

    def note(
        self, connection: BoundedProtocol, *, has_request: bool, has_moved: bool = False
    ) -> None:
        """Whether it has a whole request now, or more of one."""
        if has_request or has_moved:
            self._resting.pop(connection, None)
        if not has_request and connection in self._open and connection is not self._ending:
            self._resting.setdefault(connection)
            self.when_changed()


class _RequestParser(h11.Connection):
    """HTTP as it comes off the wire. A head is too long, or not, however it was cut into packets; a
    target with the server's name in it (RFC 9112, 3.2.2) is its path, and that name its host.

    fault: what is wrong with what came, where that is known.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self.max_head_bytes = max_head_bytes
        self.fault: ApiError | None = None
        self.headers: list[tuple[bytes, bytes]] = []

    def next_event(self) -> Any:
        waiting = self.trailing_data[0]
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.fault = self._too_long()
            raise
        if not isinstance(event, (h11.Request, h11.EndOfMessage)):
            return event
        lines = waiting[: len(waiting) - len(self.trailing_data[0])]
        if isinstance(event, h11.EndOfMessage):
            if _ODD_LINE_END.search(lines):
                self._refuse(ApiError(Code.MALFORMED_HTTP, ODD_LINES))
            return event
        self.headers = list(event.headers)
        num_bytes = len(event.method) + len(event.target) + sum(map(_num_bytes, self.headers))
        if num_bytes > self.max_head_bytes:
            self._refuse(self._too_long())
        if _ODD_LINE_END.search(lines):
            self._refuse(ApiError(Code.MALFORMED_HTTP, ODD_LINES))
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
            self._refuse(ApiError(Code.MALFORMED_HTTP, TWO_LENGTHS))
        named = _NAMED_TARGET.match(event.target)
        if named is None:
            return event
        target = event.target[named.end() :]
        others = [(name, value) for name, value in self.headers if name != b"host"]
        return h11.Request(
            method=event.method,
            target=target if target.startswith(b"/") else b"/" + target,
            headers=[(b"host", named[1]), *others],
            http_version=event.http_version,
        )

    def _refuse(self, fault: ApiError) -> NoReturn:
        self.fault = fault
        raise h11.RemoteProtocolError(fault.message)

    def _too_long(self) -> ApiError:
        limit = self.max_head_bytes
        message = f"the request's head is longer than {limit} bytes; shorten it"
        return ApiError(Code.HEAD_TOO_LARGE, message)


def _num_bytes(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1]) + len(b": \r\n")


_NUMBERS = itertools.count(1)


class BoundedProtocol(H11Protocol):
    """One connection of the server."""

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
        self._all = connections
        self._write_timeout_seconds = write_timeout_seconds
        self._num_unmoved = 0
        self._is_over = False
        self.conn = self._reader = _RequestParser(max_header_bytes)  # pyrefly: ignore

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_whole_request(self) -> bool:
        return self._has_request and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if (
            self.client is None
        ):  # behind a Unix socket no two are told apart by where they come from
            self.client = ("unix", next(_NUMBERS))
        transport.set_write_buffer_limits(high=0)  # so that it says when anything waits here
        self._all.opened(self)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, transport.close)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            # asyncio leaves this out for sockets made elsewhere; without it a delta waits 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        self._all.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        had_request = self._has_request
        super().data_received(data)
        self._num_unmoved += len(data)
        has_moved = self._has_request and (not had_request or self._num_unmoved >= MOVE_BYTES)
        if has_moved:
            self._num_unmoved = 0
        self._all.note(self, has_request=self._has_whole_request, has_moved=has_moved)
        if self._has_request:
            self._stop_timer()
        elif not had_request and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        """Something waits for the client to take it, be it the end of a connection that closes."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._write_timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which begins the next request, where one has come already
        self._all.note(self, has_request=self._has_whole_request)

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is answered, unless an answer has begun, and ends the connection. The
        rest of it is thrown away for a while: unread, it would take the answer with it."""
        has_head = self.conn.our_state is not h11.IDLE
        asked = Headers(raw=self._reader.headers if has_head else [])
        error = self._reader.fault
        if error is None:
            error = ApiError(Code.MALFORMED_HTTP, NO_BODY if has_head else NO_REQUEST)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(error.body())
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                (b"x-request-id", request_id_of(asked).encode()),
            ]
            reason = HTTPStatus(error.status).phrase.encode()
            for event in (
                h11.Response(status_code=error.status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # for its route this client has gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._is_over = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
