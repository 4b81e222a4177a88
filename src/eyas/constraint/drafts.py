"""Masks of drafts from points, mask by mask, on threads that can be left behind.

Promises: masks are those of a walk through the draft; what is asked for twice is filled once; a draft
whose automaton fails has no masks, and its neighbours have theirs. What a thread writes after it was
left behind nobody reads; it stops after the mask it is at.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a draft's tokens, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np

from eyas.constraint.automaton import Point

log = logging.getLogger(__name__)

POLL_SECONDS = 0.0002
"""Between two looks at whether what is missing may be left out."""


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens that nobody has walked through, after a point that has its mask and no budget. row: of the
    point's mask; that after each token follows. keeps: the point remembers the masks for whoever stands
    there later.

    is_filled: all masks that there can be are there, and num_legal says how many tokens are legal. A
    draft that failed has none, and one that was late its first ones.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    num_legal: int = 0
    is_filled: bool = False


class _Job:
    """Drafts from one point with the same tokens. num_rows: masks that are there, and stay as they are.
    is_left: nobody waits for more."""

    __slots__ = ("drafts", "has_failed", "is_left", "mask_LK", "num_rows")

    def __init__(self, num_words: int) -> None:
        self.drafts: list[Draft] = []
        self.mask_LK = np.zeros((0, num_words), dtype=np.int32)
        self.num_rows = 0
        self.has_failed = self.is_left = False

    def run(self) -> None:
        """Make the masks, until there are no more or it is left behind."""
        if self.is_left:
            return
        draft = self.drafts[0]
        state = draft.point.state
        try:
            shape = (len(draft.tokens), self.mask_LK.shape[1])
            self.mask_LK = np.zeros(shape, dtype=np.int32)
            for _ in state.grammar.backend.follow(state, draft.tokens, self.mask_LK):
                self.num_rows += 1
                if self.is_left:
                    return
        except Exception:
            self.has_failed = True
            if not self.is_left:
                log.exception("an automaton failed")


class DraftThreads:
    """They live as long as an engine."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, "drafts")

    def begin(self, groups: Iterable[list[_Job]], done: SimpleQueue[_Job]) -> None:
        """Run jobs, one after the other in a group; each is handed back through `done`."""
        waiting = deque(groups)
        for _ in range(min(self._num_threads, len(waiting))):
            self._pool.submit(_run_all, waiting, done)

    def close(self) -> None:
        """What is under way ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _run_all(waiting: deque[list[_Job]], done: SimpleQueue[_Job]) -> None:
    while True:
        try:
            group = waiting.popleft()
        except IndexError:
            return
        for job in group:
            job.run()
            done.put(job)


class Filling:
    """The drafts of one step under way. num_masks: made so far; num_late: drafts that were left."""

    def __init__(
        self, drafts: Iterable[Draft], mask_RK: np.ndarray, threads: DraftThreads | None
    ) -> None:
        """mask_RK: it has the rows of points, and those of tokens are zero. threads: None fills here,
        where it is waited for; so does a single draft."""
        self._mask_RK = mask_RK
        self._jobs: dict[tuple[int, tuple[int, ...]], _Job] = {}
        self._done: SimpleQueue[_Job] = SimpleQueue()
        self.num_masks, self.num_late = 0, 0
        for draft in drafts:
            key, known = (id(draft.point), draft.tokens), draft.point.ahead
            if known is not None and known[0] == draft.tokens:
                mask_RK[draft.row + 1 : draft.row + 1 + len(draft.tokens)] = known[1]
                draft.num_legal, draft.is_filled = known[2], True
            elif draft.tokens:
                if key not in self._jobs:
                    self._jobs[key] = _Job(mask_RK.shape[1])
                self._jobs[key].drafts.append(draft)
            else:
                draft.is_filled = True
        self._num_missing = sum(len(job.drafts) for job in self._jobs.values())
        self._is_threaded = threads is not None and len(self._jobs) > 1
        if threads is not None and self._is_threaded:
            # Drafts of one grammar wait for each other in their library, so one thread does them.
            groups: dict[int, list[_Job]] = {}
            for job in self._jobs.values():
                groups.setdefault(id(job.drafts[0].point.state.grammar), []).append(job)
            threads.begin(sorted(groups.values(), key=len, reverse=True), self._done)

    def wait(self, deadline: float, may_leave: Callable[[int], bool]) -> None:
        """Until all masks are there, or `may_leave` so many drafts, or the time is over (seconds of
        `time.perf_counter`). What is late keeps the masks that it has."""
        if not self._is_threaded:
            self._run(deadline)
        while self._jobs:
            if self._take_next(0):
                continue
            if time.perf_counter() > deadline or may_leave(self._num_missing):
                break
            self._take_next(POLL_SECONDS)
        for job in list(self._jobs.values()):
            job.is_left = True
            self.num_late += len(job.drafts)
            self._take(job, is_late=True)

    def _run(self, deadline: float) -> None:
        """Here, one after the other."""
        for job in self._jobs.values():
            if time.perf_counter() > deadline:
                break
            job.run()
            self._done.put(job)

    def _take_next(self, seconds: float) -> bool:
        """Take one that is done, if there is one by then."""
        try:
            job = self._done.get(timeout=seconds)
        except Empty:
            return False
        self._take(job)
        return True

    def _take(self, job: _Job, *, is_late: bool = False) -> None:
        """Put its masks where they belong."""
        num = 0 if job.has_failed else job.num_rows
        first = job.drafts[0]
        del self._jobs[id(first.point), first.tokens]
        self._num_missing -= len(job.drafts)
        is_filled = not is_late and not job.has_failed
        for draft in job.drafts:
            self._mask_RK[draft.row + 1 : draft.row + 1 + num] = job.mask_LK[:num]
            if is_filled:
                draft.num_legal, draft.is_filled = _count_legal(draft, self._mask_RK), True
                if draft.keeps:
                    draft.point.ahead = draft.tokens, job.mask_LK, draft.num_legal
        self.num_masks += first.num_legal if is_filled else num


def _count_legal(draft: Draft, mask_RK: np.ndarray) -> int:
    """How many tokens of the draft its masks allow, up to the first that is refused."""
    num_ids = 32 * mask_RK.shape[1]
    for place, token in enumerate(draft.tokens):
        is_id = 0 <= token < num_ids
        if not is_id or not mask_RK.item(draft.row + place, token // 32) >> token % 32 & 1:
            return place
    return len(draft.tokens)
