"""A server without a socket: the routes of `eyas serve` and an engine process, for a process that
receives requests by other means.

Promises: the application and the engine are those of `eyas serve`; an engine that dies is restarted.
Does not know: where requests come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from eyas import logs
from eyas.config import EngineConfig
from eyas.deploy.http_call import HttpCall, run_call
from eyas.server.app import create_app
from eyas.server.options import ServerOptions
from eyas.server.process.launch import new_supervisor, on_ready
from eyas.server.service import Service


class LocalServer:
    """One engine and its routes, on the running event loop."""

    def __init__(self, config: EngineConfig, options: ServerOptions) -> None:
        logs.configure(options.log_level, options.log_format)
        self._engine = new_supervisor(config, options)
        self._service = Service(config, options, self._engine)
        self._app = create_app(self._service)
        self._running: asyncio.Task[str] | None = None

    async def start(self) -> None:
        """Start the engine and wait until it is ready. RuntimeError with the reason if it cannot be
        started."""
        ready = asyncio.Event()

        async def note_ready() -> None:
            await on_ready(self._service, "Ray Serve")
            ready.set()

        self._running = asyncio.create_task(self._engine.run(note_ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self._running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not ready.is_set():
            raise RuntimeError(f"the engine cannot be started: {self._running.result()}")

    def call(self, call: HttpCall) -> AsyncGenerator[Message, None]:
        """Yield the messages of the response to a request."""
        return run_call(self._app, call)

    def check(self) -> None:
        """Raise RuntimeError if the engine is no longer restarted, or makes no step."""
        health = self._engine.health()
        if health.state == "failed":
            raise RuntimeError(health.reason)
        if health.state == "ready" and health.idle_seconds > self._service.options.stall_seconds:
            raise RuntimeError(f"the engine has made no step for {health.idle_seconds:.0f} s")

    def load(self) -> dict[str, float]:
        """Return the numbers of running and waiting answers, and the used fraction of the cache."""
        stats = self._engine.health().stats
        return {
            "num_running": stats.num_running,
            "num_waiting": stats.num_waiting,
            "kv_cache_usage": stats.cache_usage,
        }

    @property
    def process_id(self) -> int | None:
        """The id of the engine process."""
        return self._engine.process_id

    async def close(self) -> None:
        """Wait for running answers, as after SIGTERM, and stop the engine."""
        self._engine.disable_restarts()
        await self._service.drain()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._engine.close()
        self._service.close()
