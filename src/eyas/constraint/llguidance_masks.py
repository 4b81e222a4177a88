"""Masks that are asked for together, by llguidance.

The library has one call for matchers with drafts behind them and one for matchers without. A draft goes
through the draft matcher of its state, which enters the draft's path before and leaves it afterwards.

Promises: masks are those of a fresh copy; no state's own matcher moves. Does not know: clocks, threads.

Legend: R mask rows, L rows of a state and its draft, K 32-bit words of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eyas.constraint.base import ConstraintFailure, Filled, State, allows, num_legal
from eyas.constraint.library_calls import when_free
from eyas.constraint.llguidance_draft import DraftMatcher, Path
from eyas.constraint.llguidance_library import LlguidanceLibrary
from eyas.constraint.llguidance_states import LlguidanceState


@dataclass(slots=True, eq=False)
class _Asked:
    """The end of a path from a state, and the draft behind it. shown: the draft as the library sees it,
    an end where no token is left of it. drafts: goes through the draft; None: the state's own matcher
    is asked for one mask. wanted: (index, row) of each request for these masks; there are several where
    states share a matcher. has_failed: at a limit."""

    state: LlguidanceState
    path: Path
    tokens: Path
    shown: list[int]
    wanted: list[tuple[int, int]]
    drafts: DraftMatcher | None = None
    has_failed: bool = False

    @property
    def row(self) -> int:
        """Where the masks are written first."""
        return self.wanted[0][1]


class LlguidanceMasks:
    """A `MaskJob`; see `Backend.job`."""

    def __init__(
        self,
        backend: LlguidanceLibrary,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None,
        drafts: Sequence[Sequence[int]] | None,
        paths: Sequence[Sequence[int]] | None,
    ) -> None:
        assert mask_RK.dtype == np.int32 and mask_RK.flags.c_contiguous
        assert mask_RK.shape[1] == backend.vocabulary.num_mask_words
        self._backend = backend
        self._mask_RK = mask_RK
        self._wanted = [()] * len(states) if drafts is None else drafts
        self._failed: set[int] = set()
        asked = self._asked_of(states, rows, [()] * len(states) if paths is None else paths)
        # Single masks first; then replica by replica, since the threads share out the list in parts.
        self._asked = sorted(asked, key=lambda each: (bool(each.tokens), _replica(each)))
        self._with_drafts = [(each, each.drafts) for each in self._asked if each.drafts is not None]
        self._alone = [each for each in self._asked if each.drafts is None]

    def _asked_of(
        self, states: Sequence[State], rows: Sequence[int] | None, paths: Sequence[Sequence[int]]
    ) -> list[_Asked]:
        asked: list[_Asked] = []
        alone: dict[int, _Asked] = {}
        lent: set[DraftMatcher] = set()
        spelled = [tuple(self._backend.spelled(draft)) for draft in self._wanted]
        end = self._backend.end if any(spelled) else []
        for i, (state, tokens, path) in enumerate(zip(states, spelled, paths, strict=True)):
            assert isinstance(state, LlguidanceState)
            row, draft = i if rows is None else rows[i], self._wanted[i]
            assert row + len(draft) < len(self._mask_RK)
            if state.matcher is None:
                continue
            shown = list(tokens) or end[: len(draft)]
            each = _Asked(state, tuple(path), tokens, shown, [(i, row)])
            if not (shown or path):
                first = alone.setdefault(id(state.matcher), each)
                if first is not each:
                    first.wanted.append((i, row))
                    continue
            else:
                try:
                    each.drafts = self._draft_matcher(state, lent)
                except ConstraintFailure:
                    self._failed.add(i)
                    continue
            asked.append(each)
        return asked

    def _draft_matcher(self, state: LlguidanceState, lent: set[DraftMatcher]) -> DraftMatcher:
        """Return a state's draft matcher, or another one for a second draft of the state."""
        drafts = state.draft_matcher(self._mask_RK)
        if drafts in lent:
            drafts = DraftMatcher(state.copy())
        lent.add(drafts)
        return drafts

    def run(self) -> None:
        """Fill all rows."""
        try:
            self._go_home()
            self._fill()
        except BaseException:
            for _, drafts in self._with_drafts:  # they may be anywhere
                drafts.is_fit = False
            raise

    def _go_home(self) -> None:
        """Ask draft matchers for a mask at home, where their cached one may be wrong."""
        away = [drafts for each, drafts in self._with_drafts if drafts.is_astray(each.path)]
        for drafts in away:
            drafts.go_home()
        home = [drafts for drafts in away if drafts.is_fit]
        unread_RK = np.empty((len(home), self._mask_RK.shape[1]), dtype=np.int32)
        self._backend.fill_rows([(each.matcher, row) for row, each in enumerate(home)], unread_RK)
        for drafts in home:
            drafts.go_back()

    def _fill(self) -> None:
        backend, mask_RK = self._backend, self._mask_RK
        entered = [(each, drafts) for each, drafts in self._with_drafts if _enter(each, drafts)]
        together = [
            (drafts.matcher, each.row, each.shown) for each, drafts in entered if each.shown
        ]
        backend.fill_drafts(together, mask_RK)
        single = [(drafts.matcher, each.row) for each, drafts in entered if not each.shown]
        alone = [(each.state.matcher, each.row) for each in self._alone]
        # The state of a call that was left behind may have been given up meanwhile.
        single += [(matcher, row) for matcher, row in alone if matcher is not None]
        backend.fill_rows(single, mask_RK)
        for each in self._alone:
            each.has_failed = each.state.matcher is None or when_free(each.state.matcher.is_error)
        for each, drafts in entered:
            each.has_failed = when_free(drafts.matcher.is_error)
            drafts.leave(each.path, each.tokens)

    def settle(self) -> list[Filled | None]:
        """Return the result of each state."""
        mask_RK = self._mask_RK
        results: list[Filled | None] = [
            None if i in self._failed else Filled(0, 0) for i in range(len(self._wanted))
        ]
        for _, drafts in self._with_drafts:
            drafts.borrower = None
        rows, tokens = [each.row for each in self._asked], [each.tokens for each in self._asked]
        for each, num in zip(self._asked, num_legal(mask_RK, rows, tokens), strict=True):
            row, size = each.row, 1 + len(each.tokens)
            mask_RK[row + size : row + 1 + len(each.shown)] = 0
            filled = self._settle(each, num, mask_RK[row + num])
            for i, other in each.wanted:
                results[i] = filled and self._over_end(filled, self._wanted[i], mask_RK[row + num])
                if other != row:
                    mask_RK[other : other + size] = mask_RK[row : row + size]
        return results

    def _settle(self, asked: _Asked, num: int, last_K: np.ndarray) -> Filled | None:
        """Take back the end, which the library allows also where nothing can follow, and where it has
        hit a limit; None where it hit that at the first place. last_K: the mask after `num` legal
        tokens."""
        ends = self._backend.eos_token_ids
        if asked.has_failed and num == 0 and not asked.path and self._fill_by_state(asked):
            asked.has_failed = False
        num_words = np.count_nonzero(last_K)
        if num_words > len(ends) or (num_words and not any(allows(last_K, end) for end in ends)):
            return Filled(num, num + 1)
        if asked.has_failed:
            last_K[:] = 0
            return Filled(num, num) if num or asked.state.is_dead_end() else None
        path = [*asked.path, *asked.tokens[:num]]
        if num_words and asked.state.num_legal([*path, *self._backend.end]) <= len(path):
            last_K[:] = 0
        return Filled(num, num + bool(last_K.any()))

    def _fill_by_state(self, asked: _Asked) -> bool:
        """A draft that hits a limit costs itself, not the mask of its root: ask the state's own
        matcher. Returns whether that one has hit none."""
        matcher = asked.state.matcher
        assert matcher is not None
        self._backend.fill_rows([(matcher, asked.row)], self._mask_RK)
        return not when_free(matcher.is_error)

    def _over_end(self, filled: Filled, draft: Sequence[int], last_K: np.ndarray) -> Filled:
        """Count an end in the draft, which the library was not shown, where the last mask allows it."""
        num = filled.num_legal
        if num == len(draft) or draft[num] not in self._backend.eos_token_ids:
            return filled
        return Filled(num + 1, num + 1) if allows(last_K, draft[num]) else filled


def _enter(asked: _Asked, drafts: DraftMatcher) -> bool:
    """Move to the end of the path, with a fresh copy where that fails. Returns whether it is there."""
    for _ in range(2):
        if not drafts.is_fit:
            try:
                drafts.renew(asked.state.copy())
            except ConstraintFailure:
                break
        if drafts.enter(asked.path):
            return True
        if drafts.is_fit:  # the path is not legal
            return False
    asked.has_failed = True
    return False


def _replica(asked: _Asked) -> tuple[int, int]:
    return id(asked.state.grammar), asked.state.replica.number
