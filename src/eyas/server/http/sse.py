"""Responses that are written no faster than the client reads, and detection of a client's disconnect.

Promises: closes the source of events as soon as the client disconnects or has all of them. Does not
know: what is sent, how long a client may take (see `eyas.server.http.protocol`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")

DONE_EVENT = b"data: [DONE]\n\n"
CHUNK_BYTES = 64 * 1024


class ClientDisconnected(Exception):
    """The client has disconnected before its answer was complete."""


def encode_event(value: dict[str, Any]) -> bytes:
    """Return one event. The JSON contains no line breaks, so its content cannot forge an event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def encode_typed_event(value: dict[str, Any]) -> bytes:
    """Return one event whose name is its "type"."""
    return b"event: " + value["type"].encode() + b"\n" + encode_event(value)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`. If the client disconnects first, cancel it and raise
    ClientDisconnected."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        await _cancel(watcher, task)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def json_response(value: Any) -> Response:
    """Return a JSON answer of few bytes."""
    return Response(msgspec.json.encode(value), media_type="application/json")


class ChunkedJsonResponse(Response):
    """A complete JSON answer, written in chunks: each after the one before it has been sent."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        body = memoryview(self.body)
        for first in range(0, len(body), CHUNK_BYTES):
            chunk, rest = bytes(body[first : first + CHUNK_BYTES]), body[first + CHUNK_BYTES :]
            await send({"type": "http.response.body", "body": chunk, "more_body": len(rest) > 0})


class EventStreamResponse(Response):
    """A streamed answer. source: yields whole events. close: called at the end, after errors as
    well."""

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._source = source
        self._close = close
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._write(send))
        except (ClientDisconnected, OSError):
            pass  # the client has gone, nothing more can be sent
        finally:
            await self._source.aclose()
            await self._close()

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for data in self._source:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
