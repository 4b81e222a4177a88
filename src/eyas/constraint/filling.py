"""Masks of one step, filled concurrently with the thread that waits for them.

Roots, alone or with drafts behind them, are filled by one call of the library, which works on many
cores; then, call by call, other branches of the same trees, until there is nothing left to fill them
beside. Work that needs the interpreter's lock is done by the waiting thread, before and after the call,
as far as the library allows: two threads that both want the lock wait for each other more often than
they work.

A call cannot be ended, and it holds locks that the next step needs. So it is waited for, and slow
drafts are noted, so that the next step asks for less.

Promises: masks depend on the tokens alone. What is written after the deadline is not read.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a state and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import numpy as np

from eyas.constraint.mask_batch import MaskBatch, MaskRequest

FEW = 4
"""One in so many drafts may be slow."""
BEGIN_SECONDS = 0.001
"""At most so long the caller gives way to the threads that are to fill."""
MOST_SECONDS = 0.02
"""The most time for branches beside a forward."""
SHORTER, LONGER = 0.9, 1.02
"""One step in six may take longer for its branches."""
POLL_SECONDS = 0.0005
"""Between two looks at whether what is missing is late."""


class Allowance:
    """The time in which branches may be filled: until what they are filled beside is about to end.

    When that is depends on the step, and is not known beforehand. So the time gets shorter when it had
    ended before the last branch that was begun was filled, and longer when it had not.
    """

    def __init__(self) -> None:
        self.seconds = MOST_SECONDS

    def learn(self, *, was_too_long: bool) -> None:
        self.seconds = min(MOST_SECONDS, self.seconds * (SHORTER if was_too_long else LONGER))


class Filling:
    """What one step asks for. num_masks: filled so far, in `seconds`."""

    def __init__(
        self,
        first: Iterable[MaskRequest],
        later: Iterable[Sequence[MaskRequest]],
        mask_RK: np.ndarray,
        time_limit: float,
        is_awaited: Callable[[], bool] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """first: of the roots. later: call by call; a state is in a call at most once. mask_RK: zeros
        in the rows of all requests. time_limit: seconds after which no more of `later` is begun, and
        drafts of `first` are not waited for. is_awaited: whether nothing but masks is waited for any
        more; then no more of `later` is begun either, nor, if that is known, when it would be filled
        after `allowance`. All are of one library."""
        self.num_masks, self.seconds = 0, 0.0
        self._time_limit = time_limit
        self._is_awaited = is_awaited
        self._allowance = allowance or Allowance()
        self._begun_at = self._deadline = 0.0
        # Roots alone, known to be slow, go first.
        first = sorted(first, key=lambda request: bool(request.tokens))
        self._first = MaskBatch(first, mask_RK)
        self._batches = [self._first, *(MaskBatch(requests, mask_RK) for requests in later)]
        self._call: _Call | None = None

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Fill concurrently with the caller; without this it is done when it is waited for. Returns
        once the thread is about to enter the library: a busy caller would not soon let it."""
        if self._first.requests:
            self._begin_counting()
            self._call = _Call(threads, self._run)
            self._call.wait_for_begin(BEGIN_SECONDS)

    def _begin_counting(self) -> None:
        self._begun_at = time.perf_counter()
        self._deadline = self._begun_at + self._time_limit

    def _run(self) -> None:
        begin = time.perf_counter()
        self._first.run()
        self._run_later()
        self.seconds += time.perf_counter() - begin

    def _run_later(self) -> None:
        """Fill the other branches, as long as there is time."""
        took, num_run = 0.0, 0
        for batch in self._batches[1:]:
            now = time.perf_counter()
            if now > self._deadline:
                return
            if self._is_awaited is not None:
                is_over = now + took > self._begun_at + self._allowance.seconds
                if is_over or self._is_awaited():
                    break
            batch.run()
            took, num_run = time.perf_counter() - now, num_run + 1
        for batch in self._batches[1 + num_run :]:
            for request in batch.requests:
                request.is_left_out = True
        if self._is_awaited is not None and len(self._batches) > 1:
            was_too_long = self._is_awaited()
            if num_run or not was_too_long:  # else what was waited for were the roots'
                self._allowance.learn(was_too_long=was_too_long)

    def wait(self, slow_after: float = math.inf, root_slow_after: float = math.inf) -> bool:
        """Wait until the masks are there, or time is over. Returns False when the drafts of `first`
        were not in time, or nothing was begun; then the rows of late requests may still be written to.
        slow_after: seconds from the start on; of the drafts that take longer, the last few are slow;
        root_slow_after: the same for roots alone."""
        is_in_time = True
        if self._call is None:
            self._begin_counting()
            self._run()
        else:
            is_in_time = self._is_done(self._call, slow_after, root_slow_after)
        for batch in self._batches:
            if is_in_time and batch.is_done:
                batch.settle()
                self.num_masks += sum(request.num_new for request in batch.requests)
            elif not (is_in_time and all(request.is_left_out for request in batch.requests)):
                for request in batch.requests:
                    request.is_late = True
        return is_in_time

    def _is_done(self, call: _Call, slow_after: float, root_slow_after: float) -> bool:
        """Wait for the thread. Returns False when time is over and drafts are still missing, or the
        call has not begun since the thread is still at another step's."""
        roots = [request for request in self._first.requests if not request.tokens]
        drafts = self._first.requests[len(roots) :]
        looks = [(root_slow_after, roots), (slow_after, drafts)]
        while not call.is_done:
            now = time.perf_counter()
            looks = [
                (after, requests)
                for after, requests in looks
                if now <= self._begun_at + after or not self._note_slow(requests)
            ]
            if now > self._deadline and (not call.has_begun or self._first.unfinished(drafts)):
                call.leave()
                return False
            call.wait()
        return True

    def _note_slow(self, requests: Sequence[MaskRequest]) -> bool:
        """Note those that are not done as slow, once they are few. Affects speed alone."""
        unfinished = self._first.unfinished(requests)
        if len(unfinished) > max(1, len(self._first.requests) // FEW):
            return False
        for request in unfinished:
            request.is_slow = True
        return True


class _Call:
    """Work for one of `threads`."""

    def __init__(self, threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        self._begun = Event()

        def run() -> None:
            self._begun.set()
            work()

        self._future = threads.submit(run)

    def wait_for_begin(self, seconds: float) -> None:
        """Wait until a thread is about to do it, at most so long."""
        self._begun.wait(max(0.0, seconds))

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        """Wait for a moment, or until it is done."""
        wait([self._future], POLL_SECONDS)

    def leave(self) -> None:
        """Give it up: it is cancelled, or goes on if it has begun."""
        self._future.cancel()
