"""Answers on their way to one client, as events or whole, and noticing that a client has gone.

Promises: the source of events is closed as soon as the client has left or has everything; no answer
is written faster than it is taken. Does not know: what it says, how long a client may take (see
`eyas.server.http_protocol`).
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

DONE = b"data: [DONE]\n\n"
PIECE_BYTES = 64 * 1024


class ClientLeft(Exception):
    """The client has disconnected: nobody waits for the answer."""


def event(value: dict[str, Any]) -> bytes:
    """One event. JSON has no line breaks of its own, so nothing can forge an event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; ClientLeft, with the work cancelled, if the client goes first."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        await _cancelled(watcher, task)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


class InPieces(Response):
    """A whole answer, JSON, of which the next piece is written when the one before is gone."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        body = memoryview(self.body)
        for first in range(0, len(body), PIECE_BYTES):
            piece, rest = bytes(body[first : first + PIECE_BYTES]), body[first + PIECE_BYTES :]
            await send({"type": "http.response.body", "body": piece, "more_body": len(rest) > 0})


class EventStream(Response):
    """A streaming answer. source: whole events. close: runs at the end, whatever happens."""

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
            await unless_left(receive, self._write(send))
        except (ClientLeft, OSError):
            pass  # there is nobody left to tell
        finally:
            await self._source.aclose()
            await self._close()

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for data in self._source:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
