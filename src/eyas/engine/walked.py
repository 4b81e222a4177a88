"""One sequence's tree as its automaton sees it, and which sequences of a step need not be waited for.

A sequence is asked for its masks *apart* when its grammar is often slow: by a library call of its own,
which the step does not wait for.

Promises: the sequences of one grammar are asked apart all together or not at all, since calls of one
grammar wait for each other; a call that is under way stays apart.
Does not know: rows of other sequences, when masks are asked for, what the device makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eyas.constraint.automaton import Point
from eyas.constraint.base import Grammar
from eyas.constraint.mask_batch import MaskRequest
from eyas.engine.sequence import Sequence

OFTEN_SLOW = 1 / 64
"""A grammar is asked apart when a larger share of its last drafts was slow."""
MOST_APART = 6
"""Threads for calls apart: more sequences are not asked so in one step, since each call wants the
interpreter's lock."""
APART_PARTS = 2
"""At most one in so many of a step's sequences is asked apart, so that most of a step goes on."""


@dataclass(slots=True, eq=False)
class Walked:
    """One sequence's tree: where each node stands. None in `points`: not legal. tokens: of a draft of
    which only the root was looked at, since its masks will tell the rest. requests: the masks of its
    points, in order, or that of the root with all behind it. is_apart: it is asked apart; may_be_apart:
    there would have been room for that."""

    sequence: Sequence
    points: list[Point | None]
    tokens: tuple[int, ...] | None = None
    requests: list[MaskRequest] = field(default_factory=list)
    is_apart: bool = False
    may_be_apart: bool = False

    def ask(self, row: int, size: int) -> None:
        """For masks from `row` on; `size` rows are its own."""
        assert self.sequence.automaton is not None
        keeps, has_room = self.sequence.automaton.has_twins, self.tokens is not None and size > 1
        self.requests = [
            MaskRequest(point, self.tokens or (), row + node, keeps, has_room)
            for node, point in enumerate(self.points)
            if point is not None
        ]

    @property
    def root(self) -> Point:
        root = self.points[0]
        assert root is not None
        return root

    @property
    def has_root(self) -> bool:
        """Has the root its mask?"""
        return self.requests[0].num_masks > 0

    @property
    def sits_out(self) -> bool:
        """Are its masks left for a later step?"""
        return self.is_apart and self.requests[0].is_late and not self.has_root

    @property
    def is_late(self) -> bool:
        """Was there no time for masks behind the root, which is there?"""
        if self.sits_out:
            return False
        root, *later = self.requests
        return (root.is_late and bool(root.tokens)) or any(request.is_late for request in later)

    @property
    def is_slow(self) -> bool:
        """Would this sequence's next draft delay the others?"""
        return any(request.is_slow for request in self.requests)

    def legal(self, size: int) -> list[bool]:
        """By node; what was not looked at is not refused."""
        if self.tokens is None:
            return [point is not None for point in self.points]
        request = self.requests[0]
        is_refused = not request.is_late and request.num_legal < len(request.tokens)
        num = 1 + request.num_legal if is_refused else size
        return [node < num for node in range(size)]


def most_out(num_sequences: int) -> int:
    """How many of a step's sequences may sit it out."""
    return num_sequences // APART_PARTS


def set_apart(live: Iterable[Walked], num_sequences: int, most: int) -> None:
    """Decide who is asked apart in a step of so many sequences: those whose calls are under way, then
    whole grammars: first those of these calls, since their locks are held, then the slowest. most:
    sequences, at most."""
    groups: dict[Grammar, list[Walked]] = {}
    busy: set[Grammar] = set()
    room = min(most, most_out(num_sequences))
    for each in live:
        grammar, under_way = each.root.state.grammar, each.root.under_way
        if under_way is not None and not under_way.is_done:
            busy.add(grammar)
            each.is_apart = each.tokens is not None
            room -= each.is_apart
        elif each.tokens is not None:
            groups.setdefault(grammar, []).append(each)
    for grammar in sorted(groups, key=lambda one: (one not in busy, -one.slowness)):
        group, is_due = groups[grammar], grammar in busy or grammar.slowness > OFTEN_SLOW
        for each in group:
            each.may_be_apart = len(group) <= room
            each.is_apart = is_due and each.may_be_apart
        room -= len(group) * group[0].is_apart
