"""Masks of points, and of drafts behind them, filled by their grammar libraries all at once.

Promises: each point is filled once, however often it is asked for; a draft has the masks of a walk
through it; a point whose automaton fails has no mask, and its neighbours get theirs; after the deadline
nothing more is begun.
Does not know: trees, sequences, devices.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import Backend, num_legal

log = logging.getLogger(__name__)

CHUNK = 32
"""Masks that are filled between two looks at the clock."""


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


def fill_drafts(drafts: Iterable[Draft], mask_RK: np.ndarray) -> int:
    """The masks of points and their drafts into zeroed rows; the number of masks made."""
    new: dict[tuple[int, tuple[int, ...]], list[Draft]] = {}
    for draft in drafts:
        known = draft.point.ahead
        if known is not None and known[0] == draft.tokens:
            _take(draft, known[1], mask_RK)
        else:
            new.setdefault((id(draft.point), draft.tokens), []).append(draft)
    firsts = [same[0] for same in new.values()]
    failed = _ask(firsts, mask_RK)
    num = 0
    for i, (first, same) in enumerate(zip(firsts, new.values(), strict=True)):
        if i in failed:
            continue
        mask_LK = mask_RK[first.row : first.row + 1 + len(first.tokens)]
        for draft in same:
            _take(draft, mask_LK, mask_RK)
            if draft.keeps and draft.point.ahead is None:
                kept_LK = mask_LK.copy()
                draft.point.mask, draft.point.ahead = kept_LK[0], (draft.tokens, kept_LK)
        num += 1 + first.num_legal
    return num


def fill_points(points: Iterable[Point], num_words: int, deadline: float | None = None) -> int:
    """Give each point its `mask`, in order; the number of masks made.

    deadline: seconds of the monotonic clock (`time.perf_counter`); points that come later stay without.
    """
    new: list[Point] = []
    num = 0
    for point in {id(point): point for point in points if point.mask is None}.values():
        if (only := point.only_token) is None:
            new.append(point)
            continue
        point.mask = np.zeros(num_words, dtype=np.int32)
        point.mask.view(np.uint32)[only // 32] = 1 << (only % 32)
        num += 1
    for start in range(0, len(new), CHUNK):
        if deadline is not None and time.perf_counter() > deadline:
            break
        chunk = [Draft(point, (), row) for row, point in enumerate(new[start : start + CHUNK])]
        mask_RK = np.zeros((len(chunk), num_words), dtype=np.int32)
        failed = _ask(chunk, mask_RK)
        for row, each in enumerate(chunk):
            if row not in failed:
                each.point.mask = mask_RK[row]
        num += len(chunk) - len(failed)
    return num


def _take(draft: Draft, mask_LK: np.ndarray, mask_RK: np.ndarray) -> None:
    """Masks that are there, to where the draft wants them."""
    end = draft.row + len(mask_LK)
    if mask_RK[draft.row : end].ctypes.data != mask_LK.ctypes.data:
        mask_RK[draft.row : end] = mask_LK
    draft.num_legal = num_legal(mask_RK, draft.row, draft.tokens)
    draft.has_root = draft.is_filled = True


def _ask(drafts: list[Draft], mask_RK: np.ndarray) -> set[int]:
    """Fill the rows of drafts; the indices of those that failed, whose rows are zero."""
    by_backend: dict[int, tuple[Backend, list[int]]] = {}
    for i, draft in enumerate(drafts):
        backend = draft.point.state.grammar.backend
        by_backend.setdefault(id(backend), (backend, []))[1].append(i)
    failed: set[int] = set()
    for backend, indices in by_backend.values():
        asked = [drafts[i] for i in indices]
        failed.update(indices[i] for i in _fill(backend, asked, mask_RK))
    return failed


def _fill(backend: Backend, drafts: list[Draft], mask_RK: np.ndarray) -> set[int]:
    states, tokens = [draft.point.state for draft in drafts], [draft.tokens for draft in drafts]
    try:
        return set(backend.fill(states, mask_RK, [draft.row for draft in drafts], tokens))
    except Exception:
        pass
    # One of them has spoilt it for all: each on its own.
    failed = set()
    for i, draft in enumerate(drafts):
        mask_LK = mask_RK[draft.row : draft.row + 1 + len(draft.tokens)]
        mask_LK[:] = 0
        try:
            is_failed = bool(backend.fill([draft.point.state], mask_LK, None, [draft.tokens]))
        except Exception:
            log.exception("an automaton failed")
            mask_LK[:] = 0
            is_failed = True
        if is_failed:
            failed.add(i)
    return failed
