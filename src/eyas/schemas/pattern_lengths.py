"""The lengths of the texts that a pattern matches, and forms of patterns that the backend is fast with.

The backend decides many tokens at once only if a repeated character class may follow. It never does
for a pattern beside `minLength` and `maxLength`, but may for a pattern with the same limits in its own
counts.

Promises: every rewritten pattern matches the same texts as before.
Does not know: schemas, the syntax of patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from eyas.schemas import charsets
from eyas.schemas.pattern_tree import Chars, Choice, Edge, Node, Repeat, Series

MAX_COUNT = 10**6
"""The largest count of a repetition."""
_ANYTHING = Repeat(Chars(charsets.ALL, charsets.written(charsets.ALL)), 0, None)


class _NotExpressible(Exception):
    """The limits cannot be expressed by changing one count of the pattern."""


def bounded(node: Node, least: int, most: int | None) -> Node | None:
    """Return the pattern for those of its texts that have `least` to `most` (None: any number of)
    characters; None if other counts do not suffice, or if there are no such texts."""
    if least <= 0 and most is None:
        return node
    whole = node if _is_whole(node) else _completed(node, most)
    if whole is None or max(least, most or 0) > MAX_COUNT:
        return None
    try:
        return _bounded(whole, least, most)
    except _NotExpressible:
        return None


def _completed(node: Node, most: int | None) -> Node | None:
    """Return the pattern of the whole text: with the text before or after a pattern with one anchor, or
    with anchors if `most` leaves no other characters. None for other patterns."""
    parts = node.parts if isinstance(node, Series) else (node,)
    if _num_edges(node) == 0 and most == _own_lengths(node)[0]:
        return Series((Edge(is_end=False), *parts, Edge(is_end=True)))
    if _num_edges(node) == 1 and parts[0] == Edge(is_end=False):
        return Series((*parts, _ANYTHING, Edge(is_end=True)))
    if _num_edges(node) == 1 and parts[-1] == Edge(is_end=True):
        return Series((Edge(is_end=False), _ANYTHING, *parts))
    return None


def _num_edges(node: Node) -> int:
    match node:
        case Edge():
            return 1
        case Choice(parts) | Series(parts):
            return sum(map(_num_edges, parts))
        case Repeat(part):
            return _num_edges(part)
    return 0


def _bounded(node: Node, least: int, most: int | None) -> Node | None:
    """Return the pattern with limited counts; None if no text has such a length."""
    low, high = _own_lengths(node)
    if (most is not None and low > most) or (high is not None and high < least):
        return None
    if low >= least and (most is None or (high is not None and high <= most)):
        return node
    match node:
        case Choice(options):
            found = [_bounded(option, least, most) for option in options]
            kept = tuple(option for option in found if option is not None)
            return Choice(kept) if kept else None
        case Series(parts):
            ranges = [_own_lengths(part) for part in parts]
            varying = [i for i, (low, high) in enumerate(ranges) if low != high]
            if len(varying) == 1:
                [i] = varying
                rest = low - ranges[i][0]
                above = None if most is None else most - rest
                inner = _bounded(parts[i], least - rest, above)
                return None if inner is None else Series((*parts[:i], inner, *parts[i + 1 :]))
        case Repeat(part, fewest, times):
            each, longest = _own_lengths(part)
            if each == longest and each > 0:
                fewest = max(fewest, -(-least // each))
                if most is not None:
                    times = most // each if times is None else min(times, most // each)
                return None if times is not None and fewest > times else Repeat(part, fewest, times)
            if (fewest, times) == (0, 1):
                once = _bounded(part, least, most)
                if least > 0:
                    return once
                return Series(()) if once is None else Repeat(once, 0, 1)
    raise _NotExpressible


def rotated(node: Node) -> Node:
    """Return (XY)*X as X(YX)*, so that each X is part of one repetition only."""
    match node:
        case Choice(options):
            return Choice(tuple(map(rotated, options)))
        case Repeat(part, least, most):
            return Repeat(rotated(part), least, most)
        case Series(parts):
            turned = [rotated(part) for part in parts]
            for i, part in enumerate(turned[:-1]):
                if isinstance(part, Repeat) and isinstance(part.part, Series) and part.part.parts:
                    first, *others = part.part.parts
                    if first == turned[i + 1]:
                        again = Series((*others, first))
                        turned[i : i + 2] = [first, Repeat(again, part.least, part.most)]
            return Series(tuple(turned))
    return node


def lengths(node: Node) -> tuple[int, int | None]:
    """Return the minimum and maximum number of characters of a text that a pattern matches. None: no
    maximum, as for patterns without anchors at both ends."""
    least, most = _own_lengths(node)
    return least, most if _is_whole(node) else None


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


def _is_whole(node: Node) -> bool:
    """Whether a pattern is anchored at both ends."""
    return _has_edge(node, is_end=False) and _has_edge(node, is_end=True)


def _has_edge(node: Node, *, is_end: bool) -> bool:
    """Whether all alternatives begin with ^ (or end with $)."""
    match node:
        case Edge():
            return node.is_end == is_end
        case Choice(options):
            return all(_has_edge(option, is_end=is_end) for option in options)
        case Series(parts) if parts:
            return _has_edge(parts[-1 if is_end else 0], is_end=is_end)
    return False
