"""Masks of points and of the drafts behind them, on threads that can be left behind.

Promises: masks are those of a walk through the draft; what is asked for twice is filled once; a point
or a draft whose automaton fails has no masks, and its neighbours have theirs. What a thread writes
after it was left behind nobody reads.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import num_legal
from eyas.constraint.fill import fill_states

log = logging.getLogger(__name__)

POLL_SECONDS = 0.0002
"""Between two looks at whether what is missing may be left out."""


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens that nobody has walked through, after a point that has no budget. row: of the point's
    mask; that after each token follows. keeps: the point remembers the masks for whoever stands there
    later.

    is_rooted: the point was asked; has_root: it has its mask; is_filled: so have the tokens, of which
    `num_legal` are legal.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    is_rooted: bool = False
    has_root: bool = False
    is_filled: bool = False
    num_legal: int = 0

    def fill_root(self, mask_RK: np.ndarray) -> None:
        """Fill the point's row, and clear those behind it."""
        mask_RK[self.row : self.row + 1 + len(self.tokens)] = 0
        self.has_root = not fill_states([self.point.state], mask_RK, [self.row])
        self.is_rooted = True

    def follow(self, mask_RK: np.ndarray) -> None:
        """Fill the rows behind the point's, as far as they can be."""
        first = self.row + 1
        try:
            state = self.point.state.after(self.tokens[0])
            if state is not None:
                backend = state.grammar.backend
                backend.fill([state], mask_RK, [first], [self.tokens[1:]])
        except Exception:
            log.debug("a draft's automaton failed", exc_info=True)
            mask_RK[first : first + len(self.tokens)] = 0


class DraftThreads:
    """They live as long as an engine. num: how many."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.pool = ThreadPoolExecutor(num, "masks")

    def close(self) -> None:
        """What is under way ends by itself."""
        self.pool.shutdown(wait=False, cancel_futures=True)


class Filling:
    """The points and drafts of one step under way. num_masks: made so far; is_over: what has not begun
    to follow its draft leaves it."""

    def __init__(
        self, drafts: Iterable[Draft], mask_RK: np.ndarray, threads: DraftThreads | None
    ) -> None:
        """mask_RK: whatever is in the rows of points and tokens is lost. threads: None fills here,
        where it is waited for."""
        self.num_masks, self.is_over = 0, False
        self._mask_RK = mask_RK
        self._same: dict[tuple[int, tuple[int, ...]], list[Draft]] = {}
        for draft in drafts:
            known = draft.point.ahead
            if known is not None and known[0] == draft.tokens:
                mask_RK[draft.row : draft.row + len(known[1])] = known[1]
                draft.has_root = True
                self._count(draft)
            else:
                key = (id(draft.point), draft.tokens)
                self._same.setdefault(key, []).append(draft)
        self._firsts = [same[0] for same in self._same.values()]
        self._waiting = deque(self._firsts)
        self._done: list[Draft] = []
        self._all_done = threading.Event()
        self._is_threaded = threads is not None
        if threads is not None:
            for _ in range(min(threads.num, len(self._firsts))):
                threads.pool.submit(self._work)

    def _work(self, deadline: float = float("inf")) -> None:
        while True:
            try:
                draft = self._waiting.popleft()
            except IndexError:
                return
            draft.fill_root(self._mask_RK)
            self.is_over = self.is_over or time.perf_counter() > deadline
            if draft.tokens and draft.has_root:
                if self.is_over:
                    continue
                draft.follow(self._mask_RK)
            self._done.append(draft)
            if len(self._done) == len(self._firsts):
                self._all_done.set()

    def wait(self, deadline: float, may_leave: Callable[[int, int], bool]) -> list[Draft]:
        """Until all masks are there, or so many drafts of so many may be left, or the time is over
        (seconds of `time.perf_counter`); roots are always waited for. The drafts that are left, of
        which only roots' rows are to be read."""
        num = len(self._firsts)
        if not self._is_threaded:
            self._work(deadline)
        while len(self._done) < num:
            if time.perf_counter() > deadline or may_leave(num - len(self._done), num):
                self.is_over = True
            if self.is_over and all(draft.is_rooted for draft in self._firsts):
                break
            self._all_done.wait(POLL_SECONDS)
        done = {id(draft) for draft in self._done}
        return [draft for same in self._same.values() for draft in self._share(same, done)]

    def _share(self, same: list[Draft], done: set[int]) -> list[Draft]:
        """Give what was filled once to all who asked for it; those of them that are left."""
        first = same[0]
        if not first.has_root:
            for draft in same:
                self._mask_RK[draft.row : draft.row + 1 + len(draft.tokens)] = 0
            return []
        is_late = id(first) not in done
        mask_LK = self._mask_RK[first.row : first.row + (1 if is_late else 1 + len(first.tokens))]
        for draft in same:
            if draft is not first:
                self._mask_RK[draft.row : draft.row + len(mask_LK)] = mask_LK
                draft.has_root = True
            if is_late:
                continue
            self._count(draft)
            if draft.keeps and draft.point.ahead is None:
                kept_LK = mask_LK.copy()
                draft.point.mask, draft.point.ahead = kept_LK[0], (draft.tokens, kept_LK)
        self.num_masks += 1 + first.num_legal
        return same if is_late else []

    def _count(self, draft: Draft) -> None:
        draft.num_legal = num_legal(self._mask_RK, draft.row, draft.tokens)
        draft.is_filled = True
