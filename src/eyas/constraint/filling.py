"""Masks of one step, filled beside whoever waits for them.

First come roots with drafts behind them, in one call of the library, which works on many cores; then
roots alone, which nobody can do without; then, in pieces, nodes behind these, as long as there is time.
What needs the interpreter is done before and after by whoever asks, as far as the library allows it,
so that the thread beside it is in the library alone: two threads that both want the interpreter's lock
wait for each other more often than they work.

A call cannot be ended, and what it does holds locks that the next step needs; so it is waited for, and
of a draft that is slow only the root is asked for the next time: it may be slow by itself, and must not
make the others' drafts late.

Promises: masks are those of a walk through the draft; what is asked for twice is filled once; a point
or a draft whose automaton fails has no masks, and its neighbours have theirs. What is written after the
deadline nobody reads.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import Backend, MaskJob, num_legal

log = logging.getLogger(__name__)

PIECE = 32
"""Masks that are filled between two looks at the clock."""
FEW = 4
"""One in so many drafts may be slow."""
BEGIN_SECONDS = 0.001
"""At most so long the caller stands aside for the thread that is to fill."""
_OF_THE_HOST = (KeyboardInterrupt, SystemExit)
"""All else is a library's; a panic of one that is written in Rust is no `Exception`."""
POLL_SECONDS = 0.0005
"""Between two looks at whether what is missing is late."""


@dataclass(slots=True, eq=False)
class MaskRequest:
    """The mask of a point, and those after each of `tokens`, which nobody has walked through (then the
    point has no budget). row: of the point's mask; the others follow. keeps: the point remembers the
    masks for whoever stands there later.

    num_masks: how many of its rows are there, the point's first; num_legal: tokens that these allow.
    is_late: there was no time for it. is_slow: it was among the last few when a while had passed.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    num_masks: int = 0
    num_legal: int = 0
    is_late: bool = False
    is_slow: bool = False

    def rows(self, mask_RK: np.ndarray) -> np.ndarray:
        """[L, K]."""
        return mask_RK[self.row : self.row + 1 + len(self.tokens)]


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
        `later` is begun, and the drafts of `first` are not waited for."""
        self._mask_RK = mask_RK
        self.num_masks, self.seconds = 0, 0.0
        self._time_limit = time_limit
        self._begun_at = self._deadline = 0.0
        self._same: dict[tuple[int, tuple[int, ...]], list[MaskRequest]] = {}
        new, behind = self._new(first), self._new(later)
        self._drafts = _Batch([each for each in new if each.tokens], mask_RK)
        self._roots = _Batch([each for each in new if not each.tokens], mask_RK)
        pieces = [behind[start : start + PIECE] for start in range(0, len(behind), PIECE)]
        self._pieces = [_Batch(piece, mask_RK) for piece in pieces]
        self._batches = (self._drafts, self._roots, *self._pieces)
        self._call: Future[None] | None = None
        self._has_begun = Event()

    def _new(self, requests: Iterable[MaskRequest]) -> list[MaskRequest]:
        """Those that nobody has filled or asked for."""
        new: list[MaskRequest] = []
        for request in requests:
            if _fill_known(request, self._mask_RK):
                continue
            if _fill_only(request, self._mask_RK):
                self.num_masks += 1
                continue
            same = self._same.setdefault((id(request.point), request.tokens), [])
            if not same:
                new.append(request)
            same.append(request)
        return new

    def start(self, thread: ThreadPoolExecutor) -> None:
        """Fill beside the caller; without this it is done when it is waited for. Returns once the
        thread is about to enter the library: a caller at work would not soon let it."""
        if self._same:
            self._begin_counting()
            self._call = thread.submit(self._run)
            self._has_begun.wait(BEGIN_SECONDS)

    def _begin_counting(self) -> None:
        self._begun_at = time.perf_counter()
        self._deadline = self._begun_at + self._time_limit

    def _run(self) -> None:
        begin = time.perf_counter()
        self._has_begun.set()
        self._drafts.run()
        self._roots.run()
        for piece in self._pieces:
            if time.perf_counter() > self._deadline:
                break
            piece.run()
        self.seconds = time.perf_counter() - begin

    def wait(self, slow_after: float = math.inf) -> bool:
        """Until the masks are there, or time is over; False when the drafts of `first` were not in
        time, or nothing was begun, and the rows of requests that are late may still be written to.
        slow_after: seconds from the start on; of the drafts that take longer, the last few are slow."""
        if self._call is None:
            self._begin_counting()
            self._run()
        elif not self._is_done(self._call, slow_after):
            for batch in self._batches:
                self._leave_out(batch)
            return False
        for batch in self._batches:
            if batch.is_done:
                self._settle(batch)
            else:
                self._leave_out(batch)
        return True

    def _is_done(self, call: Future[None], slow_after: float) -> bool:
        """Waits for the thread; False when time is over and it is still at the drafts, or has not begun
        since it is still at another step's."""
        has_looked = False
        slow_at = self._begun_at + slow_after
        while not call.done():
            now = time.perf_counter()
            is_missing = bool(self._drafts.requests) and not self._drafts.is_done
            is_stuck = is_missing or not self._has_begun.is_set()
            if is_stuck and now > self._deadline:
                call.cancel()
                return False
            if is_missing and not has_looked and now > slow_at:
                has_looked = self._look()
            wait([call], POLL_SECONDS)
        return True

    def _look(self) -> bool:
        """Take note of the drafts that are not done, once these are few. What is seen may be wrong, and
        nothing but speed hangs on it."""
        behind: list[MaskRequest] = []
        for request in self._drafts.requests:
            rows_LK = request.rows(self._mask_RK)
            num = num_legal(rows_LK, 0, request.tokens)
            has_ended = num and request.tokens[num - 1] in _backend(request).eos_token_ids
            if rows_LK.any(axis=1).sum() < num + (not has_ended):
                behind.append(request)
        is_few = 0 < len(behind) <= max(1, len(self._drafts.requests) // FEW)
        for request in behind if is_few else ():
            for each in self._twins(request):
                each.is_slow = True
        return is_few

    def _settle(self, batch: _Batch) -> None:
        """Give what was filled once to all who asked for it."""
        failed = batch.settle()
        for i, first in enumerate(batch.requests):
            mask_LK = first.rows(self._mask_RK)
            if i in failed:
                mask_LK[:] = 0
            else:
                _count(first, mask_LK)
            twins = self._twins(first)
            for request in twins:
                if request is not first:
                    request.rows(self._mask_RK)[:] = mask_LK
                    request.num_masks, request.num_legal = first.num_masks, first.num_legal
            if first.num_masks and any(request.keeps for request in twins):
                first.point.ahead = (first.tokens, mask_LK.copy())
            self.num_masks += first.num_masks

    def _leave_out(self, batch: _Batch) -> None:
        for request in batch.requests:
            for each in self._twins(request):
                each.is_late = True

    def _twins(self, request: MaskRequest) -> list[MaskRequest]:
        """It, and those that ask for the same."""
        return self._same[id(request.point), request.tokens]


class _Batch:
    """Requests that are filled together; they are of one library."""

    def __init__(self, requests: Sequence[MaskRequest], mask_RK: np.ndarray) -> None:
        self.requests = requests
        self.is_done = False
        self._mask_RK = mask_RK
        self._has_broken = False
        self._job: MaskJob | None = None
        if requests:
            with self._watched():
                self._job = _job(requests, mask_RK)

    def run(self) -> None:
        """The long part."""
        if self._job is not None:
            with self._watched():
                self._job.run()
        self.is_done = True

    def settle(self) -> set[int]:
        """The indices of those that failed."""
        failed: set[int] = set()
        if self._job is not None and not self._has_broken:
            with self._watched():
                failed.update(self._job.settle())
        if not self._has_broken:
            return failed
        # one of them has spoilt it for all: each on its own
        return {i for i, each in enumerate(self.requests) if not _fill_alone(each, self._mask_RK)}

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except _OF_THE_HOST:
            raise
        except BaseException:
            log.warning("masks of a step failed together; each is filled on its own", exc_info=True)
            self._has_broken = True


def _job(requests: Sequence[MaskRequest], mask_RK: np.ndarray) -> MaskJob:
    states = [request.point.state for request in requests]
    rows, drafts = [each.row for each in requests], [each.tokens for each in requests]
    return _backend(requests[0]).job(states, mask_RK, rows, drafts)


def _backend(request: MaskRequest) -> Backend:
    return request.point.state.grammar.backend


def _fill_alone(request: MaskRequest, mask_RK: np.ndarray) -> bool:
    mask_LK = request.rows(mask_RK)
    mask_LK[:] = 0
    try:
        return not _backend(request).fill([request.point.state], mask_LK, None, [request.tokens])
    except _OF_THE_HOST:
        raise
    except BaseException:
        log.exception("an automaton failed")
        mask_LK[:] = 0
        return False


def _fill_known(request: MaskRequest, mask_RK: np.ndarray) -> bool:
    """Does its point know the masks?"""
    if request.point.ahead is None:
        return False
    tokens, mask_LK = request.point.ahead
    num = len(request.tokens)
    if tokens[:num] != request.tokens:
        return False
    request.rows(mask_RK)[:] = mask_LK[: 1 + num]
    _count(request, mask_LK[: 1 + num])
    return True


def _fill_only(request: MaskRequest, mask_RK: np.ndarray) -> bool:
    """Does a budget leave one token?"""
    only = request.point.only_token
    if only is None:
        return False
    mask_RK[request.row].view(np.uint32)[only // 32] = 1 << (only % 32)
    request.num_masks = 1
    return True


def _count(request: MaskRequest, mask_LK: np.ndarray) -> None:
    """Take note of masks that are all there."""
    request.num_legal = num_legal(mask_LK, 0, request.tokens)
    is_there = bool(mask_LK[request.num_legal].any())
    request.num_masks = request.num_legal + is_there
