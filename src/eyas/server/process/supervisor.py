"""Keeps an engine running: starts a new engine process when one ends.

Promises: an engine that was ready and ends is started again, a limited number of times in a row, with
growing pauses; its counters continue from those of its predecessors. If the first start fails, the
failure is final, since another start would probably fail as well. Running requests end with an error
and are not sent again, since they may have made the engine fail.
Does not know: sockets, HTTP, why an engine ended, how long pauses are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from eyas import wire
from eyas.config import EngineInfo
from eyas.core import Delta, Request
from eyas.server.process.client import EngineHealth, EngineProcess
from eyas.server.process.restarts import RestartPolicy

MAX_RETRY_SECONDS = 60.0


class EngineSupervisor:
    """The engine of one server, an `EngineClient`. `run` keeps it running.

    new_process: creates an engine process without starting it.
    """

    def __init__(self, new_process: Callable[[], EngineProcess], policy: RestartPolicy) -> None:
        self._new_process = new_process
        self._policy = policy
        self._process = new_process()
        self._stats_before = wire.EngineStats()
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
        """The id of the current engine process."""
        return self._process.process_id

    def generate(self, request: Request) -> AsyncIterator[Delta]:
        return self._process.generate(request)

    async def abort(self, request_id: str) -> None:
        await self._process.abort(request_id)

    async def forget_prefixes(self) -> None:
        await self._process.forget_prefixes()

    def health(self) -> EngineHealth:
        """Return the health of the current engine. Its counters include those of the engines before
        it."""
        health = self._process.health()
        state = "restarting" if self._was_ready and health.state != "ready" else health.state
        seconds_left = 0.0
        if state != "ready":
            seconds_left = max(0.0, self._pause_ends - time.monotonic()) + self._load_seconds
        return msgspec.structs.replace(
            health,
            state=state if self._reason is None else "failed",
            reason=self._reason or health.reason,
            retry_seconds=min(max(1.0, seconds_left), MAX_RETRY_SECONDS),
            num_restarts=self._num_restarts,
            stats=wire.added(self._stats_before, health.stats),
        )

    async def run(self, on_ready: Callable[[], Awaitable[None]]) -> str:
        """Start engines, one after the other. Return the reason why none is started any more.

        on_ready: called whenever an engine is ready. If it raises ValueError, no engine is started
        again.
        """
        while True:
            seconds, reason = await self._run_process(on_ready)
            if self._reason is not None:
                return self._reason
            pause = self._policy.next_pause(seconds, reason) if self._was_ready else None
            if pause is None:
                self._reason = reason
                return reason
            self._pause_ends = time.monotonic() + pause
            self._stats_before = wire.added(self._stats_before, self._process.health().stats)
            self._process = self._new_process()
            await asyncio.sleep(pause)
            self._num_restarts += 1

    def disable_restarts(self) -> None:
        """Start no engine again when the current one ends."""
        self._policy.stop()

    async def close(self) -> None:
        """End the engine, once `run` has ended or was cancelled."""
        await self._process.close()

    def kill(self) -> None:
        """Kill the engine process without ending its requests."""
        self._process.kill()

    async def _run_process(self, on_ready: Callable[[], Awaitable[None]]) -> tuple[float, str]:
        """Run the current engine until it has ended. Return the seconds for which it was ready, and the
        reason why it ended."""
        process, started = self._process, time.monotonic()
        ready_at = None
        try:
            await process.start()
        except (OSError, RuntimeError, ValueError) as error:  # no process, or no socket for it
            await process.close()
            return 0.0, f"the engine process cannot be started: {error}"
        await process.start_ended.wait()
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
