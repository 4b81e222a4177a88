"""The syntax tree of a pattern, and its text for the backend.

Promises: plain data. Does not know: how users write patterns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eyas.core import GrammarFault
from eyas.schemas.charsets import Ranges


class PatternFault(Exception):
    """An error in a pattern. position: the index of the character."""

    def __init__(self, position: int, message: str, fault: GrammarFault = "unsupported") -> None:
        super().__init__(f"position {position}: {message}")
        self.position = position
        self.message = message
        self.fault: GrammarFault = fault


@dataclass(frozen=True, slots=True)
class Chars:
    """One character. ranges: the set, or None if only the backend knows it. text: the set in the
    backend's syntax, which a count may follow."""

    ranges: Ranges | None
    text: str


@dataclass(frozen=True, slots=True)
class Edge:
    """^ or $. position: index in the pattern."""

    is_end: bool
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Series:
    """The parts in sequence."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repetition of `least` to `most` times (None: unbounded)."""

    part: Node
    least: int
    most: int | None


Node = Chars | Edge | Series | Choice | Repeat


def written(node: Node) -> str:
    """Return the text for the backend. Groups do not capture, because the backend does not merge
    alternatives beside capturing groups."""
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
    """Raise PatternFault for ^ and $ at positions that the backend does not support."""
    match node:
        case Edge(is_end, position):
            if not (at_end if is_end else at_start):
                sign = "$" if is_end else "^"
                message = (
                    f"{sign} is supported at the ends of a pattern and of its alternatives only"
                )
                raise PatternFault(position, message)
        case Choice(options):
            for option in options:
                check_edges(option, at_start=at_start, at_end=at_end)
        case Repeat(part):
            check_edges(part, at_start=False, at_end=False)
        case Series(parts):
            last = len(parts) - 1
            for i, part in enumerate(parts):
                check_edges(part, at_start=at_start and i == 0, at_end=at_end and i == last)
