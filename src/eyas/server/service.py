"""What the routes of one server share: the engine's client, the model's texts, who is being served.

Promises: says truthfully whether new work can be taken. Does not know: HTTP's shapes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request as HttpRequest

from eyas.config import EngineConfig, EngineInfo
from eyas.server import errors
from eyas.server.client import EngineClient
from eyas.server.codes import Code
from eyas.server.errors import ApiError
from eyas.server.metrics import Metrics
from eyas.server.options import ServerOptions
from eyas.server.text_processor import TextProcessor, model_directory
from eyas.server.thread_pool import MAX_WAITING, FairThreadPool

log = logging.getLogger("eyas.server")


class Service:
    """One model behind one server."""

    def __init__(self, config: EngineConfig, options: ServerOptions, client: EngineClient) -> None:
        self.config = config
        self.options = options
        self.client = client
        self.names = options.served_model_names or (config.model.path,)
        self.prepare_pool = FairThreadPool(options.text_timeout_seconds)
        self.parse_pool = FairThreadPool(options.text_timeout_seconds, num_threads=1)
        self.encode_pool = ThreadPoolExecutor(1, thread_name_prefix="eyas-write")
        self.metrics = Metrics(client.health, self.names[0], options.metrics_names)
        self.is_draining = False
        self.started_at = int(time.time())
        self._text_processor: TextProcessor | None = None
        self._text_processor_info: EngineInfo | None = None
        self._live: dict[str, list[str]] = {}
        self._start_is_over = asyncio.Event()
        self._early: Counter[str] = Counter()

    async def load_text_processor(self) -> None:
        """Once an engine is ready: those of its model, unless they are there. ValueError names a broken
        file or an unknown parser."""
        info = self.client.info
        if info is not None and info != self._text_processor_info:
            directory = model_directory(self.config, info)
            self._text_processor = await asyncio.to_thread(
                TextProcessor,
                directory,
                info,
                self.options.reasoning_parser,
                self.options.tool_call_parser,
                chat_template=self.options.chat_template,
                max_top_logprobs=self.options.max_top_logprobs,
            )
            self._text_processor_info = info
            self.end_start()

    @property
    def info(self) -> EngineInfo:
        """ApiError 503 while there is no engine."""
        info = self.client.info
        if info is None:
            raise self.unavailable()
        return info

    @property
    def text_processor(self) -> TextProcessor:
        """ApiError 503 until they are loaded, and are those of the engine that there is."""
        if self.info != self._text_processor_info or self._text_processor is None:
            raise ApiError(Code.ENGINE_STARTING)
        return self._text_processor

    @property
    def is_starting(self) -> bool:
        """Nothing is known yet of whether the first engine will be ready."""
        return not self._start_is_over.is_set()

    @property
    def num_early(self) -> int:
        """Requests that wait for the first engine."""
        return self._early.total()

    async def opened(self, client: str) -> None:
        """Waits while the first engine starts: for as long as a request may, with as many others as are
        prepared or queued at a time, a client's own share of them. ApiError 429 where more would wait.

        Once that is over nobody waits: another server may take the work, and it may be what ended an
        engine.
        """
        limits = (self.options.max_queued, self.options.max_queued_each)
        num_most, num_own = (min(limit, MAX_WAITING) for limit in limits)
        if self.num_early >= num_most or self._early[client] >= num_own:
            raise ApiError(Code.QUEUE_FULL)
        self._early[client] += 1
        try:
            async with asyncio.timeout(self.options.start_wait_seconds):
                await self._start_is_over.wait()
        except TimeoutError:
            pass  # what there is to say is said by `check_open`
        finally:
            self._early[client] -= 1
            self._early += Counter()  # without those that have none left

    def end_start(self) -> None:
        """The first engine is ready, or will not be: nobody waits for it any more."""
        self._start_is_over.set()

    def unavailable(self, reason: str = "") -> ApiError:
        """503 that says why the engine takes nothing now. reason: what this request lacks alone."""
        if reason:
            return ApiError(Code.GRAMMARS_UNAVAILABLE, reason)
        health = self.client.health()
        state_says = {
            "starting": Code.ENGINE_STARTING,
            "ready": Code.ENGINE_BUSY,
            "restarting": Code.ENGINE_RESTARTING,
            "failed": Code.ENGINE_FAILED,
        }
        code = state_says[health.state]
        now = f" ({health.loading})" if health.loading is not None else ""
        message = f"{code.meaning}{now}; {code.remedy}"
        return ApiError(code, message, retry_after=health.retry_seconds)

    def draining(self) -> ApiError:
        return ApiError(Code.DRAINING, retry_after=self.options.drain_seconds or 1)

    def check_ready(self) -> None:
        """ApiError 503 says what a probe should know: no work can be taken, or not all kinds of it."""
        self.check_open()
        if not self.client.health().stats.grammar.can_compile:
            raise ApiError(Code.GRAMMARS_UNAVAILABLE)

    def check_open(self) -> None:
        """ApiError 503 says why no work can be taken."""
        if self.is_draining:
            raise self.draining()
        _ = self.text_processor
        if self.client.health().idle_seconds > self.options.stall_seconds:
            raise ApiError(Code.ENGINE_STALLED)

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
        self.end_start()
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
        self.prepare_pool.close()
        self.parse_pool.close()
        self.encode_pool.shutdown(wait=False, cancel_futures=True)
