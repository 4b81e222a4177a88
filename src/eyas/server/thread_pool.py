"""Threads for what would hold up the event loop, shared fairly.

Promises: small work passes large work, whoever asked for it first, and a client that has used much
waits behind one that has used little (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996; the
cost of work is guessed by its size and corrected by the processor time that it took). What waits too
long, and where too many wait the last in turn, is told to come again; what takes too long itself is
refused. Does not know: what the work is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eyas.server.codes import Code
from eyas.server.errors import ApiError

MAX_WAITING = 256
NUM_THREADS = 2
SECONDS_EACH, SECONDS_A_BYTE = 1e-3, 4e-6
"""What work is guessed to cost."""
MAX_REMEMBERED = 4096
"""Clients whose use is remembered, the longest unseen forgotten first."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Job:
    """start, end: its place in virtual time, in seconds of work."""

    work: Callable[[], Any]
    client: str
    start: float
    end: float
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    is_refused: bool = False


class FairThreadPool:
    """timeout_seconds: of waiting, and once more of the work itself."""

    def __init__(self, timeout_seconds: float, num_threads: int = NUM_THREADS) -> None:
        self._timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="eyas-text")
        self._num_free = num_threads
        self._waiting: list[_Job] = []
        self._now = 0.0
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def run(self, work: Callable[[], Result], client: str = "", size: int = 0) -> Result:
        """`work()` in a thread. client: who asks. size: bytes that it is about.

        ApiError 503 when its turn does not come in time, or too many others wait; 400 when it takes too
        long itself.
        """
        job = self._enter(work, client, size)
        try:
            await asyncio.wait_for(job.granted.wait(), self._timeout_seconds)
        except BaseException as error:
            if job in self._waiting:
                self._waiting.remove(job)
            elif not job.is_refused:
                self._leave()
            if isinstance(error, TimeoutError):
                raise ApiError(Code.PREPARATION_QUEUE_FULL) from error
            raise
        if job.is_refused:
            raise ApiError(Code.PREPARATION_QUEUE_FULL)
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._timed, job)
        running.add_done_callback(self._settle)
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._timeout_seconds)
        except TimeoutError as error:
            raise ApiError(Code.PROMPT_TOO_SLOW) from error

    def _settle(self, done: asyncio.Future[Any]) -> None:
        """Its thread is free; nobody may be there any more to hear of an error."""
        _ = done.cancelled() or done.exception()
        self._leave()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _enter(self, work: Callable[[], Any], client: str, size: int) -> _Job:
        with self._lock:
            start = max(self._now, self._used.pop(client, 0.0))
            job = _Job(work, client, start, start + SECONDS_EACH + size * SECONDS_A_BYTE)
            self._used[client] = job.end
            if len(self._used) > MAX_REMEMBERED:
                del self._used[next(iter(self._used))]
        self._waiting.append(job)
        if len(self._waiting) > MAX_WAITING:
            last = max(reversed(self._waiting), key=lambda each: each.end)
            self._waiting.remove(last)
            last.is_refused = True
            last.granted.set()
        self._grant()
        return job

    def _grant(self) -> None:
        """Free threads go to those whose work would end first."""
        while self._num_free and self._waiting:
            job = min(self._waiting, key=lambda each: each.end)
            self._waiting.remove(job)
            self._now = max(self._now, job.start)
            self._num_free -= 1
            job.granted.set()

    def _leave(self) -> None:
        self._num_free += 1
        self._grant()

    def _timed(self, job: _Job) -> Any:
        began = time.thread_time()
        try:
            return job.work()
        finally:
            over = time.thread_time() - began - (job.end - job.start)
            with self._lock:
                self._used[job.client] = self._used.get(job.client, job.end) + over
