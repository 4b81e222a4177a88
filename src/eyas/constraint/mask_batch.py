"""What is asked for of masks, and what of it the library fills in one call.

Promises: a state or a draft whose automaton fails has no masks, and its neighbours have theirs.
Does not know: threads, clocks.

Legend: R mask rows, L rows of a state and its draft, K 32-bit mask words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from eyas.constraint.base import Backend, Filled, MaskJob, State, num_legal
from eyas.constraint.library_calls import OF_THE_HOST

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class MaskRequest:
    """The mask at the end of `path` from a state, and those after each of `tokens` behind it. row: of
    the first mask; the others follow. has_spare_row: without tokens, the row behind the first is the
    request's own as well, and may hold anything until all is settled.

    num_masks: how many of its rows hold masks; num_legal: tokens that these allow. has_failed: its
    state has hit a limit. is_late: there was no time for it. is_left_out: it was not begun, since
    nothing else was waited for any more. is_slow: it was among the last few when a while had passed.
    repeats_first: another request has its first mask as well.
    """

    state: State
    row: int
    tokens: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    has_spare_row: bool = False
    repeats_first: bool = False
    num_masks: int = 0
    num_legal: int = 0
    has_failed: bool = False
    is_late: bool = False
    is_left_out: bool = False
    is_slow: bool = False

    @property
    def backend(self) -> Backend:
        return self.state.grammar.backend

    @property
    def num_new(self) -> int:
        """Masks that no other request has."""
        return max(0, self.num_masks - self.repeats_first)

    def rows(self, mask_RK: np.ndarray) -> np.ndarray:
        """[L, K]."""
        return mask_RK[self.row : self.row + 1 + len(self.tokens)]

    def note(self, filled: Filled | None) -> None:
        """Note what was filled; None: nothing, since the state has failed."""
        self.num_legal, self.num_masks = filled or (0, 0)
        self.has_failed = filled is None

    def wipe(self, mask_RK: np.ndarray) -> None:
        """Write zeros to all rows that the library may have written to for this request alone."""
        mask_RK[self.row : self.row + 1 + max(len(self.tokens), self.has_spare_row)] = 0


class MaskBatch:
    """Requests that are filled together; they are of one library, each of another state."""

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
        """Do the library's work."""
        if self._job is not None:
            with self._watched():
                self._job.run()
        self.is_done = True

    def unfinished(self, requests: Sequence[MaskRequest]) -> list[MaskRequest]:
        """Return those that are not done. While they are written to, the answer may be wrong."""
        if self.is_done:
            return []
        rows, drafts = [each.row for each in requests], [each.tokens for each in requests]
        legal = zip(requests, num_legal(self.mask_RK, rows, drafts), strict=True)
        return [request for request, num in legal if not self._is_there(request, num)]

    def _is_there(self, request: MaskRequest, num: int) -> bool:
        has_ended = num and request.tokens[num - 1] in request.backend.eos_token_ids
        return bool(has_ended or self.mask_RK[request.row + num].any())

    def settle(self) -> None:
        """Note the result of each request; zero the rows of those that failed."""
        for request, filled in zip(self.requests, self._settled(), strict=True):
            if filled is None:
                request.rows(self.mask_RK)[:] = 0
            request.note(filled)

    def _settled(self) -> list[Filled | None]:
        if self._job is not None and not self._has_broken:
            with self._watched():
                return self._job.settle()
        # one of them has spoilt the call for all: each on its own
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
    backend = requests[0].backend
    # With an end behind it, which has no mask, a state alone goes in the drafts' call.
    end = tuple(backend.eos_token_ids)[:1]
    return backend.job(
        [each.state for each in requests],
        mask_RK,
        [each.row for each in requests],
        [each.tokens or (end if each.has_spare_row else ()) for each in requests],
        paths=[each.path for each in requests],
    )


def _fill_alone(request: MaskRequest, mask_RK: np.ndarray) -> Filled | None:
    request.wipe(mask_RK)
    mask_LK = request.rows(mask_RK)
    try:
        job = request.backend.job(
            [request.state], mask_LK, None, [request.tokens], paths=[request.path]
        )
        job.run()
        return job.settle()[0]
    except OF_THE_HOST:
        raise
    except BaseException:
        log.exception("an automaton failed")
        return None
