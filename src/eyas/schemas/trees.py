"""The tree of a pattern, and its text for the backend.

Promises: plain data. Does not know: how people write patterns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eyas.core import GrammarFault
from eyas.schemas.charsets import Ranges


class PatternFault(Exception):
    """What is wrong with a pattern; place: which of its characters."""

    def __init__(self, place: int, message: str, fault: GrammarFault = "unsupported") -> None:
        super().__init__(f"position {place}: {message}")
        self.place = place
        self.message = message
        self.fault: GrammarFault = fault


@dataclass(frozen=True, slots=True)
class Chars:
    """One character. ranges: None where the set is the backend's to know. text: as the backend takes
    it; it can be repeated."""

    ranges: Ranges | None
    text: str


@dataclass(frozen=True, slots=True)
class Edge:
    """^ or $. place: among the pattern's characters."""

    is_end: bool
    place: int = field(default=0, compare=False)


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


def written(node: Node) -> str:
    """For the backend. Groups capture nothing, since it would not merge alternatives beside them."""
    match node:
        case Chars():
            return node.text
        case Edge():
            return "$" if node.is_end else "^"
        case Series(parts):
            return "".join(
                f"(?:{written(part)})" if isinstance(part, Series | Choice) else written(part)
                for part in parts
            )
        case Choice(options):
            return "|".join(map(written, options))
        case Repeat(part, least, most):
            text = part.text if isinstance(part, Chars) else f"(?:{written(part)})"
            return text + _count(least, most)


def _count(least: int, most: int | None) -> str:
    if least == most:
        return f"{{{least}}}"
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


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
