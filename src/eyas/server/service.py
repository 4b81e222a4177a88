"""The state that the routes of one server share: the engine client, the text processor, running
answers.

Promises: reports correctly whether new work can be accepted. Does not know: HTTP's shapes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace
from starlette.requests import Request as HttpRequest

from eyas.config import EngineConfig, EngineInfo
from eyas.server.http import errors
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.thread_pool import FairThreadPool
from eyas.server.options import ServerOptions
from eyas.server.process.client import EngineClient
from eyas.server.responses.store import ResponseStore
from eyas.server.telemetry.metrics import Metrics
from eyas.server.telemetry.record import RequestRecord
from eyas.server.telemetry.request_log import log_request
from eyas.server.template_inputs import check_option
from eyas.server.text_processor import TextProcessor

log = logging.getLogger("eyas.server")

MAX_WAITING_FOR_START = 256
ABORT_SECONDS = 2.0
"""How long aborted answers may take to end."""


class Service:
    """One model behind one server.

    reporters: called with the record of each request that has ended, on the event loop.
    """

    def __init__(self, config: EngineConfig, options: ServerOptions, client: EngineClient) -> None:
        self.config = config
        self.options = options
        self.client = client
        self.names = options.served_model_names or (config.model.path,)
        seconds, num_bytes = options.text_timeout_seconds, options.max_body_memory
        self.prepare_pool = FairThreadPool(seconds, num_bytes)
        self.parse_pool = FairThreadPool(seconds, num_bytes, num_threads=1)
        self.encode_pool = ThreadPoolExecutor(1, thread_name_prefix="eyas-write")
        self.metrics = Metrics(
            client.health, self.names[0], options.metrics_names, config.cache.kv_events.block_size
        )
        self.reporters: list[Callable[[RequestRecord], None]] = [log_request]
        self.response_store = ResponseStore(
            options.response_store_bytes,
            options.response_store_count,
            options.response_store_seconds,
        )
        self.is_draining = False
        self.started_at = int(time.time())
        self._text_processor: TextProcessor | None = None
        self._text_processor_info: EngineInfo | None = None
        self._running: dict[str, list[str]] = {}
        self._start_ended = asyncio.Event()
        self._waiting_for_start: Counter[str] = Counter()

    async def load_text_processor(self) -> None:
        """Load the text processor of the ready engine's model, unless it is loaded already.

        ValueError names a broken file or an unknown parser.
        """
        info = self.client.info
        if info is not None and not self._has_text_processor_of(info):
            processor = await asyncio.to_thread(
                TextProcessor,
                Path(info.directory),
                info,
                self.options.reasoning_parser,
                self.options.tool_call_parser,
                chat_template=self.options.chat_template,
                default_options=self.options.default_chat_template_kwargs,
                max_top_logprobs=self.options.max_top_logprobs,
            )
            for name, value in self.options.default_chat_template_kwargs.items():
                param = f"default_chat_template_kwargs.{name[:64]}"
                check_option(processor, name, value, param)
            self._text_processor, self._text_processor_info = processor, info
            self.end_start()

    @property
    def info(self) -> EngineInfo:
        """The ready engine's description. ApiError 503 while no engine is ready."""
        info = self.client.info
        if info is None:
            raise self.unavailable()
        return info

    @property
    def text_processor(self) -> TextProcessor:
        """The text processor of the ready engine's model. ApiError 503 until it is loaded."""
        info = self.info
        if self._text_processor is None or not self._has_text_processor_of(info):
            raise ApiError(Code.ENGINE_STARTING)
        return self._text_processor

    def _has_text_processor_of(self, info: EngineInfo) -> bool:
        """Whether the loaded text processor is that of an engine, however long its start took."""
        loaded = self._text_processor_info
        return loaded is not None and loaded == replace(info, choices=loaded.choices)

    @property
    def is_starting(self) -> bool:
        """Whether the first engine is neither ready nor known to have failed."""
        return not self._start_ended.is_set()

    @property
    def num_waiting_for_start(self) -> int:
        """The number of requests that wait for the first engine."""
        return self._waiting_for_start.total()

    async def wait_for_start(self, client: str) -> None:
        """Wait until the start of the first engine has ended, at most `start_wait_seconds`.

        ApiError 429 if too many requests wait, or too many of this client. Requests do not wait for a
        restarted engine: another server may take them, and they may be what made the engine fail.
        """
        limits = (self.options.max_queued, self.options.max_queued_each)
        max_waiting, max_waiting_each = (min(limit, MAX_WAITING_FOR_START) for limit in limits)
        if (
            self.num_waiting_for_start >= max_waiting
            or self._waiting_for_start[client] >= max_waiting_each
        ):
            raise ApiError(Code.QUEUE_FULL)
        self._waiting_for_start[client] += 1
        try:
            async with asyncio.timeout(self.options.start_wait_seconds):
                await self._start_ended.wait()
        except TimeoutError:
            pass  # `check_open` raises the error
        finally:
            self._waiting_for_start[client] -= 1
            self._waiting_for_start += Counter()  # drop the clients whose count is 0

    def end_start(self) -> None:
        """Let waiting requests continue: the first engine is ready, or will never be."""
        self._start_ended.set()

    def unavailable(self, reason: str = "") -> ApiError:
        """Return a 503 that says why the engine accepts no work. reason: why it refuses this request
        only."""
        if reason:
            return ApiError(Code.GRAMMARS_UNAVAILABLE, reason)
        health = self.client.health()
        code_of_state = {
            "starting": Code.ENGINE_STARTING,
            "ready": Code.ENGINE_BUSY,
            "restarting": Code.ENGINE_RESTARTING,
            "failed": Code.ENGINE_FAILED,
        }
        code = code_of_state[health.state]
        progress = f" ({health.loading})" if health.loading is not None else ""
        message = f"{code.meaning}{progress}; {code.remedy}"
        return ApiError(code, message, retry_after=health.retry_seconds)

    def draining(self) -> ApiError:
        return ApiError(Code.DRAINING, retry_after=self.options.drain_seconds or 1)

    def check_ready(self) -> None:
        """Raise ApiError 503 if the server cannot accept work, or not all kinds of it."""
        self.check_open()
        if not self.client.health().stats.grammar.can_compile:
            raise ApiError(Code.GRAMMARS_UNAVAILABLE)

    def check_open(self) -> None:
        """Raise ApiError 503 if the server cannot accept work."""
        if self.is_draining:
            raise self.draining()
        _ = self.text_processor
        if self.client.health().idle_seconds > self.options.stall_seconds:
            raise ApiError(Code.ENGINE_STALLED)

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 if this model is not served."""
        if name is not None and name not in self.names:
            raise errors.model_not_found(name, self.names)

    def cache_salt(self, salt: str | None, http: HttpRequest) -> str:
        """Return the salt of the prefix cache. Different keys share no prefixes, so none can time
        another's."""
        if len(self.options.api_keys) > 1:
            return f"{http.state.key}:{salt or ''}"
        return salt or ""

    def client_of(self, http: HttpRequest) -> str:
        """Return the client's identity for fair sharing: its key, or without keys its connection."""
        if self.options.api_keys:
            return http.state.key
        return "" if http.client is None else f"{http.client.host}:{http.client.port}"

    @property
    def num_running(self) -> int:
        """The number of running answers."""
        return len(self._running)

    def add_answer(self, answer_id: str, request_ids: list[str]) -> None:
        self._running[answer_id] = request_ids

    def remove_answer(self, answer_id: str) -> None:
        self._running.pop(answer_id, None)

    def report(self, record: RequestRecord) -> None:
        """Report a request that has ended. A reporter that fails affects neither it nor the others."""
        for reporter in self.reporters:
            try:
                reporter(record)
            except Exception:
                log.exception("a request could not be reported")

    async def drain(self) -> None:
        """Accept no new work, wait `drain_seconds` for running answers, then abort the rest."""
        self.is_draining = True
        self.end_start()
        await self.wait_for_answers(self.options.drain_seconds)
        if self._running:
            log.warning("%d answers did not finish in time and are ended", len(self._running))
        for request_ids in list(self._running.values()):
            for request_id in request_ids:
                await self.client.abort(request_id)
        await self.wait_for_answers(ABORT_SECONDS)

    async def wait_for_answers(self, seconds: float) -> None:
        """Wait until no answer runs, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        self.prepare_pool.close()
        self.parse_pool.close()
        self.encode_pool.shutdown(wait=False, cancel_futures=True)
