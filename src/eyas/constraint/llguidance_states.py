"""Where an output stands in a grammar of llguidance.

Promises: a state is a matcher that nobody advances, so it stays what it is until it is given up; what
goes through a draft is another one, a copy or a *reader*: a matcher that comes back from its drafts and
then reads what was chosen beside the state's own, since copies grow with the output.
End-of-sequence tokens are handled here.
Does not know: masks, drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import llguidance

from eyas.constraint.base import ConstraintFailure, State, one_by_one
from eyas.constraint.borrowed import when_free, without_panic

if TYPE_CHECKING:
    from eyas.constraint.llguidance_grammar import LlguidanceGrammar

MAX_TOKEN_BYTES = 32
"""Longer tokens are no good guess for a forced text."""
DEAR_SECONDS = 3e-5
"""Who has been copied for as long has a reader from then on. Nothing but speed hangs on it."""
_WHITE = b" \t\r\n"
_LIMIT_HIT = (
    "the output grammar is too complex to go on from here; lower its repetition counts or lengths"
)


class Place:
    """Where an output is among the lanes of its grammar, as long as a state of it lives."""

    __slots__ = ("__weakref__", "lane")

    def __init__(self, lane: int) -> None:
        self.lane = lane


class LlguidanceState:
    """matcher: None after an end-of-sequence token. place: its output's."""

    __slots__ = ("_grammar", "_is_dear", "_reader", "matcher", "num_deviations", "place")

    def __init__(
        self,
        grammar: LlguidanceGrammar,
        matcher: llguidance.LLMatcher | None,
        num_deviations: int = 0,
        place: Place | None = None,
    ) -> None:
        self._grammar = grammar
        self.place = place or Place(0)
        self._reader: llguidance.LLMatcher | None = None
        self._is_dear = False
        self.matcher = matcher
        self.num_deviations = num_deviations

    @property
    def grammar(self) -> LlguidanceGrammar:
        return self._grammar

    def after(self, token: int) -> LlguidanceState | None:
        if self.matcher is None:
            return None
        with without_panic:
            return self._after(token)

    def _after(self, token: int) -> LlguidanceState | None:
        backend = self._grammar.backend
        matcher = self.copy()
        if matcher.is_error():
            raise ConstraintFailure(_LIMIT_HIT)
        if token in backend.eos_token_ids and matcher.is_accepting():
            return self._with(None)
        if backend.is_nameless(token):
            return None
        if matcher.try_consume_tokens([token]) == 1:
            return self._with(matcher)
        if matcher.is_error():
            raise ConstraintFailure(_LIMIT_HIT)
        return None

    def _with(self, matcher: llguidance.LLMatcher | None) -> Self:
        """A state of the same output."""
        return type(self)(self._grammar, matcher, self.num_deviations, self.place)

    def after_all(self, tokens: Sequence[int]) -> State | None:
        return self._consumed(tokens, self.copy)

    def become(self, tokens: Sequence[int]) -> State | None:
        reader, self._reader = self._reader, None
        is_shared = self._grammar.is_first(self.matcher)
        return self._consumed(tokens, self.copy if is_shared else self._give_up, reader)

    def _give_up(self) -> llguidance.LLMatcher:
        matcher, self.matcher = self.matcher, None
        assert matcher is not None
        return matcher

    def _follow(self, reader: llguidance.LLMatcher, tokens: list[int]) -> None:
        """Have a reader that stood before these tokens stand here; without it a copy is made."""
        with suppress(ConstraintFailure), without_panic:
            if reader.try_consume_tokens(tokens) == len(tokens) and not reader.is_error():
                self._reader = reader

    def _consumed(
        self,
        tokens: Sequence[int],
        matcher_here: Callable[[], llguidance.LLMatcher],
        reader: llguidance.LLMatcher | None = None,
    ) -> State | None:
        """The state after these tokens, read by a matcher that stands here and may be moved, and by a
        reader where the library is shown them all."""
        plain = self._grammar.backend.spelled(tokens)
        if self.matcher is None or not plain:
            return one_by_one(self, tokens)
        matcher = matcher_here()
        with without_panic:
            num_taken = when_free(lambda: matcher.try_consume_tokens(plain))
            if when_free(matcher.is_error):
                raise ConstraintFailure(_LIMIT_HIT)
        if num_taken < len(plain):
            return None
        reached = self._with(matcher)
        if reader is not None and len(plain) == len(tokens):
            reached._is_dear = self._is_dear
            reached._follow(reader, plain)
        return one_by_one(reached, tokens[len(plain) :])

    def forced(self, limit: int) -> list[int]:
        if self.matcher is None or limit <= 0:
            return []
        with without_panic:
            data = self.copy().compute_ff_bytes()[: limit * MAX_TOKEN_BYTES]
        return self._grammar.backend.forced_tokens(data)[:limit] if data else []

    def expect_draft(self) -> None:
        """Have the matcher at hand that a draft will go through."""
        if self.matcher is not None and self._reader is None:
            begin = time.perf_counter()
            self._reader = self.copy()
            self._is_dear = time.perf_counter() - begin > DEAR_SECONDS

    def for_draft(self) -> tuple[llguidance.LLMatcher, bool]:
        """A matcher that stands here and is the caller's own, and whether it is to `come_back`."""
        self.expect_draft()
        reader, self._reader = self._reader, None
        assert reader is not None
        return reader, self._is_dear

    def come_back(self, reader: llguidance.LLMatcher) -> None:
        """A matcher stands here again. Its last mask must be the one of here: the library keeps it by
        the lexer's state and the number of the parser's row, also on the way back."""
        self._reader = reader

    def copy(self) -> llguidance.LLMatcher:
        """A matcher that stands here and is the caller's own."""
        assert self.matcher is not None
        with without_panic:
            return when_free(self.matcher.deep_copy)


class CanonicalState(LlguidanceState):
    """A place in a canonical grammar. A text that puts other white space between the parts of JSON is
    read as if it had put the grammar's, so that one line's end does not cost all spans to come."""

    __slots__ = ()

    def after(self, token: int) -> LlguidanceState | None:
        exact = super().after(token)
        backend = self._grammar.backend
        if exact is not None or self.matcher is None or backend.is_nameless(token):
            return exact
        bare = backend.vocabulary.tokens[token].strip(_WHITE)
        for data in (bare, b" " + bare) if bare else (b"",):
            matcher = self.copy()
            tokens = backend.forced_tokens(data) if data else []
            with without_panic:
                num_taken = matcher.try_consume_tokens(tokens)
            if num_taken == len(tokens):
                return CanonicalState(self._grammar, matcher, self.num_deviations + 1, self.place)
        return None

    def _consumed(
        self,
        tokens: Sequence[int],
        matcher_here: Callable[[], llguidance.LLMatcher],
        reader: llguidance.LLMatcher | None = None,
    ) -> State | None:
        return one_by_one(self, tokens)
