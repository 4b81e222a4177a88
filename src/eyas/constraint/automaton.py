"""The automaton of one choice: it stands at the root, looks into drafts, and moves once they landed.

Points are shared: two choices that stand after the same tokens of the same automaton share a point,
so its mask is filled once a step. A walk through a draft leaves its points behind for the step's masks,
for forced spans, and for the move along the accepted tokens.

Promises: what is legal depends on the tokens since the start alone. A resource limit that is hit inside
a draft kills that branch; one that is hit at the root counts only if a fresh automaton hits it as well.
Does not know: grammars, models, trees' tensors.

Legend: W tree nodes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from eyas.constraint.base import ConstraintFailure, Grammar, State
from eyas.constraint.budget import BudgetPoint
from eyas.grammar import Budget

LEAST_REST, MOST_REST = 2, 64
"""After a draft that was late: in how many further steps only the root is looked at, at first and at
most."""
SLOW_START, SLOW_EACH = 0.02, 0.0005
"""Seconds that looking for forced spans may take, once and for each time it is asked. A text that is
forced over many thousand characters is slow to find, each time anew."""


class GrammarNode:
    """A place in an output. ahead: tokens that may come next, and the masks here and after each of
    them, where somebody may ask for these again."""

    __slots__ = ("ahead", "budget", "later", "state")

    def __init__(self, state: State, budget: BudgetPoint | None) -> None:
        self.state = state
        self.budget = budget
        self.ahead: tuple[tuple[int, ...], np.ndarray] | None = None
        self.later: dict[int | tuple[int, ...], GrammarNode] = {}

    def after(self, token: int) -> GrammarNode | None:
        """One token later; None where the token is not legal. ConstraintFailure at a limit."""
        known = self.later.get(token)
        if known is not None:
            return known
        budget = self.budget
        if budget is not None:
            only = self.only_token
            if only is not None and token != only:
                return None
            budget = budget.after(token)
        state = self.state.after(token)
        if state is None:
            return None
        point = self.later[token] = GrammarNode(state, budget)
        return point

    def beyond(self, tokens: tuple[int, ...]) -> tuple[GrammarNode | None, int]:
        """As `after`, over at least one of the tokens, and over how many: over all at once where nobody
        has walked and no budget counts them."""
        if len(tokens) == 1 or self.budget is not None or tokens[0] in self.later:
            return self.after(tokens[0]), 1
        point = self.later.get(tokens)
        if point is None:
            state = self.state.after_all(tokens)
            if state is None:
                return None, len(tokens)
            point = self.later[tokens] = GrammarNode(state, None)
        return point, len(tokens)

    @property
    def only_token(self) -> int | None:
        """The token that a budget forces here; it waits until its text can close: not inside a
        character or a header."""
        token = None if self.budget is None else self.budget.must_follow
        if token is None:
            return None
        try:
            return None if self.state.after(token) is None else token
        except Exception:  # its mask will say so
            return None


class DraftMaskLimit:
    """How many tokens of a draft to ask masks for. limit: None is all."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self._rest, self._next_rest, self._size = 0, LEAST_REST, 0

    def held_up(self, size: int) -> None:
        """The draft was slow, or too late, or its root alone was slow: none for a while, which gets
        longer each time. size: of the draft; some are cut short."""
        self._size = max(self._size, size)
        self.limit, self._rest = 0, max(self._rest, self._next_rest)
        self._next_rest = min(2 * self._next_rest, MOST_REST)

    def in_time(self, size: int) -> None:
        """It was looked at as far as `limit`: further the next time."""
        self._size = max(self._size, size)
        if self.limit is None:
            return
        if self._rest:
            self._rest -= 1
            return
        self.limit += 1
        if self.limit >= self._size:
            self.limit, self._next_rest = None, LEAST_REST


class Automaton:
    """grammar: what holds from the first generated token on. token_bytes: what a token stands for; only
    read where there is a budget. reach: how much of its drafts is likely to come in time."""

    def __init__(
        self,
        grammar: Grammar,
        budget: Budget | None = None,
        token_bytes: Callable[[int], bytes] = lambda token: b"",
    ) -> None:
        self._grammar = grammar
        self._budget = None if budget is None else BudgetPoint(budget, token_bytes)
        self._tokens: list[int] = []
        self._passed: list[GrammarNode] = []
        self._spelled: list[State] | None = None
        self._num_asked, self._asked_seconds = 0, 0.0
        self.num_replays = 0
        self.is_forked = False
        self.mask_limit = DraftMaskLimit()
        self._num_replicas = grammar.num_replicas
        self.root = GrammarNode(grammar.start(), self._budget)

    def fork(self) -> Automaton:
        """An independent automaton at the same place."""
        self.is_forked = True
        twin = copy.copy(self)
        twin._tokens, twin._passed = list(self._tokens), []
        twin._num_asked, twin._asked_seconds, twin.num_replays = 0, 0.0, 0
        twin.mask_limit = copy.copy(self.mask_limit)
        return twin

    def held_up(self, size: int) -> None:
        """Others waited for masks of its draft of `size` tokens, or of its root alone. Look less far
        for a while; and where the grammar has got more lanes since, go on in one of those."""
        self.mask_limit.held_up(size)
        if self._grammar.num_replicas > self._num_replicas and self._is_alone:
            self._num_replicas = self._grammar.num_replicas
            with suppress(Exception):  # whatever comes of it, here it can stay
                state = self._grammar.start().after_all(self._tokens)
                if state is not None:
                    self.root = GrammarNode(state, None)

    @property
    def _is_alone(self) -> bool:
        """Does nobody else stand on its root, and no budget count there?"""
        return not (self.is_forked or self.root.budget is not None)

    @property
    def has_budget(self) -> bool:
        """Does a budget still have a say? Then masks alone do not tell what is legal."""
        return self.root.budget is not None

    def walk(self, tokens_W: Sequence[int], parents_W: Sequence[int]) -> list[GrammarNode | None]:
        """Where each node of a draft stands; None for one that is not legal here or has hit a limit,
        and for all below it. Node 0 is the root."""
        points: list[GrammarNode | None] = [self.root]
        for token, parent in zip(tokens_W[1:], parents_W[1:], strict=True):
            above = points[parent]
            points.append(None if above is None else _try(above, token))
        return points

    def heads(
        self, tokens_W: Sequence[int], parents_W: Sequence[int], runs: Sequence[tuple[int, ...]]
    ) -> list[GrammarNode | None]:
        """Where the first node of each of these runs of a draft stands, as `walk` finds it, without a
        point for the nodes behind it, that of the root first; no budget may count here."""
        found: list[GrammarNode | None] = []
        ways: dict[int, tuple[GrammarNode | None, tuple[int, ...]]] = {}
        for first, *behind in runs:
            point, way = (self.root, ()) if first == 0 else ways[parents_W[first]]
            if first and point is not None:
                point = _try_all(point, (*way, tokens_W[first]), shared=self.is_forked)
            found.append(point)
            way = ()
            ways[first] = point, way
            for node in behind:
                way = (*way, tokens_W[node])
                ways[node] = point, way
        return found

    def advance(self, tokens: Sequence[int]) -> None:
        """Move over tokens that were chosen. ConstraintFailure at a limit that holds for them alone."""
        for passed in self._passed:  # forks have had one step to take these points over
            passed.later = {}  # else a fork that stays behind would keep all points after it alive
        self._passed = []
        self._tokens += tokens
        try:
            left = tuple(tokens)
            while left:
                point, num_passed = self._beyond(left)
                if point is None:  # its mask allowed it, so what states share has hit a limit
                    raise ConstraintFailure("a chosen token is not legal any more")
                self._passed.append(self.root)
                self.root, left = point, left[num_passed:]
        except ConstraintFailure:
            self.replay()
        if self._spelled is not None:
            self._spelled = _all_after(self._spelled, tokens)

    def _beyond(self, tokens: tuple[int, ...]) -> tuple[GrammarNode | None, int]:
        """From the root, which is given up where nobody else can stand there and nothing that a walk
        has found is worth more."""
        if not self._is_alone or (self.root.later and not self.root.state.is_expensive_to_copy):
            return self.root.beyond(tokens)
        state = self.root.state.become(tokens)
        return None if state is None else GrammarNode(state, None), len(tokens)

    def replay(self) -> None:
        """Stand at the same place in a fresh automaton, whose limits only this output has used."""
        self.num_replays += 1
        point: GrammarNode | None = GrammarNode(self._grammar.start(fresh=True), self._budget)
        for token in self._tokens:
            assert point is not None
            point = point.after(token)
        assert point is not None, "a chosen token is not legal"
        self.root = point

    def forced(
        self, tokens_W: Sequence[int], parents_W: Sequence[int], limit: int
    ) -> dict[int, list[int]]:
        """By the nodes of a draft that no legal node follows: the span of at most `limit` tokens that
        is likely to come next, whatever the model prefers. It spells a text that leaves no choice, or
        none but white space."""
        self._num_asked += 1
        if self._asked_seconds > SLOW_START + SLOW_EACH * self._num_asked:
            return {}  # it has cost more than it can bring
        begin = time.perf_counter()
        points = self.walk(tokens_W, parents_W)
        legal = [node for node, point in enumerate(points) if point is not None]
        ends = set(legal).difference(parents_W[node] for node in legal if node)
        if self._spelled is None and self._grammar.canonical:
            starts = [grammar.start() for grammar in self._grammar.canonical]
            self._spelled = _all_after(starts, self._tokens)
        # What a canonical grammar forces begins with what the grammar itself does.
        spelled = sorted(self._spelled or (), key=lambda state: state.num_deviations)
        root: list[State] = [*spelled, self.root.state]
        states: list[list[State]] = [root]
        for node in range(1, len(tokens_W)):
            is_legal = points[node] is not None
            above = states[parents_W[node]]
            states.append(_all_after(above, (tokens_W[node],)) if is_legal else [])
        spans = {node: _span(states[node], limit) for node in sorted(ends)}
        self._asked_seconds += time.perf_counter() - begin
        return {node: span for node, span in spans.items() if span}


def _try(point: GrammarNode, token: int) -> GrammarNode | None:
    try:
        return point.after(token)
    except Exception:  # whatever a draft does to its automaton, it costs the draft alone
        return None


def _try_all(point: GrammarNode, tokens: tuple[int, ...], *, shared: bool) -> GrammarNode | None:
    """The same over several tokens, by a point that nobody else finds, or one that others share."""
    try:
        if not shared:
            state = point.state.after_all(tokens)
            return None if state is None else GrammarNode(state, None)
        reached: GrammarNode | None = point
        while tokens and reached is not None:
            reached, num_passed = reached.beyond(tokens)
            tokens = tokens[num_passed:]
        return reached
    except Exception:
        return None


def _all_after(states: Sequence[State], tokens: Sequence[int]) -> list[State]:
    """The states that follow, without those for which a token is not legal."""
    left: list[State] = []
    for first in states:
        try:
            state = first.after_all(tokens)
        except Exception:  # as in `_try`
            state = None
        if state is not None:
            left.append(state)
    return left


def _span(states: Sequence[State], limit: int) -> list[int]:
    """What the first of the states is sure of."""
    for state in states:
        try:
            span = state.forced(limit)
        except Exception:  # as in `_try`
            continue
        if span:
            return span
    return []
