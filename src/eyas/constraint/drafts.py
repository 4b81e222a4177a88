"""Masks of points and of the drafts behind them, filled beside whoever waits for them.

One call of the library does all: it works on many cores, and each return of a call to the interpreter
costs a thread's waking. It cannot be ended, and what it does holds locks that the next step needs; so
it is waited for, and a draft that others had to wait for is looked at less far the next time.

Promises: masks are those of a walk through the draft; what is asked for twice is filled once; a point
or a draft whose automaton fails has no masks, and its neighbours have theirs. What is written after the
deadline nobody reads.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import num_legal
from eyas.constraint.fill import fill_states

FEW = 4
"""One in so many drafts may hold up the others."""
POLL_SECONDS = 0.0005
"""Between two looks at whether what is missing is late."""


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens that nobody has walked through, after a point that has no budget. row: of the point's
    mask; that after each token follows. keeps: the point remembers the masks for whoever stands there
    later.

    num_masks: how many of its rows are there, the point's first; num_legal: tokens that these allow.
    is_late: it was left out after the deadline. num_early: rows that were there when it was asked who
    is late; None where nobody asked, or all were.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    num_masks: int = 0
    num_legal: int = 0
    is_late: bool = False
    num_early: int | None = None

    def rows(self, mask_RK: np.ndarray) -> np.ndarray:
        """[L, K]."""
        return mask_RK[self.row : self.row + 1 + len(self.tokens)]


class Filling:
    """The points and drafts of one step under way. mask_RK: their rows. num_masks: made so far, in
    `seconds`."""

    def __init__(
        self, drafts: Iterable[Draft], mask_RK: np.ndarray, thread: ThreadPoolExecutor | None
    ) -> None:
        """mask_RK: whatever is in the rows of points and tokens is lost. thread: None fills here."""
        self.mask_RK = mask_RK
        self.num_masks, self.seconds = 0, 0.0
        self._same: dict[tuple[int, tuple[int, ...]], list[Draft]] = {}
        self._is_clear = False
        for draft in drafts:
            known = draft.point.ahead
            if known is not None and known[0] == draft.tokens:
                draft.rows(mask_RK)[:] = known[1]
                _count(draft, known[1])
            else:
                self._same.setdefault((id(draft.point), draft.tokens), []).append(draft)
        self._call: Future[None] | None = None
        if self._same:
            self._call = None if thread is None else thread.submit(self._fill)
            if self._call is None:
                self._fill()

    def _fill(self) -> None:
        begin = time.perf_counter()
        firsts = [same[0] for same in self._same.values()]
        for draft in firsts:
            draft.rows(self.mask_RK)[:] = 0
        self._is_clear = True
        states, rows = [draft.point.state for draft in firsts], [draft.row for draft in firsts]
        fill_states(states, self.mask_RK, rows, [draft.tokens for draft in firsts])
        self.seconds = time.perf_counter() - begin

    def wait(self, deadline: float, is_late: Callable[[], bool]) -> bool:
        """Until all masks are there; False when the time is over before that (seconds of
        `time.perf_counter`), and no row of drafts that are late is to be read. Once `is_late` says so,
        the last few drafts are taken note of."""
        has_looked = False
        while self._call is not None and not self._call.done():
            if time.perf_counter() > deadline:
                self._call.cancel()
                for same in self._same.values():
                    for draft in same:
                        draft.is_late, draft.num_early = True, 0
                return False
            if not has_looked and is_late():
                has_looked = self._look()
            wait([self._call], POLL_SECONDS)
        for same in self._same.values():
            self._share(same)
        return True

    def _look(self) -> bool:
        """How far are drafts that are not done, if these are few? What is seen may be wrong, and
        nothing but speed hangs on it."""
        behind: list[tuple[Draft, int]] = []
        for draft, *_ in self._same.values():
            rows_LK = draft.rows(self.mask_RK)
            num = int(rows_LK.any(axis=1).sum()) if self._is_clear else 0
            if num <= num_legal(rows_LK, 0, draft.tokens):
                behind.append((draft, num))
        is_few = len(behind) <= max(1, len(self._same) // FEW)
        for draft, num in behind if is_few else ():
            draft.num_early = num
        return is_few

    def _share(self, same: list[Draft]) -> None:
        """Give what was filled once to all who asked for it."""
        first = same[0]
        mask_LK = first.rows(self.mask_RK)
        _count(first, mask_LK)
        for draft in same:
            if draft is not first:
                draft.rows(self.mask_RK)[:] = mask_LK
                draft.num_masks, draft.num_legal = first.num_masks, first.num_legal
                draft.num_early = first.num_early
            if draft.keeps and draft.point.ahead is None and first.num_masks:
                kept_LK = mask_LK.copy()
                draft.point.mask, draft.point.ahead = kept_LK[0], (draft.tokens, kept_LK)
        self.num_masks += first.num_masks


def _count(draft: Draft, mask_LK: np.ndarray) -> None:
    """Take note of masks that are all there."""
    draft.num_legal = num_legal(mask_LK, 0, draft.tokens)
    is_there = bool(mask_LK[draft.num_legal].any())
    draft.num_masks = draft.num_legal + is_there
