"""Masks of points and of the drafts behind them, on threads that can be left behind.

Points' masks are one call of their library, drafts' a few calls of about as many drafts each: a call
does its part on many cores, and every return of a call to the interpreter costs a thread's waking.

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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import State, num_legal
from eyas.constraint.fill import fill_states

log = logging.getLogger(__name__)

POLL_SECONDS = 0.0002
"""Between two looks at whether what is missing may be left out."""


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens that nobody has walked through, after a point that has no budget. row: of the point's
    mask; that after each token follows. keeps: the point remembers the masks for whoever stands there
    later.

    has_root: the point has its mask; is_filled: so have the tokens, of which `num_legal` are legal.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    has_root: bool = False
    is_filled: bool = False
    num_legal: int = 0


class DraftThreads:
    """They live as long as an engine. num_calls: of drafts, under way at a time; as many more may be
    left behind."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.pool = ThreadPoolExecutor(1 + 2 * num_calls, "masks")

    def close(self) -> None:
        """What is under way ends by itself."""
        self.pool.shutdown(wait=False, cancel_futures=True)


class Filling:
    """The points and drafts of one step under way. num_masks: made so far."""

    def __init__(
        self, drafts: Iterable[Draft], mask_RK: np.ndarray, threads: DraftThreads | None
    ) -> None:
        """mask_RK: whatever is in the rows of points and tokens is lost. threads: None fills here,
        where it is waited for."""
        self.num_masks = 0
        self._mask_RK = mask_RK
        self._same: dict[tuple[int, tuple[int, ...]], list[Draft]] = {}
        for draft in drafts:
            known = draft.point.ahead
            if known is not None and known[0] == draft.tokens:
                mask_RK[draft.row : draft.row + len(known[1])] = known[1]
                draft.has_root = True
                self._count(draft)
            else:
                mask_RK[draft.row : draft.row + 1 + len(draft.tokens)] = 0
                key = (id(draft.point), draft.tokens)
                self._same.setdefault(key, []).append(draft)
        self._firsts = [same[0] for same in self._same.values()]
        self._missing = {id(draft): draft for draft in self._firsts if draft.tokens}
        self._done = threading.Semaphore(0)
        self._roots: Future[set[int]] | None = None
        self._num_parts = 0
        if threads is not None and self._firsts:
            # Copies first: whoever asks for a point's mask holds its matcher.
            behind = [(draft, _after(draft)) for draft in self._missing.values()]
            self._roots = threads.pool.submit(self._fill_roots)
            self._num_parts = min(threads.num_calls, len(behind))
            for part in range(self._num_parts):
                threads.pool.submit(self._follow, behind[part :: self._num_parts])

    def _fill_roots(self) -> set[int]:
        rows = [draft.row for draft in self._firsts]
        return fill_states([draft.point.state for draft in self._firsts], self._mask_RK, rows)

    def _follow(self, behind: list[tuple[Draft, State | None]]) -> None:
        """Fill the rows behind points', as far as they can be."""
        legal = [(draft, state) for draft, state in behind if state is not None]
        rows = [draft.row + 1 for draft, _ in legal]
        drafts = [draft.tokens[1:] for draft, _ in legal]
        fill_states([state for _, state in legal], self._mask_RK, rows, drafts)
        for draft, _ in behind:
            del self._missing[id(draft)]
        self._done.release()

    def wait(self, deadline: float, may_leave: Callable[[int, int], bool]) -> list[Draft]:
        """Until all masks are there, or so many drafts of so many may be left, or the time is over
        (seconds of `time.perf_counter`); roots are always waited for. The drafts that are left, of
        which only roots' rows are to be read."""
        num = len(self._firsts)
        failed = self._fill_roots() if self._roots is None else self._roots.result()
        if self._roots is None:
            for draft in list(self._missing.values()):
                if time.perf_counter() > deadline:
                    break
                self._follow([(draft, _after(draft))])
        while self._missing:
            is_over = time.perf_counter() > deadline
            if is_over or may_leave(len(self._missing), num):
                break
            self._done.acquire(timeout=POLL_SECONDS)
        missing = self._missing.copy()  # a thread may be about to take one out
        late: list[Draft] = []
        for i, same in enumerate(self._same.values()):
            if i not in failed:
                late += self._share(same, is_late=id(same[0]) in missing)
            else:
                late += same if id(same[0]) in missing else []
        return late

    def _share(self, same: list[Draft], *, is_late: bool) -> list[Draft]:
        """Give what was filled once to all who asked for it; those of them that are left."""
        first = same[0]
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


def _after(draft: Draft) -> State | None:
    """Behind a draft's first token."""
    try:
        return draft.point.state.after(draft.tokens[0])
    except Exception:  # whatever a draft does to its automaton, it costs the draft alone
        return None
