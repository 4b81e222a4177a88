"""Where an output stands in a grammar of llguidance.

Promises: a state is a matcher that nobody advances, so it stays what it is until it is given up; copies
go through its drafts, or where these are dear a reader, which follows where the state goes.
End-of-sequence tokens are handled here.
Does not know: masks, drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import llguidance

from eyas.constraint.base import ConstraintFailure, State
from eyas.constraint.library_calls import when_free, without_panic
from eyas.constraint.llguidance_grammar import LlguidanceGrammar
from eyas.constraint.llguidance_rollback import LIMIT_HIT, CopyCost, Path, RollbackMatcher

MAX_TOKEN_BYTES = 32
"""Longer tokens are no good guess for a forced text."""
_WHITE = b" \t\r\n"
LONG = 16
"""Tokens of a path; a draft that goes on behind it has a matcher of its own there."""


class LlguidanceState:
    """matcher: None after an end-of-sequence token. place: its output's. is_spent: a draft has gone
    through its own matcher, so that masks may be asked for no more."""

    __slots__ = (
        "_copy",
        "_grammar",
        "_reader",
        "copy_cost",
        "is_spent",
        "matcher",
        "num_deviations",
    )

    def __init__(
        self,
        grammar: LlguidanceGrammar,
        matcher: llguidance.LLMatcher | None,
        num_deviations: int = 0,
        copy_cost: CopyCost | None = None,
    ) -> None:
        self._grammar = grammar
        self.copy_cost = copy_cost or CopyCost(0)
        self._reader: RollbackMatcher | None = None
        self._copy: llguidance.LLMatcher | None = None
        self.matcher = matcher
        self.num_deviations = num_deviations
        self.is_spent = False

    @property
    def grammar(self) -> LlguidanceGrammar:
        return self._grammar

    @property
    def is_expensive_to_copy(self) -> bool:
        return self.copy_cost.is_expensive_to_copy

    def after(self, token: int) -> State | None:
        if self.matcher is None:
            return None
        return self.drafted((), token) if self.is_expensive_to_copy else self._after(token)

    def _after(self, token: int) -> Self | None:
        with without_panic:
            backend = self._grammar.backend
            matcher = self.copy()
            if matcher.is_error():
                raise ConstraintFailure(LIMIT_HIT)
            if token in backend.eos_token_ids and matcher.is_accepting():
                return self._with(None)
            if backend.is_nameless(token):
                return None
            if self.copy_cost.read(matcher, (token,)) == 1:
                return self._with(matcher)
            if matcher.is_error():
                raise ConstraintFailure(LIMIT_HIT)
            return None

    def drafted(self, path: Path, token: int) -> State | None:
        """As `after`, at the end of a path, without a copy."""
        reader = self.reader()
        with without_panic, reader.lock:
            backend = self._grammar.backend
            if token in backend.eos_token_ids and reader.stand(path):
                if when_free(reader.matcher.is_accepting):
                    return self._with(None)
            if backend.is_nameless(token) or not reader.stand((*path, token)):
                return None
            return DraftedState(self, (*path, token))

    def _with(self, matcher: llguidance.LLMatcher | None) -> Self:
        """A state of the same output."""
        return type(self)(self._grammar, matcher, self.num_deviations, self.copy_cost)

    def after_all(self, tokens: Sequence[int]) -> LlguidanceState | None:
        return self._consumed(tokens, self.copy)

    def become(self, tokens: Sequence[int]) -> LlguidanceState | None:
        reader, self._reader, self._copy = self._reader, None, None
        if reader is None or not reader.lock.acquire(blocking=False):
            return self._moved(tokens)
        try:
            reached = self._moved(tokens)
            if reached is not None and reached.matcher is not None:
                if reader.follow(tuple(tokens), reached.matcher):
                    reached._reader = reader
            return reached
        finally:
            reader.lock.release()

    def _moved(self, tokens: Sequence[int]) -> LlguidanceState | None:
        is_shared = self._grammar.is_first(self.matcher)
        return self._consumed(tokens, self.copy if is_shared else self._give_up)

    def _give_up(self) -> llguidance.LLMatcher:
        matcher, self.matcher = self.matcher, None
        assert matcher is not None
        return matcher

    def _consumed(
        self, tokens: Sequence[int], matcher_here: Callable[[], llguidance.LLMatcher]
    ) -> LlguidanceState | None:
        """The state after these tokens, read by a matcher that stands here and may be moved."""
        plain = self._grammar.backend.spelled(tokens)
        if self.matcher is None or not plain:
            return self._one_by_one(tokens)
        matcher = matcher_here()
        with without_panic:
            num_taken = when_free(lambda: self.copy_cost.read(matcher, plain))
            if when_free(matcher.is_error):
                raise ConstraintFailure(LIMIT_HIT)
        if num_taken < len(plain):
            return None
        return self._with(matcher)._one_by_one(tokens[len(plain) :])

    def _one_by_one(self, tokens: Sequence[int]) -> Self | None:
        """After tokens that the library cannot be shown together, by a copy for each."""
        reached: Self | None = self
        for token in tokens:
            if reached is None or reached.matcher is None:
                return None
            reached = reached._after(token)
        return reached

    def forced(self, limit: int) -> list[int]:
        if self.matcher is None or limit <= 0:
            return []
        with without_panic:
            data = self.copy().compute_ff_bytes()[: limit * MAX_TOKEN_BYTES]
        return self._grammar.backend.forced_tokens(data)[:limit] if data else []

    def expect_draft(self, *, once: bool = False) -> None:
        """Have at hand what a draft from here will go through. once: that may be its own matcher."""
        if once:
            self._copy = self.matcher
        elif self.copy_cost.is_expensive_to_copy:
            self.reader()
        elif self._copy is None:
            self._copy = self.copy()

    def copy_for_draft(self) -> llguidance.LLMatcher:
        """A copy for one draft, the one at hand if there is one."""
        copy, self._copy = self._copy, None
        self.is_spent |= copy is not None and copy is self.matcher
        return copy or self.copy()

    def reader(self) -> RollbackMatcher:
        """For drafts from here; where it is in use, another."""
        if self._reader is None or self._reader.lock.locked():
            self._reader = self.another_reader()
        return self._reader

    def another_reader(self) -> RollbackMatcher:
        """One that nobody else has."""
        copy = self.copy()  # whoever asks: the one at hand is for the thread that steps
        assert self.matcher is not None
        return RollbackMatcher(copy, self.matcher, self.copy_cost)

    def copy(self) -> llguidance.LLMatcher:
        """A matcher that stands here and is the caller's own."""
        if self.matcher is None:
            raise ConstraintFailure("nothing follows an end, or the state was given up")
        return self.copy_cost.copied(self.matcher)


class DraftedState:
    """Where a draft leads from a state that is dear to copy; its reader goes there."""

    __slots__ = ("_own", "begin", "path")
    num_deviations = 0

    def __init__(self, begin: LlguidanceState, path: Path) -> None:
        self._own: LlguidanceState | None = None
        self.begin = begin
        self.path = path

    @property
    def grammar(self) -> LlguidanceGrammar:
        return self.begin.grammar

    @property
    def is_expensive_to_copy(self) -> bool:
        return self.begin.is_expensive_to_copy

    @property
    def own(self) -> LlguidanceState:
        """The same place with a matcher of its own."""
        if self._own is None:
            self._own = self.begin.after_all(self.path)
        if self._own is None:  # it was legal, so what states share has hit a limit
            raise ConstraintFailure(LIMIT_HIT)
        return self._own

    def after(self, token: int) -> State | None:
        if len(self.path) < LONG:
            return self.begin.drafted(self.path, token)
        return self.own.after(token)

    def after_all(self, tokens: Sequence[int]) -> State | None:
        return self.own.after_all(tokens)

    def become(self, tokens: Sequence[int]) -> State | None:
        return self.own.become(tokens)

    def forced(self, limit: int) -> list[int]:
        return self.own.forced(limit)


class CanonicalState(LlguidanceState):
    """A place in a canonical grammar. A text that puts other white space between the parts of JSON is
    read as if it had put the grammar's, so that one line's end does not cost all spans to come."""

    __slots__ = ()

    def after(self, token: int) -> Self | None:
        return self._one_by_one((token,))

    def _after(self, token: int) -> Self | None:
        exact = super()._after(token)
        backend = self._grammar.backend
        if exact is not None or backend.is_nameless(token):
            return exact
        bare = backend.vocabulary.tokens[token].strip(_WHITE)
        for data in (bare, b" " + bare) if bare else (b"",):
            matcher = self.copy()
            tokens = backend.forced_tokens(data) if data else []
            with without_panic:
                num_taken = matcher.try_consume_tokens(tokens)
            if num_taken == len(tokens):
                reached = self._with(matcher)
                reached.num_deviations += 1
                return reached
        return None

    def _consumed(
        self, tokens: Sequence[int], matcher_here: Callable[[], llguidance.LLMatcher]
    ) -> Self | None:
        return self._one_by_one(tokens)
