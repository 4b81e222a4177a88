"""What patterns have in common and what none of them matches, as patterns.

Promises: exact, but for what `charsets` leaves out of written classes; None where it would take too
long, and for patterns with sets that only the backend knows.
Does not know: schemas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from eyas.schemas import charsets
from eyas.schemas.charsets import Ranges
from eyas.schemas.trees import Chars, Choice, Edge, Node, Repeat, Series

_MAX_STATES = 60
_MAX_STEPS = 4_000
_MAX_CHARS = 4_000
"""Of a pattern that is written here."""

_ONE = re.compile(r"\(\?s:\.\)|\[(?:[^\]\\]|\\.)*\]", re.DOTALL)
"""A pattern of one character."""

Term = tuple
"""A language: "chars", ranges; "then", one, other; "or", a frozenset; "times", part, least, most."""
_NOTHING: Term = ("or", frozenset())
_EMPTY: Term = ("times", _NOTHING, 0, 0)
_ANYTHING: Term = ("times", ("chars", charsets.ALL), 0, None)


class _TooLarge(Exception):
    pass


def matches(node: Node, text: str) -> bool | None:
    """Does a pattern match somewhere in a text?"""
    try:
        walk = _Walk()
        term = _searched(node)
        for char in text:
            term = walk.after(term, ord(char))
        return _can_end(term)
    except _TooLarge:
        return None


def regions(nodes: Sequence[Node], names: Sequence[str]) -> dict[tuple[bool, ...], str] | None:
    """All texts but `names` by the patterns that match them: for each combination of patterns that
    comes about, a pattern of those texts."""
    try:
        listed: Term = _or([_literal(name) for name in names])
        return _Machine([*map(_searched, nodes), listed]).regions()
    except _TooLarge:
        return None


def _literal(text: str) -> Term:
    term = _EMPTY
    for char in reversed(text):
        term = _then(("chars", ((ord(char), ord(char)),)), term)
    return term


def _searched(node: Node) -> Term:
    """A pattern's texts: whatever stands before and behind, where it has no ^ and $."""
    options = []
    for has_start, term, has_end in _split(node):
        before = term if has_start else _then(_ANYTHING, term)
        options.append(before if has_end else _then(before, _ANYTHING))
    return _or(options)


def _split(node: Node) -> list[tuple[bool, Term, bool]]:
    """The alternatives of a pattern with and without ^ and $."""
    match node:
        case Edge(is_end):
            return [(not is_end, _EMPTY, is_end)]
        case Choice(options):
            return [found for option in options for found in _split(option)]
        case Series(parts) if parts:
            found = _split(parts[0])
            for part in parts[1:]:
                both = [(a, b) for a in found for b in _split(part)]
                if len(both) > 64:
                    raise _TooLarge
                found = [(a[0] or b[0], _then(a[1], b[1]), b[2]) for a, b in both]
            return found
    return [(False, _term(node), False)]


def _term(node: Node) -> Term:
    match node:
        case Chars(ranges):
            if ranges is None:
                raise _TooLarge
            return ("chars", ranges) if ranges else _NOTHING
        case Series(parts):
            term = _EMPTY
            for part in reversed(parts):
                term = _then(_term(part), term)
            return term
        case Choice(options):
            return _or([_term(option) for option in options])
        case Repeat(part, least, most):
            return _times(_term(part), least, most)
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
    """Sets that the first character is looked up in."""
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


class _Walk:
    """What is left of languages after a character."""

    def __init__(self) -> None:
        self._num_left = _MAX_STEPS

    def after(self, term: Term, code: int) -> Term:
        self._num_left -= 1
        if self._num_left < 0:
            raise _TooLarge
        match term:
            case ("chars", ranges):
                return _EMPTY if any(low <= code <= high for low, high in ranges) else _NOTHING
            case ("or", options):
                return _or([self.after(option, code) for option in options])
            case ("then", one, other):
                left = _then(self.after(one, code), other)
                return _or([left, self.after(other, code)]) if _can_end(one) else left
            case (_, part, least, most):
                rest = _times(part, max(0, least - 1), None if most is None else most - 1)
                return _then(self.after(part, code), rest)
        raise AssertionError(term)


class _Machine:
    """The automaton of several languages at once; the last one's texts are left out."""

    def __init__(self, terms: Sequence[Term]) -> None:
        walk = _Walk()
        self._states: dict[tuple[Term, ...], int] = {tuple(terms): 0}
        self._steps: list[dict[int, Ranges]] = []
        waiting = [tuple(terms)]
        while waiting:
            state = waiting.pop(0)
            steps: dict[int, list[tuple[int, int]]] = {}
            for low, high in _pieces(state):
                after = tuple(walk.after(term, low) for term in state)
                if after not in self._states:
                    if len(self._states) == _MAX_STATES:
                        raise _TooLarge
                    self._states[after] = len(self._states)
                    waiting.append(after)
                steps.setdefault(self._states[after], []).append((low, high))
            self._steps.append({to: charsets.union(parts) for to, parts in steps.items()})

    def regions(self) -> dict[tuple[bool, ...], str]:
        """The texts of each combination, without those of the last language."""
        ends: dict[tuple[bool, ...], set[int]] = {}
        for state, number in self._states.items():
            *held, is_listed = map(_can_end, state)
            if not is_listed:
                ends.setdefault(tuple(held), set()).add(number)
        return {held: f"^{self._pattern(numbers)}$" for held, numbers in ends.items()}

    def _pattern(self, ends: set[int]) -> str:
        """The texts that lead to one of these states: states are taken out one after the other, and
        what led through them is written on the ways around."""
        count = len(self._steps)
        ways: dict[int, dict[int, str]] = {
            state: {to: charsets.written(ranges) for to, ranges in steps.items() if ranges}
            for state, steps in enumerate(self._steps)
        }
        ways[-1], ways[count] = {0: ""}, {}
        for state in ends:
            ways[state][count] = ""
        left = set(range(count))
        while left:
            into = {state: [s for s in ways if state in ways[s] and s != state] for state in left}
            state = min(left, key=lambda s: (len(into[s]) * len(ways[s]), s))
            left.remove(state)
            out = ways.pop(state)
            again = out.pop(state, None)
            middle = "" if again is None else f"{_grouped(again)}*"
            for source in into[state]:
                begin = ways[source].pop(state)
                for to, end in out.items():
                    found = f"{begin}{middle}{end}"
                    known = ways[source].get(to)
                    ways[source][to] = found if known is None else _either(known, found)
                    if len(ways[source][to]) > _MAX_CHARS:
                        raise _TooLarge
        return ways[-1].get(count, r"[^\s\S]")


def _pieces(state: Sequence[Term]) -> list[tuple[int, int]]:
    """Ranges whose characters all do the same."""
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
