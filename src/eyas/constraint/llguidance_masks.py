"""Masks that are asked for together, by llguidance.

It has one call for matchers with drafts behind them and one for those without. A place in a draft that
no matcher of its own stands at is a path: the reader of the state goes there, one path after the other,
and the readers of all states at once.

Promises: masks are found without moving a state's own matcher. Does not know: clocks, threads.

Legend: R mask rows, L rows of a state and its draft, K 32-bit words of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import llguidance
import numpy as np

from eyas.constraint.base import ConstraintFailure, Filled, State, allows, num_legal
from eyas.constraint.library_calls import when_free, without_panic
from eyas.constraint.llguidance_library import LlguidanceLibrary
from eyas.constraint.llguidance_rollback import Path, RollbackMatcher
from eyas.constraint.llguidance_states import DraftedState, LlguidanceState


@dataclass(slots=True, eq=False)
class _Asked:
    """The place at the end of a path from a state, and the draft behind it, with all (index, row) that
    want its masks. shown: the draft as the library sees it, an end where no token is left of it.
    reader, copy: goes there; without either the state's own matcher is asked. has_failed: the reader
    has, at a limit."""

    state: LlguidanceState
    path: Path
    tokens: Path
    shown: list[int]
    reader: RollbackMatcher | None = None
    copy: llguidance.LLMatcher | None = None
    has_failed: bool = False
    copy_costs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def row(self) -> int:
        """Where they are written first."""
        return self.copy_costs[0][1]

    @property
    def matcher(self) -> llguidance.LLMatcher:
        """That fills the masks."""
        if self.reader is not None:
            return self.reader.matcher
        matcher = self.copy or self.state.matcher
        assert matcher is not None
        return matcher


class LlguidanceMasks:
    """A `MaskJob`; see `Backend.job`."""

    def __init__(
        self,
        backend: LlguidanceLibrary,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None,
        drafts: Sequence[Sequence[int]] | None,
    ) -> None:
        assert mask_RK.dtype == np.int32 and mask_RK.flags.c_contiguous
        assert mask_RK.shape[1] == backend.vocabulary.num_mask_words
        self._backend = backend
        self._mask_RK = mask_RK
        self._drafts = [()] * len(states) if drafts is None else drafts
        self._failed: set[int] = set()
        self._asked = self._without_twins(states, rows)
        self._together = [each for each in self._asked if each.shown]
        self._alone = [each for each in self._asked if not (each.shown or each.path)]
        self._paths = [each for each in self._asked if each.path]
        # Roots alone first; then lane by lane, since the threads share out the row in parts.
        self._together.sort(key=lambda each: (bool(each.tokens), _lane(each)))
        self._alone.sort(key=_lane)
        for each in self._paths:
            each.reader = each.state.reader()
        taken: set[RollbackMatcher] = set()
        for each in self._together:
            # A reader has one draft at a time, and to be shown an end would spoil it.
            reader = (
                each.state.reader() if each.tokens and each.state.is_expensive_to_copy else None
            )
            if reader is None or reader in taken:
                each.copy = each.state.copy_for_draft()
            else:
                each.reader = reader
                taken.add(reader)

    def _without_twins(self, states: Sequence[State], rows: Sequence[int] | None) -> list[_Asked]:
        asked: dict[tuple[int, Path, Path, bool], _Asked] = {}
        spelled = [tuple(self._backend.spelled(draft)) for draft in self._drafts]
        end = self._backend.end if any(spelled) else []
        for i, (state, tokens) in enumerate(zip(states, spelled, strict=True)):
            row, draft = i if rows is None else rows[i], self._drafts[i]
            assert row + len(draft) < len(self._mask_RK)
            try:
                begin, path = _begin(state, has_draft=bool(draft))
            except ConstraintFailure:
                self._failed.add(i)
                continue
            if begin.matcher is None:
                continue
            shown = list(tokens) or end[: len(draft)]
            key = (id(begin.matcher), path, tokens, bool(shown))
            asked.setdefault(key, _Asked(begin, path, tokens, shown)).copy_costs.append((i, row))
        return list(asked.values())

    def run(self) -> None:
        """Fill all rows."""
        backend, mask_RK = self._backend, self._mask_RK
        with ExitStack() as held:
            drafted = [each for each in self._together if each.reader is not None]
            self._hold_readers([*drafted, *self._paths], held)
            self._stand(drafted)
            drafts = [each for each in self._together if not each.has_failed]
            backend.fill_drafts([(each.matcher, each.row, each.shown) for each in drafts], mask_RK)
            drafted = [each for each in drafted if not each.has_failed]
            rows, tokens = [each.row for each in drafted], [each.tokens for each in drafted]
            for each, num in zip(drafted, num_legal(mask_RK, rows, tokens), strict=True):
                self._note(each, each.tokens[:num])
            # Who was given up meanwhile, since the call was left behind, is asked for by nobody.
            alone = [(each.state.matcher, each.row) for each in self._alone]
            backend.fill_rows([(m, row) for m, row in alone if m is not None], mask_RK)
            self._fill_paths()

    def _fill_paths(self) -> None:
        """Each reader goes from one to the next."""
        lines: dict[RollbackMatcher | None, list[_Asked]] = {}
        for each in sorted(self._paths, key=lambda each: each.path):
            lines.setdefault(each.reader, []).append(each)
        for turn in zip_longest(*lines.values()):
            asked = [each for each in turn if each is not None]
            self._stand(asked)
            there = [each for each in asked if not each.has_failed]
            self._backend.fill_rows([(each.matcher, each.row) for each in there], self._mask_RK)
            for each in there:
                self._note(each, each.path)

    def _hold_readers(self, asked: Sequence[_Asked], held: ExitStack) -> None:
        """Nobody else moves them meanwhile; who has one that is in use gets another."""
        taken: dict[RollbackMatcher | None, RollbackMatcher] = {}
        for each in asked:
            if each.reader not in taken:
                reader = each.reader
                assert reader is not None
                if not reader.lock.acquire(blocking=False):
                    reader = each.state.another_reader()
                    reader.lock.acquire()
                held.push(partial(_let_go, reader))
                taken[each.reader] = reader
            each.reader = taken[each.reader]

    def _stand(self, asked: Sequence[_Asked]) -> None:
        """Have their readers stand where they are to; of each reader there is one at most."""
        detours = [
            each.matcher for each in asked if self._moves(each, RollbackMatcher.takes_detour)
        ]
        if detours:
            nobodys_RK = np.empty((len(detours), self._mask_RK.shape[1]), dtype=np.int32)
            self._backend.fill_rows([(each, i) for i, each in enumerate(detours)], nobodys_RK)
        for each in asked:
            each.has_failed = not self._moves(each, RollbackMatcher.stand)

    def _moves(self, asked: _Asked, how: Callable[[RollbackMatcher, Path], bool]) -> bool:
        assert asked.reader is not None
        try:
            return how(asked.reader, asked.path)
        except ConstraintFailure:
            return False

    def _note(self, filled: _Asked, path: Path) -> None:
        """Where its reader was asked last, and whether it has failed there."""
        assert filled.reader is not None
        filled.reader.note_asked(path)
        filled.has_failed = filled.reader.matcher.is_error()

    def settle(self) -> list[Filled | None]:
        """What became of each state."""
        mask_RK = self._mask_RK
        found: list[Filled | None] = [
            None if i in self._failed else Filled(0, 0) for i in range(len(self._drafts))
        ]
        rows, tokens = [each.row for each in self._asked], [each.tokens for each in self._asked]
        for each, num in zip(self._asked, num_legal(mask_RK, rows, tokens), strict=True):
            row, size = each.row, 1 + len(each.tokens)
            mask_RK[row + size : row + 1 + len(each.shown)] = 0
            filled = self._settle(each, num, mask_RK[row + num])
            for i, other in each.copy_costs:
                found[i] = filled and self._over_end(filled, self._drafts[i], mask_RK[row + num])
                if other != row:
                    mask_RK[other : other + size] = mask_RK[row : row + size]
        return found

    def _settle(self, asked: _Asked, num: int, last_K: np.ndarray) -> Filled | None:
        """Take back the end, which the library allows also where nothing can follow, and where it has
        hit a limit; None where it hit that at the first place. last_K: the mask after `num` legal
        tokens."""
        num_words, ends = np.count_nonzero(last_K), self._backend.eos_token_ids
        if num_words > len(ends) or (num_words and not any(allows(last_K, end) for end in ends)):
            return Filled(num, num + 1)
        if asked.has_failed or (asked.reader is None and when_free(asked.matcher.is_error)):
            last_K[:] = 0
            return Filled(num, num) if num else None
        matcher, path = asked.matcher, [*asked.path, *asked.tokens[:num]]
        if path or asked.reader is not None:
            matcher = asked.state.copy()
            with without_panic:
                matcher.try_consume_tokens(path)
        if when_free(lambda: matcher.is_stopped() and not matcher.is_accepting()):
            last_K[:] = 0
        return Filled(num, num + bool(last_K.any()))

    def _over_end(self, filled: Filled, draft: Sequence[int], last_K: np.ndarray) -> Filled:
        """The same, where a draft goes on with an end, which the library was not shown."""
        num = filled.num_legal
        if num == len(draft) or draft[num] not in self._backend.eos_token_ids:
            return filled
        return Filled(num + 1, num + 1) if allows(last_K, draft[num]) else filled


def _begin(state: State, *, has_draft: bool) -> tuple[LlguidanceState, Path]:
    """A state with a matcher, and the path to a place from there."""
    if isinstance(state, DraftedState):
        return (state.own, ()) if has_draft else (state.begin, state.path)
    assert isinstance(state, LlguidanceState)
    if state.is_spent:
        raise ConstraintFailure("a state that was to be asked once is asked again")
    return state, ()


def _let_go(reader: RollbackMatcher, *error: object) -> None:
    if error[0] is not None:
        reader.spoil()
    reader.lock.release()


def _lane(asked: _Asked) -> tuple[int, int]:
    return id(asked.state.grammar), asked.state.copy_cost.replica
