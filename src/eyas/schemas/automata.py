"""Intersections and complements of patterns, as patterns.

Uses derivatives of regular expressions (Brzozowski 1964) and the elimination of states.

Promises: exact, except for what `charsets` leaves out of written classes. None if it would take too
long, or for patterns with character sets that only the backend knows.
Does not know: schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from eyas.schemas import charsets
from eyas.schemas.charsets import Ranges
from eyas.schemas.pattern_tree import Chars, Choice, Edge, Node, Repeat, Series

_MAX_STATES = 60
_MAX_STEPS = 40_000
_MAX_LITERAL = 120
"""Characters or parts in sequence; terms are as deep as sequences are long."""
_MAX_CHARS = 4_000
"""Length of a pattern that is written here."""

_ONE = re.compile(r"\(\?s:\.\)|\[(?:[^\]\\]|\\.)*\]", re.DOTALL)
"""Matches a pattern of one character."""

Term = tuple
"""A language: "chars", ranges; "then", one, other; "or", a frozenset; "times", part, least, most."""
_NOTHING: Term = ("or", frozenset())
_EMPTY: Term = ("times", _NOTHING, 0, 0)
_ANYTHING: Term = ("times", ("chars", charsets.ALL), 0, None)


class _TooLarge(Exception):
    pass


class Budget:
    """The number of steps that a document may take."""

    def __init__(self, num_steps: int = _MAX_STEPS) -> None:
        self._num_left = num_steps

    def spend(self, num_steps: int = 1) -> None:
        """Raise _TooLarge if no steps are left."""
        self._num_left -= num_steps
        if self._num_left < 0:
            raise _TooLarge


def regions(
    nodes: Sequence[Node], names: Sequence[str], budget: Budget
) -> dict[tuple[bool, ...], str] | None:
    """Split all texts except `names` by the patterns that match them: return a pattern for each
    possible combination (for each of `nodes`, whether it matches). None if that takes too long."""
    try:
        listed = _or([_literal(name, budget) for name in names])
        terms = [*(_searched(node, budget) for node in nodes), listed]
        return _Machine(terms, budget).regions()
    except _TooLarge:
        return None


def matches(node: Node, text: str, budget: Budget) -> bool | None:
    """Whether a pattern matches a text. None if that takes too long."""
    try:
        term = _searched(node, budget)
        for char in text:
            term = _derivative(term, ord(char), budget)
    except _TooLarge:
        return None
    return _can_end(term)


class Edges(NamedTuple):
    """How texts of a language begin and go on.

    first: the characters that they begin with. after: the characters that continue a text to a longer
    one, or to its beginning. may_be_empty: whether "" is one of the texts.
    """

    first: Ranges
    after: Ranges
    may_be_empty: bool


def edges(node: Node, budget: Budget) -> Edges | None:
    """Return the edges of the texts that a pattern matches as a whole. None if that takes too long."""
    first: set[Ranges] = set()
    after: set[Ranges] = set()
    try:
        states = [_term(node, budget)]
        _firsts(states[0], first)
        known = set(states)
        for term in states:
            if _can_end(term):
                _firsts(term, after)
            for low, _ in _pieces((term,)):
                found = _derivative(term, low, budget)
                if found != _NOTHING and found not in known:
                    if len(states) == _MAX_STATES:
                        raise _TooLarge
                    known.add(found)
                    states.append(found)
    except _TooLarge:
        return None
    return Edges(joined(first), joined(after), _can_end(states[0]))


def joined(sets: Iterable[Ranges]) -> Ranges:
    """Return the union of sets."""
    return charsets.union(part for ranges in sets for part in ranges)


def are_apart(nodes: Sequence[Node], budget: Budget) -> bool:
    """Whether certainly no text matches all of the patterns."""
    try:
        terms = [_searched(node, budget) for node in nodes]
        return not _Machine([*terms, _NOTHING], budget).can_all_end()
    except _TooLarge:
        return False


def _literal(text: str, budget: Budget) -> Term:
    if len(text) > _MAX_LITERAL:
        raise _TooLarge
    budget.spend(len(text))
    term = _EMPTY
    for char in reversed(text):
        term = _then(("chars", ((ord(char), ord(char)),)), term)
    return term


def _searched(node: Node, budget: Budget) -> Term:
    """Return the texts that a pattern matches anywhere, unless ^ and $ anchor it."""
    options = []
    for has_start, term, has_end in _split(node, budget):
        before = term if has_start else _then(_ANYTHING, term)
        options.append(before if has_end else _then(before, _ANYTHING))
    return _or(options)


def _split(node: Node, budget: Budget) -> list[tuple[bool, Term, bool]]:
    """Return the alternatives of a pattern as (has ^, term, has $)."""
    match node:
        case Edge(is_end):
            return [(not is_end, _EMPTY, is_end)]
        case Choice(options):
            return [found for option in options for found in _split(option, budget)]
        case Series(parts) if parts:
            _check_length(parts)
            found = _split(parts[0], budget)
            for part in parts[1:]:
                both = [(a, b) for a in found for b in _split(part, budget)]
                if len(both) > 64:
                    raise _TooLarge
                found = [(a[0] or b[0], _then(a[1], b[1]), b[2]) for a, b in both]
            return found
    return [(False, _term(node, budget), False)]


def _check_length(parts: Sequence[Node]) -> None:
    if len(parts) > _MAX_LITERAL:
        raise _TooLarge


def _term(node: Node, budget: Budget) -> Term:
    budget.spend()
    match node:
        case Chars(ranges):
            if ranges is None:
                raise _TooLarge
            return ("chars", ranges) if ranges else _NOTHING
        case Series(parts):
            _check_length(parts)
            term = _EMPTY
            for part in reversed(parts):
                term = _then(_term(part, budget), term)
            return term
        case Choice(options):
            return _or([_term(option, budget) for option in options])
        case Repeat(part, least, most):
            return _times(_term(part, budget), least, most)
    raise _TooLarge


def _then(one: Term, other: Term) -> Term:
    if _NOTHING in (one, other):
        return _NOTHING
    if one == _EMPTY:
        return other
    if other == _EMPTY:
        return one
    if one == other == _ANYTHING:
        return _ANYTHING
    if one[0] == "then":
        return ("then", one[1], _then(one[2], other))
    return ("then", one, other)


def _or(options: Sequence[Term]) -> Term:
    kept: set[Term] = set()
    for option in options:
        kept |= option[1] if option[0] == "or" else {option}
    if _ANYTHING in kept:
        return _ANYTHING
    return next(iter(kept)) if len(kept) == 1 else ("or", frozenset(kept))


def _times(part: Term, least: int, most: int | None) -> Term:
    if most == 0 or part == _EMPTY:
        return _EMPTY
    if (least, most) == (1, 1):
        return part
    if part == _NOTHING:
        return _EMPTY if least == 0 else _NOTHING
    return ("times", part, least, most)


def _can_end(term: Term) -> bool:
    match term:
        case ("or", options):
            return any(map(_can_end, options))
        case ("then", one, other):
            return _can_end(one) and _can_end(other)
        case ("times", part, least, _):
            return least == 0 or _can_end(part)
    return False


def _firsts(term: Term, found: set[Ranges]) -> None:
    """Collect the character sets that the derivative by a first character depends on."""
    match term:
        case ("chars", ranges):
            found.add(ranges)
        case ("or", options):
            for option in options:
                _firsts(option, found)
        case ("then", one, other):
            _firsts(one, found)
            if _can_end(one):
                _firsts(other, found)
        case ("times", part, _, _):
            _firsts(part, found)


def _derivative(term: Term, code: int, budget: Budget) -> Term:
    """Return the derivative of a language: the rest of its texts after a first character."""
    budget.spend()
    match term:
        case ("chars", ranges):
            return _EMPTY if any(low <= code <= high for low, high in ranges) else _NOTHING
        case ("or", options):
            return _or([_derivative(option, code, budget) for option in options])
        case ("then", one, other):
            left = _then(_derivative(one, code, budget), other)
            return _or([left, _derivative(other, code, budget)]) if _can_end(one) else left
        case (_, part, least, most):
            rest = _times(part, max(0, least - 1), None if most is None else most - 1)
            return _then(_derivative(part, code, budget), rest)
    raise AssertionError(term)


class _Machine:
    """The product automaton of several languages; the texts of the last language are excluded."""

    def __init__(self, terms: Sequence[Term], budget: Budget) -> None:
        self._budget = budget
        self._states: dict[tuple[Term, ...], int] = {tuple(terms): 0}
        self._steps: list[dict[int, Ranges]] = []
        waiting = [tuple(terms)]
        while waiting:
            state = waiting.pop(0)
            steps: dict[int, list[tuple[int, int]]] = {}
            for low, high in _pieces(state):
                after = tuple(_derivative(term, low, budget) for term in state)
                if after not in self._states:
                    if len(self._states) == _MAX_STATES:
                        raise _TooLarge
                    self._states[after] = len(self._states)
                    waiting.append(after)
                steps.setdefault(self._states[after], []).append((low, high))
            self._steps.append({to: charsets.union(parts) for to, parts in steps.items()})

    def regions(self) -> dict[tuple[bool, ...], str]:
        """Return a pattern for each combination of languages, without the texts of the last one."""
        ends: dict[tuple[bool, ...], set[int]] = {}
        for state, number in self._states.items():
            *held, is_listed = map(_can_end, state)
            if not is_listed:
                ends.setdefault(tuple(held), set()).add(number)
        return {held: f"^{self._pattern(numbers)}$" for held, numbers in ends.items()}

    def can_all_end(self) -> bool:
        """Whether a text is in all languages but the last."""
        return any(all(map(_can_end, state[:-1])) for state in self._states)

    def _pattern(self, ends: set[int]) -> str:
        """Return a pattern of the texts that lead to one of these states, by eliminating all states one
        by one and writing the paths through them onto the remaining edges."""
        count = len(self._steps)
        edges: dict[int, dict[int, str]] = {
            state: {to: charsets.written(ranges) for to, ranges in steps.items() if ranges}
            for state, steps in enumerate(self._steps)
        }
        edges[-1], edges[count] = {0: ""}, {}
        for state in ends:
            edges[state][count] = ""
        left = set(range(count))
        while left:
            into = {state: [s for s in edges if state in edges[s] and s != state] for state in left}
            state = min(left, key=lambda s: (len(into[s]) * len(edges[s]), s))
            left.remove(state)
            out = edges.pop(state)
            again = out.pop(state, None)
            middle = "" if again is None else f"{_grouped(again)}*"
            for source in into[state]:
                begin = edges[source].pop(state)
                self._budget.spend(len(out))
                for to, end in out.items():
                    found = f"{begin}{middle}{end}"
                    known = edges[source].get(to)
                    edges[source][to] = found if known is None else _either(known, found)
                    if len(edges[source][to]) > _MAX_CHARS:
                        raise _TooLarge
        return edges[-1].get(count, r"[^\s\S]")


def _pieces(state: Sequence[Term]) -> list[tuple[int, int]]:
    """Return ranges of characters for which all derivatives are the same."""
    found: set[Ranges] = set()
    for term in state:
        _firsts(term, found)
    borders = {0, 0xD800, 0xE000, charsets.LAST + 1}
    for ranges in found:
        for low, high in ranges:
            borders |= {low, high + 1}
    pieces = [(low, high - 1) for low, high in pairwise(sorted(borders))]
    return [piece for piece in pieces if not 0xD800 <= piece[0] <= 0xDFFF]


def _grouped(text: str) -> str:
    return text if _ONE.fullmatch(text) else f"(?:{text})"


def _either(one: str, other: str) -> str:
    return f"(?:{one}|{other})"
