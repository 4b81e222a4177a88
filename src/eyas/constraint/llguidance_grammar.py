"""A grammar of llguidance, compiled once, or a few times over.

All copies of a matcher share one lexer, which only one thread can use at a time. So a grammar with many
outputs under way is compiled again in the background: each of its *lanes* is a matcher with a lexer of
its own. A lexer gets quicker as it is used, so there are no more lanes than needed.

A lexer that has hit a limit is of no use to anybody from then on. Its outputs go on with fresh ones,
and the lane gets another, so that this happens to no output that starts later.

Promises: which lane an output is in changes nothing but how long it waits for its masks.
Does not know: masks, drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, Self
from weakref import WeakSet

import llguidance

from eyas.constraint.base import ConstraintFailure, Grammar, State
from eyas.constraint.library_calls import without_panic
from eyas.constraint.llguidance_library import LlguidanceLibrary
from eyas.constraint.llguidance_rollback import CopyCost
from eyas.core import GrammarError
from eyas.grammar import Node

FEW = 2
"""Outputs in each lane; with more of them there are to be twice as many lanes."""


class _Replica:
    """matcher: before the first token. No state, which would refer back: cycles of this size add up.
    places: of the outputs under way."""

    __slots__ = ("copy_costs", "matcher")

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher
        self.copy_costs: WeakSet[CopyCost] = WeakSet()


class Start(Protocol):
    """Makes the state at the beginning of an output. place: the output's, a new one where there is
    none."""

    def __call__(
        self,
        grammar: LlguidanceGrammar,
        matcher: llguidance.LLMatcher,
        *,
        copy_cost: CopyCost | None = None,
    ) -> State: ...


class LlguidanceGrammar:
    """compile_seconds is without the first mask, first_mask_seconds its time."""

    compile_seconds = 0.0
    first_mask_seconds = 0.0

    def __init__(
        self,
        backend: LlguidanceLibrary,
        text: str,
        matcher: llguidance.LLMatcher,
        state: Start,
        canonical_trees: Sequence[Node] = (),
    ) -> None:
        self._state = state
        self._backend = backend
        self._text = text
        self._replicas: tuple[_Replica, ...] = (_Replica(matcher),)
        self._num_wanted, self._max_replicas = 1, backend.max_replicas
        self._replaced: set[int] = set()
        self._is_mending = False
        self._canonical_trees = tuple(canonical_trees)
        self._canonical: tuple[Grammar, ...] = ()

    @property
    def num_bytes(self) -> int:
        """A grammar, its lexer's automata and its caches, about; as often as it is compiled."""
        once = 256 * 1024 + 64 * len(self._text)
        return once * (len(self._replicas) + max(len(self._canonical_trees), len(self._canonical)))

    @property
    def num_replicas(self) -> int:
        return len(self._replicas)

    @property
    def backend(self) -> LlguidanceLibrary:
        return self._backend

    @property
    def canonical(self) -> Sequence[Grammar]:
        """Empty until the background thread has compiled them; asked for first, it begins."""
        trees, self._canonical_trees = self._canonical_trees, ()
        if trees:
            self._backend.later(lambda: self._compile_canonical(trees))
        return self._canonical

    def _compile_canonical(self, trees: Sequence[Node]) -> None:
        with suppress(GrammarError):
            self._canonical = tuple(self._backend.compile_alone(tree) for tree in trees)

    def started_by(self, state: Start) -> Self:
        """The same, with other states, for whose masks nobody asks."""
        self._state, self._max_replicas = state, 1
        return self

    def _compile_replicas(self, num: int) -> None:
        with suppress(ConstraintFailure):
            self._replicas += tuple(_Replica(self._fresh()) for _ in range(num))

    def _mend(self) -> None:
        """Another matcher for each lane whose lexer is used up."""
        self._is_mending = False
        for replica in self._replicas:
            with suppress(ConstraintFailure):
                if self._backend.is_used_up(replica.matcher):
                    fresh = self._fresh()
                    self._replaced.add(
                        id(replica.matcher)
                    )  # its outputs may still stand at their start
                    replica.matcher = fresh

    def is_first(self, matcher: llguidance.LLMatcher | None) -> bool:
        """Is it one that all who start share?"""
        return (
            any(matcher is replica.matcher for replica in self._replicas)
            or id(matcher) in self._replaced
        )

    def start(self, *, fresh: bool = False) -> State:
        if fresh:
            if not self._is_mending:
                self._is_mending = True
                self._backend.later(self._mend)
            return self._state(self, self._fresh())
        replicas = self._replicas
        number = min(range(len(replicas)), key=lambda i: len(replicas[i].copy_costs))
        copy_cost, replica = CopyCost(number), replicas[number]
        replica.copy_costs.add(copy_cost)
        if len(replica.copy_costs) > FEW and self._num_wanted == len(replicas) < self._max_replicas:
            missing = min(len(replicas), self._max_replicas - len(replicas))
            self._num_wanted += missing
            self._backend.later(lambda: self._compile_replicas(missing))
        return self._state(self, replica.matcher, copy_cost=copy_cost)

    def _fresh(self) -> llguidance.LLMatcher:
        with without_panic:
            matcher = self._backend.matcher(self._text)
        if matcher.is_error():
            raise ConstraintFailure("the grammar could not be compiled a second time")
        return matcher
