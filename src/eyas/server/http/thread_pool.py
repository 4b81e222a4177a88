"""A thread pool for work that would block the event loop, shared fairly among clients.

Promises: small work runs before large work, whoever requested it first, and a client that has used
much time waits for clients that have used little. This is start-time fair queueing (Goyal, Vin,
Cheng, SIGCOMM 1996); the cost of work is estimated by its size and corrected by the processor time
that it took. Work that waits too long is refused, and so is the last in order when memory for what
waits is full or its place is needed; work that runs too long is an error. Does not know: what the work
is, how many may wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError

NUM_THREADS = 2
SECONDS_EACH, SECONDS_A_BYTE = 1e-3, 4e-6
"""The estimated cost of work: of any work, and of each byte."""
MAX_CLIENTS = 4096
"""Clients whose use is recorded. The one that was active the longest ago is dropped first."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Job:
    """Work that waits or runs. size: in bytes. start, end: its interval in virtual time, in seconds of
    work."""

    work: Callable[[], Any]
    client: str
    size: int
    start: float
    end: float
    assigned: asyncio.Event = field(default_factory=asyncio.Event)
    is_refused: bool = False


class FairThreadPool:
    """A thread pool with a fair queue. timeout_seconds: the limit of waiting, and also that of
    running. max_waiting_bytes: the limit of the sizes of all work that waits."""

    def __init__(
        self, timeout_seconds: float, max_waiting_bytes: int, num_threads: int = NUM_THREADS
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._max_waiting_bytes = max_waiting_bytes
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="eyas-text")
        self._num_free = num_threads
        self._waiting: list[_Job] = []
        self._num_waiting_bytes = 0
        self._virtual_time = 0.0
        self._virtual_end: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def run(self, work: Callable[[], Result], client: str = "", size: int = 0) -> Result:
        """Return the result of `work()`, run in a thread.

        client: the identity for fair sharing. size: bytes to process. ApiError 503 if the work waits
        too long, or its place or memory is needed for other work; 400 if it runs too long.
        """
        job = self._enqueue(work, client, size)
        try:
            await asyncio.wait_for(job.assigned.wait(), self._timeout_seconds)
        except BaseException as error:
            if job in self._waiting:
                self._take_out(job)
            elif not job.is_refused:
                self._release_thread()
            if isinstance(error, TimeoutError):
                raise ApiError(Code.PREPARATION_QUEUE_FULL) from error
            raise
        if job.is_refused:
            raise ApiError(Code.PREPARATION_QUEUE_FULL)
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, self._run_and_account, job
        )
        running.add_done_callback(self._finish_run)
        try:
            return await asyncio.wait_for(asyncio.shield(running), self._timeout_seconds)
        except TimeoutError as error:
            raise ApiError(Code.PROMPT_TOO_SLOW) from error

    def _finish_run(self, done: asyncio.Future[Any]) -> None:
        """Release the thread. Retrieve the exception, since the caller may have given up."""
        _ = done.cancelled() or done.exception()
        self._release_thread()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _enqueue(self, work: Callable[[], Any], client: str, size: int) -> _Job:
        with self._lock:
            start = max(self._virtual_time, self._virtual_end.pop(client, 0.0))
            job = _Job(work, client, size, start, start + SECONDS_EACH + size * SECONDS_A_BYTE)
            self._virtual_end[client] = job.end
            if len(self._virtual_end) > MAX_CLIENTS:
                del self._virtual_end[next(iter(self._virtual_end))]
        self._waiting.append(job)
        self._num_waiting_bytes += size
        while self._num_waiting_bytes > self._max_waiting_bytes:
            self.refuse_last()
        self._assign_threads()
        return job

    def refuse_last(self) -> bool:
        """Refuse the last in order of the work that waits. Return whether any waited."""
        if not self._waiting:
            return False
        last = max(reversed(self._waiting), key=lambda job: job.end)
        self._take_out(last)
        last.is_refused = True
        last.assigned.set()
        return True

    def _take_out(self, job: _Job) -> None:
        self._waiting.remove(job)
        self._num_waiting_bytes -= job.size

    def _assign_threads(self) -> None:
        """Assign free threads to the jobs with the earliest end in virtual time."""
        while self._num_free and self._waiting:
            job = min(self._waiting, key=lambda job: job.end)
            self._take_out(job)
            self._virtual_time = max(self._virtual_time, job.start)
            self._num_free -= 1
            job.assigned.set()

    def _release_thread(self) -> None:
        self._num_free += 1
        self._assign_threads()

    def _run_and_account(self, job: _Job) -> Any:
        began = time.thread_time()
        try:
            return job.work()
        finally:
            excess = time.thread_time() - began - (job.end - job.start)
            with self._lock:
                self._virtual_end[job.client] = self._virtual_end.get(job.client, job.end) + excess
