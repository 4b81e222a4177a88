"""Compilation of grammars, on threads with a lower priority than the engine's, within a deadline.

Promises: each request for a grammar is answered in time; a grammar is compiled once at a time, however
many requests wait for it; a grammar that was refused is not compiled again at once; memory and threads
are bounded, and no thread is lost, whatever a library raises; where the system has no thread left,
requests are refused with that reason, and threads are started when there are some.
Does not know: grammar libraries, requests.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from eyas.constraint.allocator import Allocator
from eyas.constraint.base import Backend, Grammar
from eyas.constraint.deep import on_deep_stack
from eyas.constraint.faults import stopping, too_slow
from eyas.constraint.grammar_cache import GrammarCache
from eyas.constraint.threads import NO_THREAD, give_way, started
from eyas.core import GrammarError, GrammarsBusy, GrammarsUnavailable
from eyas.grammar import OutputSpec

log = logging.getLogger(__name__)

MAX_REFUSALS = 1024
REFUSAL_SECONDS = 60.0
MAX_SPEC_BYTES = 2 * 2**20
SLOW_SECONDS = 0.5
"""A compilation that takes longer delays no others: they get another thread."""
MAX_STUCK_THREADS = 8
"""Slow compilations that another thread stands in for; with more, others wait."""
HIRE_AGAIN_SECONDS = 1.0


@dataclass(slots=True)
class PoolStats:
    """num_compiled: grammars compiled. num_hits: answered from the cache or by a running compilation.
    num_refused: by fault. compile_seconds: spent in compilations, refused ones included. num_bytes:
    about what grammars hold, those in use included. num_waiting: not begun. num_stuck: past their
    deadline and still running."""

    num_compiled: int = 0
    num_hits: int = 0
    num_refused: dict[str, int] = field(default_factory=dict)
    compile_seconds: float = 0.0
    num_cached: int = 0
    num_bytes: int = 0
    num_waiting: int = 0
    num_stuck: int = 0


_Waiters = list[tuple[Future[Grammar], str | None]]
"""The futures to answer, each with the field that asked for it."""


@dataclass(slots=True, eq=False)
class _Job:
    """A compilation. Its deadline counts from the request on."""

    spec: OutputSpec
    key: bytes
    deadline: float
    started: float = 0.0
    futures: _Waiters = field(default_factory=list)
    is_running: bool = False
    is_late: bool = False


class CompilePool:
    """Compiles for one backend; its futures raise `GrammarError`."""

    def __init__(
        self,
        backend: Backend,
        *,
        num_threads: int = 1,
        deadline_seconds: float = 5.0,
        max_cache_bytes: int = 256 * 2**20,
        max_waiting: int = 256,
        clock: Callable[[], float] = time.monotonic,
        allocator: Allocator | None = None,
    ) -> None:
        """deadline_seconds: from `compile` to the answer. max_cache_bytes: that grammars may hold;
        cached grammars are dropped before they hold more. allocator: counts what they hold; without it
        the grammars' own estimates are added up. max_waiting: compilations that have not begun."""
        self._backend = backend
        self._num_threads = num_threads
        self._deadline_seconds = deadline_seconds
        self._max_waiting = max_waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Job] = deque()
        self._jobs: dict[bytes, _Job] = {}
        self._kept = GrammarCache(max_cache_bytes, allocator)
        self._refusals: OrderedDict[bytes, tuple[GrammarError, float]] = OrderedDict()
        self._stats = PoolStats()
        self._num_live = 0
        self._is_closed = False
        self._watch: threading.Thread | None = None
        self._is_short = False
        self._is_in_doubt = False

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        """Return a future for the grammar, which is done within the deadline. GrammarError of the
        future: what is wrong with the grammar, or fault "timeout" where it took too long or too many
        wait already. A caller that needs it no more cancels the future; a grammar without a caller is
        not compiled."""
        future: Future[Grammar] = Future()
        try:
            key = spec.key
        except UnicodeEncodeError as fault:
            shown = ascii(fault.object[max(0, fault.start - 20) : fault.start + 20])
            error = GrammarError(
                f"holds half of a surrogate pair, which no text can contain: {shown}", "invalid"
            )
            _refuse([(future, spec.param)], error)
            return future
        if len(key) > MAX_SPEC_BYTES:
            error = GrammarError(
                f"the output's grammar has more than {MAX_SPEC_BYTES} bytes; make it smaller",
                "too_complex",
            )
            _refuse([(future, spec.param)], error)
            return future
        key = hashlib.sha256(key).digest()
        with self._lock:
            answer = self._known(key, spec, future)
        if answer is not None:
            answer()
        return future

    def stats(self) -> PoolStats:
        """Return the counters now."""
        with self._lock:
            return replace(
                self._stats,
                num_refused=dict(self._stats.num_refused),
                num_cached=len(self._kept),
                num_bytes=self._kept.num_bytes,
                num_waiting=len(self._waiting),
            )

    def can_compile(self) -> bool:
        """Whether there are threads for grammars. Where some could not be started, another attempt is
        made."""
        if self._is_in_doubt:
            try:
                on_deep_stack(lambda: None)  # as what compiles would
            except GrammarsUnavailable:
                return False
            self._is_in_doubt = False
        with self._lock:
            if self._is_short and not self._is_closed:
                self._hire()
            return not self._is_short or self._is_staffed()

    def close(self) -> None:
        """Refuse what waits and end the threads; a running compilation ends by itself."""
        with self._lock:
            self._is_closed = True
            waiters: _Waiters = []
            for job in self._jobs.values():
                waiters += job.futures
                job.futures = []
            self._jobs.clear()
            self._waiting.clear()
            self._changed.notify_all()
        self._backend.close()
        self._kept.close()
        _refuse(waiters, stopping())

    def _known(
        self, key: bytes, spec: OutputSpec, future: Future[Grammar]
    ) -> Callable[[], None] | None:
        """Return what answers the future at once, or None where it waits. The lock is held."""
        waiter = [(future, spec.param)]
        if self._is_closed:
            return lambda: _refuse(waiter, stopping())
        cached = self._kept.find(key)
        if cached is not None:
            self._stats.num_hits += 1
            return lambda: _answer([(future, None)], cached)
        refusal = self._refusals.get(key)
        if refusal is not None and self._clock() < refusal[1]:
            self._stats.num_hits += 1
            refused = refusal[0]
            self._count_refused(refused, 1)
            return lambda: _refuse(waiter, refused)
        job = self._jobs.get(key)
        if job is not None:
            self._stats.num_hits += 1
            job.futures += waiter
            return None
        if len(self._waiting) >= self._max_waiting:
            error = GrammarsBusy(
                f"{len(self._waiting)} other grammars wait to be compiled; try again later",
                "timeout",
            )
            self._count_refused(error, 1)
            return lambda: _refuse(waiter, error)
        self._hire()
        if not self._is_staffed():
            error = GrammarsUnavailable(NO_THREAD, "timeout")
            self._count_refused(error, 1)
            return lambda: _refuse(waiter, error)
        job = _Job(spec, key, self._clock() + self._deadline_seconds, futures=waiter)
        self._jobs[key] = job
        self._waiting.append(job)
        self._changed.notify_all()
        return None

    def _is_staffed(self) -> bool:
        """Whether there is a thread that compiles, and the thread that watches deadlines. The lock is
        held."""
        return self._watch is not None and self._num_live > 0

    def _hire(self) -> None:
        """Start the threads that are due, as many as the system permits. The lock is held."""
        was_short, self._is_short = self._is_short, False
        try:
            if self._watch is None:
                self._watch = started(self._watch_deadlines, "eyas-compile-deadlines")
            while self._num_live < self._num_due():
                started(self._work, "eyas-compile")
                self._num_live += 1  # it waits for the lock, and then counts itself out
        except GrammarsUnavailable as error:
            self._is_short = True
            if not was_short:
                log.error("%s (%s)", error, error.__cause__)

    def _work(self) -> None:
        give_way()
        while True:
            with self._lock:
                while not self._waiting and not self._is_closed and not self._is_too_many():
                    self._changed.wait()
                if self._is_closed or self._is_too_many():
                    self._num_live -= 1
                    return
                job = self._waiting.popleft()
                if all(future.cancelled() for future, _ in job.futures):
                    del self._jobs[job.key]
                    continue
                job.is_running, job.started = True, self._clock()
                self._changed.notify_all()
            self._run(job)

    def _is_too_many(self) -> bool:
        """Whether there are more threads than are due, after stuck ones have returned. The lock is
        held."""
        return self._num_live > self._num_due()

    def _num_due(self) -> int:
        """Return the number of threads due: those configured, and one for each that is stuck. The lock
        is held."""
        longest_ago = self._clock() - SLOW_SECONDS
        num_slow = sum(job.is_running and job.started <= longest_ago for job in self._jobs.values())
        return self._num_threads + min(self._stats.num_stuck + num_slow, MAX_STUCK_THREADS)

    def _run(self, job: _Job) -> None:
        begin = time.perf_counter()
        result: Grammar | GrammarError
        self._kept.begin()
        try:
            result = self._backend.compile(job.spec)
        except GrammarError as error:
            result = error
        except BaseException:  # a panic of a library in Rust is no `Exception`, and ends no thread
            log.exception("a grammar compiler failed")
            result = GrammarError(
                "the grammar compiler failed on it; write it in another way", "invalid"
            )
        seconds = time.perf_counter() - begin
        self._is_in_doubt = isinstance(result, GrammarsUnavailable)
        with self._lock:
            self._stats.compile_seconds += seconds
            if job.is_late:
                self._stats.num_stuck -= 1
            self._keep(job.key, result, is_late=job.is_late)
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            futures, job.futures = job.futures, []
            if isinstance(result, GrammarError):
                self._count_refused(result, len(futures))
            self._changed.notify_all()
        self._kept.end()
        if isinstance(result, GrammarError):
            _refuse(futures, result)
        else:
            _answer(futures, result)

    def _keep(self, key: bytes, result: Grammar | GrammarError, *, is_late: bool) -> None:
        """Cache a grammar for later requests. The lock is held."""
        if isinstance(result, GrammarError):
            is_of_now = isinstance(result, GrammarsBusy) or (is_late and result.fault == "timeout")
            if not is_of_now:
                self._remember(key, result)
            return
        self._stats.num_compiled += 1
        self._refusals.pop(key, None)
        self._kept.keep(key, result)

    def _remember(self, key: bytes, error: GrammarError) -> None:
        """Refuse the same grammar again for a while. The lock is held."""
        now = self._clock()
        self._refusals.pop(key, None)
        bare = type(error)(error.message, error.fault, param=error.param)  # no frames behind it
        self._refusals[key] = (bare, now + REFUSAL_SECONDS)
        while len(self._refusals) > MAX_REFUSALS or next(iter(self._refusals.values()))[1] < now:
            self._refusals.popitem(last=False)

    def _count_refused(self, error: GrammarError, count: int) -> None:
        refused = self._stats.num_refused
        refused[error.fault] = refused.get(error.fault, 0) + count

    def _watch_deadlines(self) -> None:
        """Answer in time each future whose grammar is not ready. A running compilation goes on, on a
        thread that another one replaces."""
        while True:
            with self._lock:
                if self._is_closed:
                    return
                now = self._clock()
                late = [job for job in self._jobs.values() if job.deadline <= now]
                answers = [self._give_up(job) for job in late]
                self._hire()
                if late:
                    self._changed.notify_all()
                else:
                    self._changed.wait(self._next_look(now))
            for futures, error in answers:
                _refuse(futures, error)

    def _next_look(self, now: float) -> float | None:
        """Return the seconds until a deadline passes or a compilation gets slow. The lock is held."""
        moments = [job.deadline for job in self._jobs.values()]
        slow = (job.started + SLOW_SECONDS for job in self._jobs.values() if job.is_running)
        moments += [moment for moment in slow if moment > now]
        if self._is_short:
            moments.append(now + HIRE_AGAIN_SECONDS)
        return max(0.001, min(moments) - now) if moments else None

    def _give_up(self, job: _Job) -> tuple[_Waiters, GrammarError]:
        """Return the futures to refuse, and their errors. The lock is held."""
        del self._jobs[job.key]
        error = self._timeout(job)
        futures, job.futures = job.futures, []
        self._count_refused(error, len(futures))
        if job.is_running:
            job.is_late = True
            self._stats.num_stuck += 1
            self._remember(job.key, error)
        else:
            self._waiting.remove(job)
        return futures, error

    def _timeout(self, job: _Job) -> GrammarError:
        if not job.is_running:
            words = "too many grammars wait to be compiled; try again later"
            return GrammarsBusy(words, "timeout")
        return too_slow(self._deadline_seconds)


def _answer(waiters: _Waiters, grammar: Grammar) -> None:
    for future, _ in waiters:
        if future.set_running_or_notify_cancel():
            future.set_result(grammar)


def _refuse(waiters: _Waiters, error: GrammarError) -> None:
    """Return an exception of its own for each future, with the future's field."""
    for future, param in waiters:
        own = error.message
        if error.param is not None and own.startswith(f"{error.param}: "):
            own = own[len(error.param) + 2 :]
        text = f"{param}: {own}" if param else own
        if future.set_running_or_notify_cancel():
            future.set_exception(type(error)(text, error.fault, param=param))
