"""Keeps an engine running: what the server sees, with one engine process after another behind it.

Promises: an engine that was ready once and dies is started again, a number of times in a row, with
growing pauses; counts go on where those of the dead one ended. A first start that fails is final, with
its reason, since nothing has shown that another would do better. What was under way ends with an error
and is not sent again: it may be what killed the engine.
Does not know: sockets, HTTP, why an engine died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from eyas import wire
from eyas.config import EngineInfo
from eyas.core import Delta, Request
from eyas.server.client import EngineHealth, EngineProcess

log = logging.getLogger("eyas.server")

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
HEALTHY_SECONDS = 3.0
"""An engine that was ready for so long was worth its start: tries count anew. Were it longer, engines
that load slowly and are killed now and then would use up their tries."""
MAX_RETRY_SECONDS = 60.0


class EngineSupervisor:
    """The engine of one server, an `EngineClient`. `run` keeps it alive.

    new_process: makes an engine process that is not started yet. max_restarts: in a row, without an
    engine that lived for a while; 0 starts none again.
    """

    def __init__(
        self,
        new_process: Callable[[], EngineProcess],
        *,
        max_restarts: int,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        healthy_seconds: float = HEALTHY_SECONDS,
    ) -> None:
        self._new_process = new_process
        self._max_restarts = max_restarts
        self._first_pause_seconds = first_pause_seconds
        self._healthy_seconds = healthy_seconds
        self._process = new_process()
        self._past = wire.EngineStats()
        self._num_restarts = 0
        self._was_ready = False
        self._reason: str | None = None
        self._load_seconds = 0.0
        self._pause_ends = 0.0

    @property
    def info(self) -> EngineInfo | None:
        return self._process.info

    @property
    def process_id(self) -> int | None:
        """Of the engine process that there is now."""
        return self._process.process_id

    def generate(self, request: Request) -> AsyncIterator[Delta]:
        return self._process.generate(request)

    async def abort(self, request_id: str) -> None:
        await self._process.abort(request_id)

    def health(self) -> EngineHealth:
        """Of the engine that there is now; counts are those of all."""
        health = self._process.health()
        state = "restarting" if self._was_ready and health.state != "ready" else health.state
        waiting = 0.0
        if state != "ready":
            waiting = max(0.0, self._pause_ends - time.monotonic()) + self._load_seconds
        return msgspec.structs.replace(
            health,
            state=state if self._reason is None else "failed",
            reason=self._reason or health.reason,
            retry_seconds=min(max(1.0, waiting), MAX_RETRY_SECONDS),
            num_restarts=self._num_restarts,
            stats=wire.added(self._past, health.stats),
        )

    async def run(self, on_ready: Callable[[], Awaitable[None]]) -> str:
        """Start engines, one after the other; why there will be no more.

        on_ready: called whenever one is ready. A ValueError of it is final.
        """
        num_tries = 0
        while self._reason is None:
            seconds, reason = await self._live(on_ready)
            if seconds >= self._healthy_seconds:
                num_tries = 0
            if self._reason is None and (not self._was_ready or num_tries >= self._max_restarts):
                self._reason = reason
            if self._reason is not None:
                break
            pause = min(self._first_pause_seconds * 2**num_tries, MAX_PAUSE_SECONDS)
            num_tries += 1
            log.error(
                "%s; it is started again in %.1f s (try %d of %d)",
                *(reason, pause, num_tries, self._max_restarts),
            )
            self._pause_ends = time.monotonic() + pause
            self._past = wire.added(self._past, self._process.health().stats)
            self._process = self._new_process()
            await asyncio.sleep(pause)
            self._num_restarts += 1
        return self._reason

    def start_no_more(self) -> None:
        """The next engine that dies is the last."""
        self._max_restarts = 0

    async def close(self) -> None:
        """End the engine, once `run` has ended or was cancelled."""
        await self._process.close()

    def kill(self) -> None:
        """End the engine at once, with nothing said to anybody."""
        self._process.kill()

    async def _live(self, on_ready: Callable[[], Awaitable[None]]) -> tuple[float, str]:
        """One engine, from its start until nothing is left of it: for how many seconds it was ready,
        and why it is no more."""
        process, started = self._process, time.monotonic()
        ready_at = None
        try:
            await process.start()
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # no room for a process, or for its socket
            await process.close()
            return 0.0, f"the engine process cannot be started: {error}"
        await _first(process.ready, process.failed)
        if process.info is not None:
            ready_at = time.monotonic()
            self._load_seconds = ready_at - started
            try:
                await on_ready()
            except ValueError as error:
                self._reason = str(error)
                return 0.0, self._reason
            self._was_ready = True
            await process.failed.wait()
        reason = process.health().reason
        await process.close()
        return (0.0 if ready_at is None else time.monotonic() - ready_at), reason


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
