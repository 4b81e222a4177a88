"""Masks of points and of the drafts behind them, on threads that can be left behind.

One call of the library fills most drafts: it works on many cores, and each return of a call to the
interpreter costs a thread's waking. Drafts that were late before have calls of their own. A call that
is left behind has still written rows that count: where a thread's stores are seen in their order, a row
is whole once the one behind it has begun.

Promises: masks are those of a walk through the draft; what is asked for twice is filled once; a point
or a draft whose automaton fails has no masks, and its neighbours have theirs. What a thread writes
after it was left behind nobody reads.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import num_legal
from eyas.constraint.fill import fill_states

log = logging.getLogger(__name__)

STORES_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Are a thread's stores seen in their order?"""
POLL_SECONDS = 0.0002
"""Between two looks at whether what is missing may be left out."""


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens that nobody has walked through, after a point that has no budget. row: of the point's
    mask; that after each token follows. keeps: the point remembers the masks for whoever stands there
    later. is_slow: it is likely to be late.

    num_masks: how many of its rows are there, the point's first; num_legal: tokens that these allow.
    is_late: it was left before all were known to be there; is_behind: and, it seems, before they were.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    is_slow: bool = False
    num_masks: int = 0
    num_legal: int = 0
    is_late: bool = False
    is_behind: bool = False
    is_clear: bool = False

    def clear(self, mask_RK: np.ndarray) -> None:
        """Zero its rows, where anything may be."""
        mask_RK[self.row : self.row + 1 + len(self.tokens)] = 0
        self.is_clear = True


class DraftThreads:
    """They live as long as an engine. num_calls: under way at a time; as many more may be left
    behind."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.pool = ThreadPoolExecutor(2 * num_calls, "masks")

    def close(self) -> None:
        """What is under way ends by itself."""
        self.pool.shutdown(wait=False, cancel_futures=True)


class Filling:
    """The points and drafts of one step under way. mask_RK: their rows. num_masks: made so far."""

    def __init__(
        self, drafts: Iterable[Draft], mask_RK: np.ndarray, threads: DraftThreads | None
    ) -> None:
        """mask_RK: whatever is in the rows of points and tokens is lost. threads: None fills here,
        where it is waited for."""
        self.mask_RK = mask_RK
        self.num_masks = 0
        self._same: dict[tuple[int, tuple[int, ...]], list[Draft]] = {}
        for draft in drafts:
            known = draft.point.ahead
            if known is not None and known[0] == draft.tokens:
                mask_RK[draft.row : draft.row + len(known[1])] = known[1]
                _count(draft, known[1])
            else:
                self._same.setdefault((id(draft.point), draft.tokens), []).append(draft)
        self._calls: list[tuple[Future[set[int]], list[Draft]]] = []
        firsts = [same[0] for same in self._same.values()]
        if threads is None:
            self._fill(firsts)
            return
        slow = [draft for draft in firsts if draft.is_slow]
        parts = [slow[i :: threads.num_calls - 1] for i in range(threads.num_calls - 1)]
        for part in ([draft for draft in firsts if not draft.is_slow], *parts):
            if part:
                self._calls.append((threads.pool.submit(self._fill, part), part))

    def _fill(self, drafts: list[Draft]) -> set[int]:
        for draft in drafts:
            draft.clear(self.mask_RK)
        states, rows = [draft.point.state for draft in drafts], [draft.row for draft in drafts]
        return fill_states(states, self.mask_RK, rows, [draft.tokens for draft in drafts])

    def wait(self, deadline: float, may_leave: Callable[[int, int], bool]) -> bool:
        """Until all masks are there, or so many drafts of so many may be left, or the time is over
        (seconds of `time.perf_counter`); roots are always waited for. False where something was left:
        what is not known of the rows of drafts that are late is not to be read."""
        num = len(self._same)
        left = [call for call in self._calls if not call[0].done()]
        while left:
            num_left = sum(len(part) for _, part in left)
            if time.perf_counter() > deadline or may_leave(num_left, num):
                break
            wait([future for future, _ in left], POLL_SECONDS)
            left = [call for call in left if not call[0].done()]
        late = {id(draft): draft for _, part in left for draft in part}
        for draft in late.values():
            self._salvage(draft)
        for same in self._same.values():
            self._share(same)
        return not late

    def _salvage(self, draft: Draft) -> None:
        """Take what is there of a draft that is still being filled."""
        draft.is_late = draft.is_behind = True
        if not draft.is_clear:
            return
        rows_LK = self.mask_RK[draft.row : draft.row + 1 + len(draft.tokens)]
        has_begun = [bool(row_K.any()) for row_K in rows_LK]
        num = has_begun.index(False) if False in has_begun else len(has_begun)
        seems_legal = num_legal(rows_LK, 0, draft.tokens)
        draft.is_behind = num <= seems_legal
        if STORES_IN_ORDER:
            draft.num_masks = draft.num_legal = max(0, num - 1)

    def _share(self, same: list[Draft]) -> None:
        """Give what was filled once to all who asked for it."""
        first = same[0]
        mask_LK = self.mask_RK[first.row : first.row + 1 + len(first.tokens)]
        if not first.is_late:
            _count(first, mask_LK)
        for draft in same:
            if draft is not first:
                draft.clear(self.mask_RK)
                self.mask_RK[draft.row : draft.row + first.num_masks] = mask_LK[: first.num_masks]
                draft.num_masks, draft.num_legal = first.num_masks, first.num_legal
                draft.is_late = first.is_late
            if draft.keeps and draft.point.ahead is None and first.num_masks and not first.is_late:
                kept_LK = mask_LK.copy()
                draft.point.mask, draft.point.ahead = kept_LK[0], (draft.tokens, kept_LK)
        self.num_masks += first.num_masks


def _count(draft: Draft, mask_LK: np.ndarray) -> None:
    """Take note of masks that are all there."""
    draft.num_legal = num_legal(mask_LK, 0, draft.tokens)
    is_there = bool(mask_LK[draft.num_legal].any())
    draft.num_masks = draft.num_legal + is_there
