"""Masks of points, filled by their grammar libraries all at once.

Promises: each point is filled once, however often it is asked for; a point whose automaton fails has no
mask, and its neighbours get theirs; after the deadline nothing more is begun.
Does not know: trees, sequences, devices.

Legend: R mask rows, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import Backend, State

log = logging.getLogger(__name__)

CHUNK = 32
"""Masks that are filled between two looks at the clock."""


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
        chunk = new[start : start + CHUNK]
        mask_RK = np.zeros((len(chunk), num_words), dtype=np.int32)
        failed = fill_states([point.state for point in chunk], mask_RK, range(len(chunk)))
        for row, point in enumerate(chunk):
            if row not in failed:
                point.mask = mask_RK[row]
        num += len(chunk) - len(failed)
    return num


def fill_states(
    states: Sequence[State],
    mask_RK: np.ndarray,
    rows: Sequence[int],
    drafts: Sequence[Sequence[int]] | None = None,
) -> set[int]:
    """`Backend.fill` for all at once; the indices of those that failed, whose rows are zero."""
    by_backend: dict[int, tuple[Backend, list[int]]] = {}
    for i, state in enumerate(states):
        backend = state.grammar.backend
        by_backend.setdefault(id(backend), (backend, []))[1].append(i)
    failed: set[int] = set()
    for backend, indices in by_backend.values():
        their_rows = [rows[i] for i in indices]
        their_drafts = None if drafts is None else [drafts[i] for i in indices]
        try:
            found = backend.fill([states[i] for i in indices], mask_RK, their_rows, their_drafts)
        except Exception:  # one of them has spoilt it for all: each on its own
            for i in indices:
                draft = () if drafts is None else drafts[i]
                mask_LK = mask_RK[rows[i] : rows[i] + 1 + len(draft)]
                if not _fill_alone(states[i], mask_LK, draft):
                    failed.add(i)
        else:
            failed.update(indices[i] for i in found)
    return failed


def _fill_alone(state: State, mask_LK: np.ndarray, draft: Sequence[int]) -> bool:
    mask_LK[:] = 0
    try:
        return not state.grammar.backend.fill([state], mask_LK, None, [draft])
    except Exception:
        log.exception("an automaton failed")
        mask_LK[:] = 0
        return False
