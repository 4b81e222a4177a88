"""Masks of points, filled by their grammar libraries all at once.

Promises: each point is filled once, however often it is asked for; a point whose automaton fails keeps
no mask, and its neighbours get theirs; after the deadline nothing more is begun.
Does not know: trees, sequences.

Legend: N mask rows, K 32-bit mask words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import numpy as np

from eyas.constraint.automaton import Point
from eyas.constraint.base import Backend

log = logging.getLogger(__name__)

CHUNK = 32
"""Masks that are filled between two looks at the clock."""


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
        for start in range(0, len(waiting), CHUNK):
            if deadline is not None and time.perf_counter() > deadline:
                break
            chunk = waiting[start : start + CHUNK]
            mask_NK = np.zeros((len(chunk), num_words), dtype=np.int32)
            failed = _fill(backend, chunk, mask_NK)
            for i, point in enumerate(chunk):
                if i not in failed:
                    point.mask = mask_NK[i]
    return sum(point.mask is not None for point in new)


def _fill(backend: Backend, points: list[Point], mask_NK: np.ndarray) -> set[int]:
    """Fill the rows of points; the indices of those that failed."""
    try:
        return set(backend.fill([point.state for point in points], mask_NK))
    except Exception:
        if len(points) == 1:
            log.exception("an automaton failed")
            return {0}
    mask_NK[:] = 0  # one of them has spoilt it for all: each on its own
    return {i for i, point in enumerate(points) if _fill(backend, [point], mask_NK[i : i + 1])}
