"""What the routes of one server share: the engine's client, the model's texts, who is being served.

Promises: says truthfully whether new work can be taken. Does not know: HTTP's shapes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request as HttpRequest

from eyas.config import EngineConfig, EngineInfo
from eyas.server import errors
from eyas.server.client import EngineClient
from eyas.server.errors import ApiError
from eyas.server.metrics import Metrics
from eyas.server.options import ServerOptions
from eyas.server.text_workers import TextWorkers
from eyas.server.texts import ModelTexts, model_directory

log = logging.getLogger("eyas.server")


class Service:
    """One model behind one server."""

    def __init__(self, config: EngineConfig, options: ServerOptions, client: EngineClient) -> None:
        self.config = config
        self.options = options
        self.client = client
        self.names = options.served_model_names or (config.model.path,)
        self.workers = TextWorkers(options.text_timeout_seconds)
        self.readers = TextWorkers(options.text_timeout_seconds, num_threads=1)
        self.writers = ThreadPoolExecutor(1, thread_name_prefix="eyas-write")
        self.metrics = Metrics(client.health, self.names[0])
        self.is_draining = False
        self.started_at = int(time.time())
        self._texts: ModelTexts | None = None
        self._texts_info: EngineInfo | None = None
        self._live: dict[str, list[str]] = {}

    async def load_texts(self) -> None:
        """Once an engine is ready: those of its model, unless they are there. ValueError names a broken
        file or an unknown parser."""
        info = self.client.info
        if info is not None and info != self._texts_info:
            directory = model_directory(self.config, info)
            self._texts = await asyncio.to_thread(
                ModelTexts,
                directory,
                info,
                self.options.reasoning_parser,
                self.options.tool_call_parser,
            )
            self._texts_info = info

    @property
    def info(self) -> EngineInfo:
        """ApiError 503 while there is no engine."""
        info = self.client.info
        if info is None:
            raise self.unavailable()
        return info

    @property
    def texts(self) -> ModelTexts:
        """ApiError 503 until they are loaded, and are those of the engine that there is."""
        if self.info != self._texts_info or self._texts is None:
            raise errors.unavailable(errors.ENGINE_STARTING)
        return self._texts

    def unavailable(self, reason: str = "") -> ApiError:
        """503 that says why the engine takes nothing now."""
        health = self.client.health()
        state_says = {
            "starting": errors.ENGINE_STARTING,
            "ready": errors.ENGINE_BUSY,
            "restarting": errors.ENGINE_RESTARTING,
            "failed": errors.ENGINE_GONE,
        }
        return errors.unavailable(reason or state_says[health.state], health.retry_seconds)

    def check_ready(self) -> None:
        """ApiError 503 says what a probe should know: no work can be taken, or not all kinds of it."""
        self.check_open()
        if not self.client.health().stats.grammar.can_compile:
            raise errors.unavailable(errors.NO_GRAMMARS)

    def check_open(self) -> None:
        """ApiError 503 says why no work can be taken."""
        if self.is_draining:
            raise errors.unavailable(errors.DRAINING, self.options.drain_seconds or 1)
        _ = self.texts
        if self.client.health().idle_seconds > self.options.stall_seconds:
            raise errors.unavailable(errors.ENGINE_STALLED)

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for another model than the one that is served."""
        if name is not None and name not in self.names:
            raise errors.model_not_found(name, self.names)

    def cache_salt(self, asked: str | None, http: HttpRequest) -> str:
        """Holders of different keys share no stored prefixes, so none can time another's."""
        if len(self.options.api_keys) > 1:
            return f"{http.state.key}:{asked or ''}"
        return asked or ""

    def client_of(self, http: HttpRequest) -> str:
        """Who asks, for fair shares: the holder of a key, or where there are no keys a connection."""
        if self.options.api_keys:
            return http.state.key
        return "" if http.client is None else f"{http.client.host}:{http.client.port}"

    @property
    def num_live(self) -> int:
        """Answers under way."""
        return len(self._live)

    def enter(self, answer_id: str, request_ids: list[str]) -> None:
        self._live[answer_id] = request_ids

    def leave(self, answer_id: str) -> None:
        self._live.pop(answer_id, None)

    async def drain(self) -> None:
        """Take nothing new; wait for what is under way, then end what is left."""
        self.is_draining = True
        deadline = time.monotonic() + self.options.drain_seconds
        while self._live and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if self._live:
            log.warning("%d answers did not finish in time and are ended", len(self._live))
        for request_ids in list(self._live.values()):
            for request_id in request_ids:
                await self.client.abort(request_id)
        deadline = time.monotonic() + 2
        while self._live and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        self.workers.close()
        self.readers.close()
        self.writers.shutdown(wait=False, cancel_futures=True)
