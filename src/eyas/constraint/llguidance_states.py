"""Where an output stands in a grammar of llguidance.

Promises: a state's matcher is never rolled back, and reads only tokens that were chosen; drafts are
validated without moving it, and their masks come from a second matcher. End-of-sequence tokens are
handled here.
Does not know: mask rows, trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import llguidance

from eyas.constraint.base import ConstraintFailure
from eyas.constraint.library_calls import when_free, without_panic
from eyas.constraint.llguidance_draft import DraftMatcher
from eyas.constraint.llguidance_grammar import LlguidanceGrammar, ReplicaUse

MAX_TOKEN_BYTES = 32
"""Longer tokens are no good guess for a forced text."""
_WHITE = b" \t\r\n"
_NOTHING_FOLLOWS = "NoExtension"
"""How the library's error begins where no text can follow."""
LIMIT_HIT = (
    "the output grammar is too complex to go on from here; lower its repetition counts or lengths"
)


class LlguidanceState:
    """matcher: None after an end-of-sequence token. is_shared: other states have the same matcher.
    replica: what the states of one output share."""

    __slots__ = ("_draft_matcher", "_grammar", "is_shared", "matcher", "num_deviations", "replica")

    def __init__(
        self,
        grammar: LlguidanceGrammar,
        matcher: llguidance.LLMatcher | None,
        num_deviations: int = 0,
        replica: ReplicaUse | None = None,
        *,
        is_shared: bool = True,
    ) -> None:
        self._grammar = grammar
        self._draft_matcher: DraftMatcher | None = None
        self.matcher = matcher
        self.num_deviations = num_deviations
        self.replica = replica or ReplicaUse(0)
        self.is_shared = is_shared

    @property
    def grammar(self) -> LlguidanceGrammar:
        return self._grammar

    def after(self, token: int) -> Self | None:
        """By a copy, so that this state stays what it is."""
        if self.matcher is None:
            return None
        with without_panic:
            backend = self._grammar.backend
            matcher = self.copy()
            if matcher.is_error():
                raise ConstraintFailure(LIMIT_HIT)
            if token in backend.eos_token_ids and matcher.is_accepting():
                return self._with(None)
            if backend.is_nameless(token):
                return None
            if matcher.try_consume_tokens([token]) == 1:
                return self._with(matcher)
            if matcher.is_error():
                raise ConstraintFailure(LIMIT_HIT)
            return None

    def _with(self, matcher: llguidance.LLMatcher | None) -> Self:
        """Return a state of the same output with a matcher of its own."""
        return type(self)(
            self._grammar, matcher, self.num_deviations, self.replica, is_shared=False
        )

    def after_all(self, tokens: Sequence[int]) -> LlguidanceState | None:
        if not tokens:
            self.is_shared = True
            return type(self)(self._grammar, self.matcher, self.num_deviations, self.replica)
        return self._consumed(tokens, self.copy)

    def become(self, tokens: Sequence[int]) -> LlguidanceState | None:
        drafts, self._draft_matcher = self._draft_matcher, None
        reached = self._consumed(tokens, self.copy if self.is_shared else self._give_up)
        if drafts is not None and reached is not None and reached.matcher is not None:
            with without_panic:
                if drafts.follow(tokens):
                    reached._draft_matcher = drafts
        return reached

    def _give_up(self) -> llguidance.LLMatcher:
        matcher, self.matcher = self.matcher, None
        assert matcher is not None
        return matcher

    def _consumed(
        self, tokens: Sequence[int], matcher_here: Callable[[], llguidance.LLMatcher]
    ) -> LlguidanceState | None:
        """Return the state after these tokens. matcher_here: gives a matcher of this place that may be
        moved."""
        plain = self._grammar.backend.spelled(tokens)
        if self.matcher is None or not plain:
            return self._one_by_one(tokens)
        matcher = matcher_here()
        with without_panic:
            num_read = when_free(lambda: matcher.try_consume_tokens(plain))
            if when_free(matcher.is_error):
                raise ConstraintFailure(LIMIT_HIT)
        if num_read < len(plain):
            return None
        return self._with(matcher)._one_by_one(tokens[len(plain) :])

    def _one_by_one(self, tokens: Sequence[int]) -> Self | None:
        """Read tokens that the library cannot be shown together, by a copy for each."""
        reached: Self | None = self
        for token in tokens:
            if reached is None or reached.matcher is None:
                return None
            reached = reached.after(token)
        return reached

    def num_legal(self, tokens: Sequence[int]) -> int:
        """Count the tokens that are legal one after the other, without moving."""
        if self.matcher is None:
            return 0
        matcher, backend = self.matcher, self._grammar.backend
        # The library counts an end as well, and nothing behind it; ids that it does not know break it.
        shown = backend.spelled(tokens)
        if len(shown) < len(tokens) and tokens[len(shown)] in backend.eos_token_ids:
            shown.append(tokens[len(shown)])
        with without_panic:
            if when_free(
                matcher.is_stopped
            ):  # then it takes no token, not even the end that it allows
                is_end = bool(shown) and shown[0] in backend.eos_token_ids
                return int(is_end and when_free(matcher.is_accepting))
            return when_free(lambda: matcher.validate_tokens(shown))

    def forced(self, limit: int) -> list[int]:
        if self.matcher is None or limit <= 0:
            return []
        with without_panic:
            data = self.copy().compute_ff_bytes()[: limit * MAX_TOKEN_BYTES]
        return self._grammar.backend.forced_tokens(data)[:limit] if data else []

    def is_dead_end(self) -> bool:
        """Whether its matcher has failed because nothing can follow, not at a limit."""
        matcher = self.matcher
        return matcher is not None and when_free(matcher.get_error).startswith(_NOTHING_FOLLOWS)

    def draft_matcher(self, borrower: object) -> DraftMatcher:
        """Return the matcher for drafts from here. It is copied anew where it is not fit, or where
        another borrower, who came too late, has not returned it."""
        drafts = self._draft_matcher
        is_lent = drafts is not None and drafts.borrower is not None
        if drafts is None or not drafts.is_fit or (is_lent and drafts.borrower is not borrower):
            drafts = self._draft_matcher = DraftMatcher(self.copy())
        drafts.borrower = borrower
        return drafts

    def copy(self) -> llguidance.LLMatcher:
        """Return a matcher of this place that nobody else has."""
        matcher = self.matcher
        if matcher is None:
            raise ConstraintFailure("nothing follows an end, or the state was given up")
        with without_panic:
            return when_free(matcher.deep_copy)


class CanonicalState(LlguidanceState):
    """A place in a canonical grammar. A text that puts other white space between the parts of JSON is
    read as if it had put the grammar's, so that an unusual line end does not cost all spans to come."""

    __slots__ = ()

    def after(self, token: int) -> Self | None:
        exact = super().after(token)
        backend = self._grammar.backend
        if exact is not None or self.matcher is None or backend.is_nameless(token):
            return exact
        bare = backend.vocabulary.tokens[token].strip(_WHITE)
        for data in (bare, b" " + bare) if bare else (b"",):
            matcher = self.copy()
            tokens = backend.forced_tokens(data) if data else []
            with without_panic:
                num_read = matcher.try_consume_tokens(tokens)
            if num_read == len(tokens):
                reached = self._with(matcher)
                reached.num_deviations += 1
                return reached
        return None

    def after_all(self, tokens: Sequence[int]) -> Self | None:
        return self._one_by_one(tokens)

    def become(self, tokens: Sequence[int]) -> Self | None:
        return self._one_by_one(tokens)
