"""A grammar of llguidance, compiled once or several times.

All copies of a matcher share one lexer, which one thread can use at a time. So a grammar with many
running outputs is compiled again in the background: each *replica* is a matcher with a lexer of its
own. A lexer gets quicker as it is used, so there are no more replicas than needed, and an output that
starts while no other runs is given the first one.

A lexer that has hit a limit is of no use from then on. Its outputs go on with fresh ones, and the
replica gets another, so that this happens to no output that starts later.

Promises: an output's replica changes nothing but how long the output waits for its masks.
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
from eyas.core import GrammarError
from eyas.grammar import Node

FEW = 2
"""Outputs in each replica; with more of them the number of replicas is doubled."""


class ReplicaUse:
    """One running output's use of a replica; shared by the output's states. number: of the replica."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


class _Replica:
    """matcher: before the first token (no state, which would refer back to the grammar: cycles of this
    size add up). uses: of the running outputs."""

    __slots__ = ("matcher", "uses")

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher
        self.uses: WeakSet[ReplicaUse] = WeakSet()


class Start(Protocol):
    """Makes the state at the beginning of an output."""

    def __call__(
        self,
        grammar: LlguidanceGrammar,
        matcher: llguidance.LLMatcher,
        *,
        replica: ReplicaUse | None = None,
        is_shared: bool = True,
    ) -> State: ...


class LlguidanceGrammar:
    """compile_seconds: without the first mask; first_mask_seconds: that mask's time."""

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
        self._is_mending = False
        self._canonical_trees = tuple(canonical_trees)
        self._canonical: tuple[Grammar, ...] = ()

    @property
    def num_bytes(self) -> int:
        """About the size of a grammar, its lexer's automata and its caches, once for each
        compilation."""
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
        """The canonical grammars. The first call has the background thread compile them; until then
        there are none."""
        trees, self._canonical_trees = self._canonical_trees, ()
        if trees:
            self._backend.later(lambda: self._compile_canonical(trees))
        return self._canonical

    def _compile_canonical(self, trees: Sequence[Node]) -> None:
        with suppress(GrammarError):
            self._canonical = tuple(self._backend.compile_alone(tree) for tree in trees)

    def started_by(self, state: Start) -> Self:
        """Start outputs with another kind of state, which is never asked for masks. Returns itself."""
        self._state, self._max_replicas = state, 1
        return self

    def _compile_replicas(self, num: int) -> None:
        with suppress(ConstraintFailure):
            self._replicas += tuple(_Replica(self._fresh()) for _ in range(num))

    def _mend(self) -> None:
        """Give another matcher to each replica whose lexer has hit a limit."""
        self._is_mending = False
        for replica in self._replicas:
            with suppress(ConstraintFailure):
                if self._backend.is_used_up(replica.matcher):
                    replica.matcher = self._fresh()

    def start(self, *, fresh: bool = False) -> State:
        if fresh:
            if not self._is_mending:
                self._is_mending = True
                self._backend.later(self._mend)
            return self._state(self, self._fresh(), is_shared=False)
        replicas = self._replicas
        number = min(range(len(replicas)), key=lambda i: len(replicas[i].uses))
        use, replica = ReplicaUse(number), replicas[number]
        replica.uses.add(use)
        if len(replica.uses) > FEW and self._num_wanted == len(replicas) < self._max_replicas:
            missing = min(len(replicas), self._max_replicas - len(replicas))
            self._num_wanted += missing
            self._backend.later(lambda: self._compile_replicas(missing))
        return self._state(self, replica.matcher, replica=use)

    def _fresh(self) -> llguidance.LLMatcher:
        with without_panic:
            matcher = self._backend.matcher(self._text)
        if matcher.is_error():
            raise ConstraintFailure("the grammar could not be compiled a second time")
        return matcher
