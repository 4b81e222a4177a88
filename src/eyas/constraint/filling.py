"""Masks of one step, filled beside whoever waits for them.

First come roots, alone or with drafts behind them, in one call of the library, which works on many
cores; then, in pieces, nodes behind roots that are alone, as long as there is time. Drafts that may be
slow are a call of their own, so that they can be left behind; it begins a little later, since whoever
is first in a grammar is waited for by the next, and their roots are in the first call.
What needs the interpreter is done before and after by whoever asks, as far as the library allows it,
so that the thread beside it is in the library alone: two threads that both want the interpreter's lock
wait for each other more often than they work.

A call cannot be ended, and what it does holds locks that the next step needs; so the first one is
waited for, and who is slow is noted, so that the next step asks for less.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from threading import Event

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import Backend, Filled, MaskJob, counted, num_legal
from eyas.constraint.borrowed import OF_THE_HOST

log = logging.getLogger(__name__)

PIECE = 32
"""Masks that are filled between two looks at the clock."""
FEW = 4
"""One in so many drafts may be slow."""
BEGIN_SECONDS = 0.001
"""At most so long the caller stands aside for the thread that is to fill."""
POLL_SECONDS = 0.0005
"""Between two looks at whether what is missing is late."""


@dataclass(slots=True, eq=False)
class MaskRequest:
    """The mask of a point, and those after each of `tokens`, which nobody has walked through (then the
    point has no budget). row: of the point's mask; the others follow. keeps: the point remembers the
    masks for whoever stands there later. has_room: the row behind a point alone is its own as well, and
    may hold anything until all is settled. is_apart: another request has the point's own mask.

    num_masks: how many of its rows are there, the point's first; num_legal: tokens that these allow.
    is_late: there was no time for it. is_slow: it was among the last few when a while had passed.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    has_room: bool = False
    is_apart: bool = False
    num_masks: int = 0
    num_legal: int = 0
    is_late: bool = False
    is_slow: bool = False

    def rows(self, mask_RK: np.ndarray) -> np.ndarray:
        """[L, K]."""
        return mask_RK[self.row : self.row + 1 + len(self.tokens)]

    def note(self, filled: Filled | None) -> None:
        """What is there; None: nothing, since the point has failed."""
        self.num_legal, self.num_masks = filled or (0, 0)

    def wipe(self, mask_RK: np.ndarray) -> None:
        """Zeros in all rows that the library may have written to for it alone."""
        begin = self.row + self.is_apart
        mask_RK[begin : self.row + 1 + max(len(self.tokens), self.has_room)] = 0


class Filling:
    """What one step asks for. num_masks: made so far, in `seconds`."""

    def __init__(
        self,
        first: Iterable[MaskRequest],
        later: Iterable[MaskRequest],
        mask_RK: np.ndarray,
        time_limit: float,
        apart: Iterable[MaskRequest] = (),
    ) -> None:
        """mask_RK: zeros in the rows of all requests. time_limit: seconds after which no more of
        `later` is begun, and the drafts of `first` are not waited for. All are of one library."""
        self._mask_RK = mask_RK
        self.num_masks, self.seconds = 0, 0.0
        self._time_limit = time_limit
        self._begun_at = self._deadline = 0.0
        self._same: dict[tuple[int, tuple[int, ...]], list[MaskRequest]] = {}
        new, behind = self._new(first), self._new(later)
        # Roots alone, known to be slow, go first.
        new.sort(key=lambda request: bool(request.tokens))
        self._first = _Batch(new, mask_RK)
        pieces = [behind[start : start + PIECE] for start in range(0, len(behind), PIECE)]
        self._pieces = [_Batch(piece, mask_RK) for piece in pieces]
        self._apart = _on_own_page(self._new(apart), mask_RK.shape[1])
        self._batches = (self._first, *self._pieces, self._apart)
        self._call: _Call | None = None
        self._apart_call: _Call | None = None

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

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Fill beside the caller; without this it is done when it is waited for. Returns once the
        thread is about to enter the library: a caller at work would not soon let it."""
        if self._same:
            self._begin_counting()
            self._call = _Call(threads, self._run)

    def start_apart(self, threads: ThreadPoolExecutor) -> None:
        """The same for drafts apart, once; without this they are left behind."""
        if self._call is not None and self._apart.requests and self._apart_call is None:
            self._apart_call = _Call(threads, self._apart.run)

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
        self.seconds = time.perf_counter() - begin

    def wait(
        self,
        slow_after: float = math.inf,
        root_slow_after: float = math.inf,
        leave_after: float = math.inf,
    ) -> bool:
        """Until the masks are there, or time is over; False when the drafts of `first` were not in
        time, or nothing was begun, and the rows of requests that are late may still be written to.
        slow_after: seconds from the start on; of the drafts that take longer, the last few are slow;
        root_slow_after: the same for roots alone; leave_after: drafts apart are left behind."""
        if self._call is None:
            self._begin_counting()
            self._run()
            self._apart.run()
        elif not self._is_done(self._call, slow_after, root_slow_after):
            for batch in self._batches:
                self._leave_out(batch)
            return False
        if self._apart_call is not None:
            self._wait_apart(self._apart_call, slow_after, leave_after)
        for batch in self._batches:
            if batch.is_done:
                self._settle(batch)
            else:
                self._leave_out(batch)
        return True

    def _wait_apart(self, call: _Call, slow_after: float, leave_after: float) -> None:
        is_noted = False
        while not call.is_done:
            now = time.perf_counter()
            if not is_noted and now > self._begun_at + slow_after:
                self._note_slow(self._apart, self._apart.requests)
                is_noted = True
            if now > self._begun_at + leave_after:
                call.leave()
                return
            call.wait()

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
                if now <= self._begun_at + after or not self._note_slow(self._first, requests)
            ]
            if now > self._deadline and (not call.has_begun or self._first.behind(drafts)):
                call.leave()
                return False
            call.wait()
        return True

    def _note_slow(self, batch: _Batch, requests: Sequence[MaskRequest]) -> bool:
        """Those that are not done are slow, once these are few. Nothing but speed hangs on it."""
        behind = batch.behind(requests)
        if len(behind) > max(1, len(self._first.requests) // FEW):
            return False
        for request in behind:
            for each in self._twins(request):
                each.is_slow = True
        return True

    def _settle(self, batch: _Batch) -> None:
        """Give what was filled once to all who asked for it."""
        for first, filled in zip(batch.requests, batch.settle(), strict=True):
            mask_LK = first.rows(batch.mask_RK)
            if filled is None:
                mask_LK[:] = 0
            first.note(filled)
            twins = self._twins(first)
            for request in twins:
                request.note(filled)
                if request is not first:
                    begin = int(request.is_apart)
                    request.rows(self._mask_RK)[begin:] = mask_LK[begin:]
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


class _Call:
    """Work for one of `threads`, which is about to do it by now, unless it does not come to it."""

    def __init__(self, threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        self._begun = Event()

        def run() -> None:
            self._begun.set()
            work()

        self._future = threads.submit(run)
        self._begun.wait(BEGIN_SECONDS)

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


class _Batch:
    """Requests that are filled together; they are of one library."""

    def __init__(self, requests: Sequence[MaskRequest], mask_RK: np.ndarray) -> None:
        self.requests = requests
        self.is_done = False
        self.mask_RK = mask_RK
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

    def behind(self, requests: Sequence[MaskRequest]) -> list[MaskRequest]:
        """Those that are not done. Seen while they are written to, it may be wrong."""
        if self.is_done:
            return []
        rows, drafts = [each.row for each in requests], [each.tokens for each in requests]
        legal = zip(requests, num_legal(self.mask_RK, rows, drafts), strict=True)
        return [request for request, num in legal if not self._is_there(request, num)]

    def _is_there(self, request: MaskRequest, num: int) -> bool:
        has_ended = num and request.tokens[num - 1] in _backend(request).eos_token_ids
        return bool(has_ended or self.mask_RK[request.row + num].any())

    def settle(self) -> list[Filled | None]:
        """What became of each; None of those that failed."""
        if self._job is not None and not self._has_broken:
            with self._watched():
                return self._job.settle()
        # one of them has spoilt it for all: each on its own
        return [_fill_alone(each, self.mask_RK) for each in self.requests]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OF_THE_HOST:
            raise
        except BaseException:
            log.warning("masks of a step failed together; each is filled on its own", exc_info=True)
            self._has_broken = True


def _on_own_page(requests: Sequence[MaskRequest], num_words: int) -> _Batch:
    """A batch of the same requests on rows of their own."""
    rows = list(accumulate((1 + len(each.tokens) for each in requests), initial=0))
    page_RK = np.zeros((rows[-1], num_words), dtype=np.int32)
    own = zip(requests, rows, strict=False)
    return _Batch([replace(each, row=row, is_apart=False) for each, row in own], page_RK)


def _job(requests: Sequence[MaskRequest], mask_RK: np.ndarray) -> MaskJob:
    states = [request.point.state for request in requests]
    backend, rows = _backend(requests[0]), [each.row for each in requests]
    # With an end behind it, which has no mask, a point alone goes in the drafts' call.
    end = tuple(backend.eos_token_ids)[:1]
    drafts = [each.tokens or (end if each.has_room else ()) for each in requests]
    return backend.job(states, mask_RK, rows, drafts)


def _backend(request: MaskRequest) -> Backend:
    return request.point.state.grammar.backend


def _fill_alone(request: MaskRequest, mask_RK: np.ndarray) -> Filled | None:
    request.wipe(mask_RK)
    mask_LK = request.rows(mask_RK)
    try:
        job = _backend(request).job([request.point.state], mask_LK, None, [request.tokens])
        job.run()
        return job.settle()[0]
    except OF_THE_HOST:
        raise
    except BaseException:
        log.exception("an automaton failed")
        mask_LK[:] = 0
        return None


def _fill_known(request: MaskRequest, mask_RK: np.ndarray) -> bool:
    """Does its point know the masks?"""
    if request.point.ahead is None:
        return False
    tokens, mask_LK = request.point.ahead
    num = len(request.tokens)
    if tokens[:num] != request.tokens:
        return False
    request.rows(mask_RK)[:] = mask_LK[: 1 + num]
    request.note(counted(mask_LK, [0], [request.tokens])[0])
    return True


def _fill_only(request: MaskRequest, mask_RK: np.ndarray) -> bool:
    """Does a budget leave one token?"""
    only = request.point.only_token
    if only is None:
        return False
    mask_RK[request.row].view(np.uint32)[only // 32] = 1 << (only % 32)
    request.num_masks = 1
    return True
