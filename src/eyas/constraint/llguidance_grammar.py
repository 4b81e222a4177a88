"""A grammar of llguidance, compiled once, or a few times over.

All copies of a matcher share one lexer, which only one thread can use at a time. So a grammar that many
outputs begin with, or whose masks have held a step up, is compiled again in the background: each of its
*lanes* is a matcher with a lexer of its own.

Promises: which lane an output is in changes nothing but how long its masks take.
Does not know: masks, drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import llguidance

from eyas.constraint.base import ConstraintFailure
from eyas.constraint.borrowed import without_panic
from eyas.constraint.llguidance_states import CanonicalState, LlguidanceState
from eyas.core import GrammarError
from eyas.grammar import Node

if TYPE_CHECKING:
    from eyas.constraint.llguidance import LlguidanceBackend

MANY_STARTS = 4
"""Outputs after which a grammar gets its other lanes, since more of them may be under way at once."""


class LlguidanceGrammar:
    """compile_seconds is without the first mask, first_mask_seconds its time. max_lanes: of it."""

    compile_seconds = 0.0
    first_mask_seconds = 0.0

    def __init__(
        self,
        backend: LlguidanceBackend,
        text: str,
        matcher: llguidance.LLMatcher,
        canonical_trees: Sequence[Node] = (),
        max_lanes: int = 1,
    ) -> None:
        self._state = LlguidanceState
        self._backend = backend
        self._text = text
        # Matchers and no states, which would refer back: cycles of this size add up.
        self._lanes: tuple[llguidance.LLMatcher, ...] = (matcher,)
        self._missing_lanes = max_lanes - 1
        self._num_starts, self._is_slow = 0, False
        self._canonical_trees = tuple(canonical_trees)
        self._canonical: tuple[LlguidanceGrammar, ...] = ()
        self.num_bytes = _num_bytes(text) * (max_lanes + len(self._canonical_trees))

    @property
    def backend(self) -> LlguidanceBackend:
        return self._backend

    @property
    def canonical(self) -> Sequence[LlguidanceGrammar]:
        """Empty until the background thread has compiled them; asked for first, it begins."""
        trees, self._canonical_trees = self._canonical_trees, ()
        if trees:
            self._backend.later(lambda: self._compile_canonical(trees))
        return self._canonical

    def _compile_canonical(self, trees: Sequence[Node]) -> None:
        with suppress(GrammarError):
            grammars = [self._backend.compile_alone(tree) for tree in trees]
            for grammar in grammars:
                grammar._state = CanonicalState
            self._canonical = tuple(grammars)

    def widen(self, *, is_slow: bool) -> None:
        """Have the lanes compiled. is_slow: from then on a draft of a new output is filled in several
        of them at once."""
        self._is_slow |= is_slow
        missing, self._missing_lanes = self._missing_lanes, 0
        if missing > 0:
            self._backend.later(lambda: self._compile_lanes(missing))

    def _compile_lanes(self, num: int) -> None:
        with suppress(ConstraintFailure):
            self._lanes += tuple(self._fresh() for _ in range(num))

    def is_first(self, matcher: llguidance.LLMatcher | None) -> bool:
        """Is it one that all who start share?"""
        return any(matcher is lane for lane in self._lanes)

    def start(self, *, fresh: bool = False) -> LlguidanceState:
        if fresh:
            return self._state(self, self._fresh())
        self._num_starts += 1
        if self._num_starts == MANY_STARTS:
            self.widen(is_slow=False)
        lanes = self._lanes
        own = self._num_starts % len(lanes)
        beside = (*lanes[own + 1 :], *lanes[:own]) if self._is_slow else ()
        return self._state(self, lanes[own], beside=beside)

    def _fresh(self) -> llguidance.LLMatcher:
        with without_panic:
            matcher = self._backend.matcher(self._text)
        if matcher.is_error():
            raise ConstraintFailure("the grammar could not be compiled a second time")
        return matcher


def _num_bytes(text: str) -> int:
    """A grammar, its lexer's automata and its caches, about."""
    return 256 * 1024 + 64 * len(text)
