"""Masks of points and of drafts from points, filled by their grammar libraries all at once.

Promises: each point is filled once, however often it is asked for, and each draft once a call; a point
whose automaton fails keeps no mask, and its neighbours get theirs; after the deadline nothing more is
begun.
Does not know: trees, sequences.

Legend: N, R mask rows, K 32-bit mask words, L places of a draft.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import Backend

log = logging.getLogger(__name__)

_T = TypeVar("_T")

CHUNK = 32
"""Masks, or drafts, that are filled between two looks at the clock."""


@dataclass(slots=True, eq=False)
class Draft:
    """Tokens after a point that nobody has walked through. row: of the point's mask; that after each
    token follows. keeps: the point remembers the masks for whoever stands there later.

    num_legal: tokens that are legal, once the rows are filled. is_filled: False where a limit was hit
    at once, None where the time was over before; one that was hit later leaves rows zero.
    """

    point: Point
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    num_legal: int = 0
    is_filled: bool | None = None

    @property
    def rows(self) -> slice:
        """Of the point and of every token."""
        return slice(self.row, self.row + len(self.tokens) + 1)


def fill_points(points: Iterable[Point], num_words: int, deadline: float | None = None) -> int:
    """Give each point its `mask`, in order; the number of masks made.

    deadline: seconds of the monotonic clock (`time.perf_counter`); points that come later stay without.
    """
    new = list({id(point): point for point in points if point.mask is None}.values())
    by_backend: dict[int, tuple[Backend, list[Point]]] = {}
    for point in new:
        if (only := point.only_token) is not None:
            point.mask = np.zeros(num_words, dtype=np.int32)
            point.mask.view(np.uint32)[only // 32] = 1 << (only % 32)
            continue
        backend = point.state.grammar.backend
        by_backend.setdefault(id(backend), (backend, []))[1].append(point)
    for backend, waiting in by_backend.values():
        for chunk in _in_time(waiting, deadline):
            mask_NK = np.zeros((len(chunk), num_words), dtype=np.int32)
            failed = _fill(backend, chunk, mask_NK)
            for i, point in enumerate(chunk):
                if i not in failed:
                    point.mask = mask_NK[i]
    return sum(point.mask is not None for point in new)


def _in_time(waiting: Sequence[_T], deadline: float | None) -> Iterator[Sequence[_T]]:
    """Some after some, until the deadline."""
    for start in range(0, len(waiting), CHUNK):
        if deadline is not None and time.perf_counter() > deadline:
            return
        yield waiting[start : start + CHUNK]


def _fill(backend: Backend, points: Sequence[Point], mask_NK: np.ndarray) -> set[int]:
    """Fill the rows of points; the indices of those that failed."""
    try:
        return set(backend.fill([point.state for point in points], mask_NK))
    except Exception:
        if len(points) == 1:
            log.exception("an automaton failed")
            return {0}
    mask_NK[:] = 0  # one of them has spoilt it for all: each on its own
    return {i for i, point in enumerate(points) if _fill(backend, [point], mask_NK[i : i + 1])}


def fill_drafts(drafts: Sequence[Draft], mask_RK: np.ndarray, deadline: float | None = None) -> int:
    """Fill the zeroed rows of drafts, in order; the number of masks made. The points of drafts must be
    free of budgets. Rows of tokens that are not legal, and of what failed, stay zero."""
    first: dict[tuple[int, tuple[int, ...]], Draft] = {}
    again: list[Draft] = []
    by_backend: dict[int, tuple[Backend, list[Draft]]] = {}
    for draft in drafts:
        known = draft.point.ahead
        if known is not None and known[0] == draft.tokens:
            mask_RK[draft.rows] = known[1]
            draft.num_legal, draft.is_filled = known[2], True
        elif first.setdefault((id(draft.point), draft.tokens), draft) is draft:
            backend = draft.point.state.grammar.backend
            by_backend.setdefault(id(backend), (backend, []))[1].append(draft)
        else:
            again.append(draft)
    for backend, waiting in by_backend.values():
        for chunk in _in_time(waiting, deadline):
            _follow(backend, chunk, mask_RK)
    for draft in again:
        other = first[id(draft.point), draft.tokens]
        draft.num_legal, draft.is_filled = other.num_legal, other.is_filled
        mask_RK[draft.rows] = mask_RK[other.rows]
    filled = [draft for draft in first.values() if draft.is_filled]
    for draft in filled:
        if draft.keeps:
            rows_LK = mask_RK[draft.rows].copy()
            draft.point.ahead = draft.tokens, rows_LK, draft.num_legal
            draft.point.mask = rows_LK[0]
    return sum(1 + draft.num_legal for draft in filled)


def _follow(backend: Backend, drafts: Sequence[Draft], mask_RK: np.ndarray) -> None:
    """Fill the rows of drafts, and say of each how it went."""
    try:
        failed = backend.fill_drafts(
            [draft.point.state for draft in drafts],
            [draft.tokens for draft in drafts],
            [draft.row for draft in drafts],
            mask_RK,
        )
    except Exception:
        for draft in drafts:
            mask_RK[draft.rows] = 0
        if len(drafts) == 1:
            log.exception("an automaton failed")
            drafts[0].is_filled = False
            return
        for draft in drafts:  # one of them has spoilt it for all: each on its own
            _follow(backend, [draft], mask_RK)
        return
    for i, draft in enumerate(drafts):
        draft.is_filled = i not in failed
        draft.num_legal = _count_legal(draft, mask_RK)


def _count_legal(draft: Draft, mask_RK: np.ndarray) -> int:
    """How many tokens of the draft its masks allow, up to the first that is refused."""
    num_ids = 32 * mask_RK.shape[1]
    for place, token in enumerate(draft.tokens):
        is_id = 0 <= token < num_ids
        if not is_id or not mask_RK.item(draft.row + place, token // 32) >> token % 32 & 1:
            return place
    return len(draft.tokens)
