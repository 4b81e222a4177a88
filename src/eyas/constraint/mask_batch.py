"""What is asked for of masks, and what of it the library fills in one call.

Promises: a point or a draft whose automaton fails has no masks, and its neighbours have theirs.
Does not know: threads, clocks.

Legend: R mask rows, L rows of a point and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from eyas.constraint.automaton import GrammarNode
from eyas.constraint.base import Backend, Filled, MaskJob, counted, num_legal
from eyas.constraint.library_calls import OF_THE_HOST

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class MaskRequest:
    """The mask of a point, and those after each of `tokens`, which nobody has walked through (then the
    point has no budget). row: of the point's mask; the others follow. keeps: the point remembers the
    masks for whoever stands there later. has_room: the row behind a point alone is its own as well, and
    may hold anything until all is settled.

    num_masks: how many of its rows are there, the point's first; num_legal: tokens that these allow.
    is_late: there was no time for it. is_slow: it was among the last few when a while had passed.
    """

    point: GrammarNode
    tokens: tuple[int, ...]
    row: int
    keeps: bool = False
    has_room: bool = False
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
        mask_RK[self.row : self.row + 1 + max(len(self.tokens), self.has_room)] = 0


class MaskBatch:
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


def fill_known(request: MaskRequest, mask_RK: np.ndarray) -> bool:
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


def fill_only(request: MaskRequest, mask_RK: np.ndarray) -> bool:
    """Does a budget leave one token?"""
    only = request.point.only_token
    if only is None:
        return False
    mask_RK[request.row].view(np.uint32)[only // 32] = 1 << (only % 32)
    request.num_masks = 1
    return True
