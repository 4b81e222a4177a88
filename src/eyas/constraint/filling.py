"""Masks of one step, filled beside whoever waits for them.

Roots, alone or with drafts behind them, are filled by one call of the library, which works on many
cores; then, in pieces, other places of the same trees and what is behind them, as long as there is
time.
What needs the interpreter's lock is done by whoever asks, before and after, as far as the library
allows it: two threads that both want the lock wait for each other more often than they work.

A call cannot be ended, and it holds locks that the next step needs. So it is waited for, and slow
drafts are noted, so that the next step asks for less.

Promises: masks are those of a walk through the draft; what is asked for twice is filled once. What is
written after the deadline nobody reads.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import numpy as np

from eyas.constraint.mask_batch import MaskBatch, MaskRequest, fill_known, fill_only

PIECE = 32
"""Masks that are filled between two looks at the clock."""
FEW = 4
"""One in so many drafts may be slow."""
BEGIN_SECONDS = 0.001
"""At most so long the caller stands aside for the threads that are to fill."""
POLL_SECONDS = 0.0005
"""Between two looks at whether what is missing is late."""


class Filling:
    """What one step asks for. num_masks: made so far, in `seconds`."""

    def __init__(
        self,
        first: Iterable[MaskRequest],
        later: Iterable[MaskRequest],
        mask_RK: np.ndarray,
        time_limit: float,
    ) -> None:
        """mask_RK: zeros in the rows of all requests. time_limit: seconds after which no more of
        `later` is begun, and drafts of `first` are not waited for. All are of one library."""
        self._mask_RK = mask_RK
        self.num_masks, self.seconds = 0, 0.0
        self._time_limit = time_limit
        self._begun_at = self._deadline = 0.0
        self._same: dict[tuple[int, tuple[int, ...]], list[MaskRequest]] = {}
        new, behind = self._new(first), self._new(later)
        # Roots alone, known to be slow, go first.
        new.sort(key=lambda request: bool(request.tokens))
        self._first = MaskBatch(new, mask_RK)
        self._pieces = [MaskBatch(piece, mask_RK) for piece in _pieces(behind)]
        self._batches = [self._first, *self._pieces]
        self._call: _Call | None = None

    def _new(self, requests: Iterable[MaskRequest]) -> list[MaskRequest]:
        """Those that nobody has filled or asked for."""
        new: list[MaskRequest] = []
        for request in requests:
            if fill_known(request, self._mask_RK):
                continue
            if fill_only(request, self._mask_RK):
                self.num_masks += 1
                continue
            same = self._same.setdefault((id(request.point), request.tokens), [])
            if not same:
                new.append(request)
            same.append(request)
        return new

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Fill beside the caller; without this it is done when it is waited for. Returns once the
        thread is about to enter the library: a caller at work would not soon let it."""
        if self._same:
            self._begin_counting()
            self._call = _Call(threads, self._run)
            self._call.wait_for_begin(BEGIN_SECONDS)

    def _begin_counting(self) -> None:
        self._begun_at = time.perf_counter()
        self._deadline = self._begun_at + self._time_limit

    def _run(self) -> None:
        begin = time.perf_counter()
        self._first.run()
        for piece in self._pieces:
            if time.perf_counter() > self._deadline:
                break
            piece.run()
        self.seconds += time.perf_counter() - begin

    def wait(self, slow_after: float = math.inf, root_slow_after: float = math.inf) -> bool:
        """Until the masks are there, or time is over; False when the drafts of `first` were not in
        time, or nothing was begun, and the rows of requests that are late may still be written to.
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
                self._settle(batch)
            else:
                self._leave_out(batch)
        return is_in_time

    def _is_done(self, call: _Call, slow_after: float, root_slow_after: float) -> bool:
        """Waits for the thread; False when time is over and drafts are still missing, or it has not
        begun since it is still at another step's."""
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
            if now > self._deadline and (not call.has_begun or self._first.behind(drafts)):
                call.leave()
                return False
            call.wait()
        return True

    def _note_slow(self, requests: Sequence[MaskRequest]) -> bool:
        """Those that are not done are slow, once these are few. Nothing but speed hangs on it."""
        behind = self._first.behind(requests)
        if len(behind) > max(1, len(self._first.requests) // FEW):
            return False
        for request in behind:
            for each in self._twins(request):
                each.is_slow = True
        return True

    def _settle(self, batch: MaskBatch) -> None:
        """Give what was filled once to all who asked for it."""
        for first, filled in zip(batch.requests, batch.settle(), strict=True):
            mask_LK = first.rows(self._mask_RK)
            if filled is None:
                mask_LK[:] = 0
            first.note(filled)
            twins = self._twins(first)
            for request in twins:
                request.note(filled)
                if request is not first:
                    request.rows(self._mask_RK)[:] = mask_LK
            if first.num_masks and any(request.keeps for request in twins):
                first.point.ahead = (first.tokens, mask_LK.copy())
            self.num_masks += first.num_masks

    def _leave_out(self, batch: MaskBatch) -> None:
        for request in batch.requests:
            for each in self._twins(request):
                each.is_late = True

    def _twins(self, request: MaskRequest) -> list[MaskRequest]:
        """It, and those that ask for the same."""
        return self._same[id(request.point), request.tokens]


def _pieces(requests: Sequence[MaskRequest]) -> list[list[MaskRequest]]:
    """In order, each of PIECE masks or a few more."""
    pieces: list[list[MaskRequest]] = []
    left = 0
    for request in requests:
        if left <= 0:
            pieces.append([])
            left = PIECE
        pieces[-1].append(request)
        left -= 1 + len(request.tokens)
    return pieces


class _Call:
    """Work for one of `threads`."""

    def __init__(self, threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        self._begun = Event()

        def run() -> None:
            self._begun.set()
            work()

        self._future = threads.submit(run)

    def wait_for_begin(self, seconds: float) -> None:
        """Until a thread is about to do it, at most so long."""
        self._begun.wait(max(0.0, seconds))

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        """For a moment, or until it is done."""
        wait([self._future], POLL_SECONDS)

    def leave(self) -> None:
        """Nobody waits for it any more; it goes on if it has begun."""
        self._future.cancel()
