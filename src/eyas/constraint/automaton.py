"""The automaton of one choice: its state at the root, what is legal in a draft, and the move along the
tokens that were chosen.

Promises: what is legal depends on the tokens since the start alone. A resource limit that is hit inside
a draft costs that branch; a limit that is hit at the root counts only if a fresh automaton hits it too.
Does not know: grammars, models, trees' tensors.

Legend: W tree nodes.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence

from eyas.constraint.base import ConstraintFailure, Grammar, State
from eyas.constraint.budget import BudgetCount
from eyas.grammar import Budget

log = logging.getLogger(__name__)

LEAST_REST, MOST_REST = 2, 64
"""After a draft that was late: the number of further steps in which only the root gets a mask, at first
and at most."""
SLOW_START, SLOW_EACH = 0.02, 0.0005
"""Seconds that looking for forced spans may take, once and for each time it is asked. A text that is
forced over many thousand characters is slow to find, each time anew."""


class DraftMaskLimit:
    """How many levels of a draft to ask masks for. limit: None is all."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self._rest, self._next_rest, self._size = 0, LEAST_REST, 0

    def held_up(self, size: int) -> None:
        """Note that a draft was slow or late, or its root alone was slow: the limit is 0 for a while,
        which gets longer each time. size: levels of the draft; some drafts are cut short."""
        self._size = max(self._size, size)
        self.limit, self._rest = 0, max(self._rest, self._next_rest)
        self._next_rest = min(2 * self._next_rest, MOST_REST)

    def in_time(self, size: int) -> None:
        """Note that masks up to `limit` were in time: the limit grows by a level."""
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
    """grammar: holds from the first generated token on. token_bytes: returns a token's bytes; only
    called where there is a budget. root: the state at the tree's root. mask_limit: how many levels of
    its drafts are likely to get their masks in time."""

    def __init__(
        self,
        grammar: Grammar,
        budget: Budget | None = None,
        token_bytes: Callable[[int], bytes] = lambda token: b"",
    ) -> None:
        self._grammar = grammar
        self._start_budget = None if budget is None else BudgetCount(budget, token_bytes)
        self._tokens: list[int] = []
        self._spelled: list[State] | None = None
        self._num_asked, self._asked_seconds = 0, 0.0
        self._num_replicas = grammar.num_replicas
        self.num_replays = 0
        self.mask_limit = DraftMaskLimit()
        self.budget = self._start_budget
        self.root = grammar.start()

    def fork(self) -> Automaton:
        """Return an independent automaton at the same place."""
        root = self.root.after_all(())
        assert root is not None
        fork = copy.copy(self)
        fork.root, fork._tokens = root, list(self._tokens)
        fork._num_asked, fork._asked_seconds, fork.num_replays = 0, 0.0, 0
        fork.mask_limit = copy.copy(self.mask_limit)
        return fork

    def held_up(self, size: int) -> None:
        """Note that others waited for masks of its draft of `size` levels, or of its root alone: ask
        for fewer levels for a while; and where the grammar has more replicas since, go on in one of
        them."""
        self.mask_limit.held_up(size)
        if self._grammar.num_replicas > self._num_replicas:
            self._num_replicas = self._grammar.num_replicas
            try:
                self.root = self._grammar.start().after_all(self._tokens) or self.root
            except Exception:  # the present replica serves as well
                log.debug("a replica of a grammar could not be used", exc_info=True)

    def legal(self, tokens_W: Sequence[int], parents_W: Sequence[int]) -> list[bool]:
        """Return whether each node of a draft is legal, node 0 being the root, which is. What a draft
        does to the library costs the draft alone: where it fails, nodes count as illegal."""
        legal, is_known = [True] * len(tokens_W), [True] + [False] * (len(tokens_W) - 1)
        leaves = set(range(len(tokens_W))).difference(parents_W)
        for leaf in sorted(leaves):
            path = path_to(leaf, parents_W)
            num = sum(map(is_known.__getitem__, path))  # nodes from the root side on
            if all(map(legal.__getitem__, path[:num])) and num < len(path):
                num = self._num_legal([tokens_W[node] for node in path])
            for place, node in enumerate(path):
                if not is_known[node]:
                    legal[node], is_known[node] = place < num and legal[parents_W[node]], True
        if self.budget is not None:
            self._close(legal, tokens_W, parents_W)
        return legal

    def _num_legal(self, path: Sequence[int]) -> int:
        try:
            return self._grammar.backend.validate(self.root, path)
        except Exception:
            log.debug("a draft could not be validated", exc_info=True)
            return 0

    def _close(self, legal: list[bool], tokens_W: Sequence[int], parents_W: Sequence[int]) -> None:
        """Mark as illegal what stands where a budget forces another token."""
        due = self.due(tokens_W, parents_W)
        closing = [False] * len(legal)
        for node, token in due.items():
            path = [tokens_W[each] for each in path_to(node, parents_W)]
            closing[node] = legal[node] and self._num_legal([*path, token]) > len(path)
        for node in range(1, len(legal)):
            above = parents_W[node]
            is_forced = closing[above] and tokens_W[node] != due[above]
            legal[node] = legal[node] and legal[above] and not is_forced

    def due(self, tokens_W: Sequence[int], parents_W: Sequence[int]) -> dict[int, int]:
        """Return by node the token that a budget wants to follow: the only legal one where the grammar
        allows it. Where the grammar does not, inside a character or a header, the budget waits."""
        counts = [self.budget]
        for token, above in zip(tokens_W[1:], parents_W[1:], strict=True):
            count = counts[above]
            counts.append(None if count is None else count.after(token))
        due = {node: count.must_follow for node, count in enumerate(counts) if count is not None}
        return {node: token for node, token in due.items() if token is not None}

    def advance(self, tokens: Sequence[int]) -> None:
        """Move over tokens that were chosen. ConstraintFailure at a limit that the tokens hit by
        themselves."""
        self._tokens += tokens
        try:
            state = self.root.become(tokens)
            if state is None:  # its mask allowed it, so what states share has hit a limit
                raise ConstraintFailure("a chosen token is not legal any more")
            self.root = state
        except ConstraintFailure:
            self.replay()
        for token in tokens:
            self.budget = None if self.budget is None else self.budget.after(token)
        if self._spelled is not None:
            self._spelled = _all_after(self._spelled, tokens)

    def replay(self) -> None:
        """Move to the same place in a fresh automaton, whose limits only this output has used."""
        self.num_replays += 1
        state = self._grammar.start(fresh=True).become(self._tokens)
        assert state is not None, "a chosen token is not legal"
        self.root = state

    def forced(
        self, tokens_W: Sequence[int], parents_W: Sequence[int], limit: int
    ) -> dict[int, list[int]]:
        """Return, for nodes of a draft that no legal node follows, the span of at most `limit` tokens
        that is likely to come next, whatever the model prefers. The span spells a text that leaves no
        choice, or no choice but white space."""
        self._num_asked += 1
        if self._asked_seconds > SLOW_START + SLOW_EACH * self._num_asked:
            return {}  # it has cost more than it can bring
        begin = time.perf_counter()
        legal = self.legal(tokens_W, parents_W)
        nodes = [node for node, is_legal in enumerate(legal) if is_legal]
        ends = set(nodes).difference(parents_W[node] for node in nodes if node)
        if self._spelled is None and self._grammar.canonical:
            starts = [grammar.start() for grammar in self._grammar.canonical]
            self._spelled = _all_after(starts, self._tokens)
        # What a canonical grammar forces begins with what the grammar itself does.
        spelled = sorted(self._spelled or (), key=lambda state: state.num_deviations)
        states: dict[int, list[State]] = {0: [*spelled, self.root]}
        for node in nodes[1:]:
            states[node] = _all_after(states[parents_W[node]], (tokens_W[node],))
        spans = {node: _span(states[node], limit) for node in sorted(ends)}
        self._asked_seconds += time.perf_counter() - begin
        return {node: span for node, span in spans.items() if span}


def path_to(node: int, parents_W: Sequence[int]) -> list[int]:
    """Return the nodes from below the root down to a node, itself included; of the root none."""
    path: list[int] = []
    while node > 0:
        path.append(node)
        node = parents_W[node]
    return path[::-1]


def _all_after(states: Sequence[State], tokens: Sequence[int]) -> list[State]:
    """Return the states that follow, without those for which a token is not legal."""
    reached: list[State] = []
    for first in states:
        try:
            state = first.after_all(tokens)
        except Exception:  # whatever a draft does to the library, it costs the draft alone
            log.debug("a state of a grammar could not advance over a draft", exc_info=True)
            state = None
        if state is not None:
            reached.append(state)
    return reached


def _span(states: Sequence[State], limit: int) -> list[int]:
    """Return what the first of the states that can tell is sure of."""
    for state in states:
        try:
            span = state.forced(limit)
        except Exception:  # as in `_all_after`
            log.debug("a forced span could not be computed", exc_info=True)
            continue
        if span:
            return span
    return []
