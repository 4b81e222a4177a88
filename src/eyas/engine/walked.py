"""One sequence's tree as its automaton sees it, and which sequences of a step need not be waited for.

Promises: of a grammar all sequences are asked for masks apart or none, since they wait for each other's
calls, but for those under way.
Does not know: rows of other sequences, when masks are asked for, what the device makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eyas.constraint.automaton import Point
from eyas.constraint.base import Grammar
from eyas.constraint.mask_batch import MaskRequest
from eyas.engine.sequence import Sequence

OFTEN_SLOW, MOST_APART, APART_PARTS = 1 / 64, 6, 2
"""What often is; and of how many sequences masks may be left for later, those of the slowest grammars
first: at most so many, since each is a call that wants the interpreter's lock, and one of so many parts
of a step's."""


@dataclass(slots=True, eq=False)
class Walked:
    """One sequence's tree: where each node stands. None in `points`: not legal. tokens: of a draft of
    which only the root was looked at, since its masks will tell the rest. requests: the masks of its
    points, in order, or that of the root with all behind it. is_apart: nobody need wait for them;
    may_be_apart: there would have been room for that."""

    sequence: Sequence
    points: list[Point | None]
    tokens: tuple[int, ...] | None = None
    requests: list[MaskRequest] = field(default_factory=list)
    is_apart: bool = False
    may_be_apart: bool = False

    def ask(self, row: int, size: int) -> None:
        """For masks from `row` on; `size` rows are its own."""
        assert self.sequence.constraint is not None
        keeps, has_room = self.sequence.constraint.has_twins, self.tokens is not None and size > 1
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
    """Of so many, how many may sit a step out."""
    return num_sequences // APART_PARTS


def set_apart(live: Iterable[Walked], num_sequences: int) -> None:
    """Say whose masks may be left for later, of a step of so many sequences: those under way, and of
    the others whole grammars, first those whose lock somebody holds, then the slowest."""
    groups: dict[Grammar, list[Walked]] = {}
    busy: set[Grammar] = set()
    room = min(MOST_APART, most_out(num_sequences))
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
