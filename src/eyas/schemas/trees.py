"""The tree of a pattern.

Promises: plain data. Does not know: how patterns are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eyas.core import GrammarFault
from eyas.schemas.charsets import Ranges


class PatternFault(Exception):
    """What is wrong with a pattern; place: which of its characters."""

    def __init__(self, place: int, message: str, fault: GrammarFault = "unsupported") -> None:
        super().__init__(f"position {place}: {message}")
        self.fault: GrammarFault = fault


@dataclass(frozen=True, slots=True)
class Chars:
    """One character. ranges: None where the set is the backend's to know."""

    ranges: Ranges | None


@dataclass(frozen=True, slots=True)
class Edge:
    """^ or $."""

    is_end: bool
    place: int


@dataclass(frozen=True, slots=True)
class Series:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """most: None is any number."""

    part: Node
    least: int
    most: int | None


Node = Chars | Edge | Series | Choice | Repeat


def check_edges(node: Node, *, at_start: bool, at_end: bool) -> None:
    """^ and $ where the backend can tell what they mean."""
    match node:
        case Edge(is_end, place):
            if not (at_end if is_end else at_start):
                sign = "$" if is_end else "^"
                message = (
                    f"{sign} is supported at the ends of a pattern and of its alternatives only"
                )
                raise PatternFault(place, message)
        case Choice(options):
            for option in options:
                check_edges(option, at_start=at_start, at_end=at_end)
        case Repeat(part):
            check_edges(part, at_start=False, at_end=False)
        case Series(parts):
            last = len(parts) - 1
            for i, part in enumerate(parts):
                check_edges(part, at_start=at_start and i == 0, at_end=at_end and i == last)


def lengths(node: Node) -> tuple[int, int | None]:
    """The least and the most characters of a text that a pattern matches; None is any number, as it is
    where something may stand before or behind."""
    least, most = _own_lengths(node)
    is_whole = _has_edge(node, is_end=False) and _has_edge(node, is_end=True)
    return least, most if is_whole else None


def _own_lengths(node: Node) -> tuple[int, int | None]:
    match node:
        case Chars():
            return 1, 1
        case Series(parts):
            found = [_own_lengths(part) for part in parts]
            return sum(least for least, _ in found), _or_any(sum, [most for _, most in found])
        case Choice(options):
            found = [_own_lengths(option) for option in options]
            return min(least for least, _ in found), _or_any(max, [most for _, most in found])
        case Repeat(part, least, most):
            part_least, part_most = _own_lengths(part)
            if most is None:
                return least * part_least, 0 if part_most == 0 else None
            return least * part_least, None if part_most is None else most * part_most
    return 0, 0


def _or_any(combined: Callable[[Iterable[int]], int], counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return combined(known) if len(known) == len(counts) else None


def _has_edge(node: Node, *, is_end: bool) -> bool:
    """Have all of its alternatives a ^ (or a $ at their end)?"""
    match node:
        case Edge():
            return node.is_end == is_end
        case Choice(options):
            return all(_has_edge(option, is_end=is_end) for option in options)
        case Series(parts) if parts:
            return _has_edge(parts[-1 if is_end else 0], is_end=is_end)
    return False
