"""Sets of characters as sorted ranges of code points, and their form as a character class.

Promises: halves of surrogate pairs are in no set. The result of `written` means the same in Rust and
Python, and never contains NUL without both the quote and the backslash: when quoting for JSON the
backend treats a set of all control characters (or all except the line feed) as the set of all quoted
characters, and would allow a quote or a backslash that the set excludes.
Does not know: patterns.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
_HALVES = (0xD800, 0xDFFF)
_NAMES = {9: r"\t", 10: r"\n", 13: r"\r"}
_IN_CLASS = frozenset("\\]^-[&~")


def union(parts: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges."""
    whole: list[tuple[int, int]] = []
    pieces: list[tuple[int, int]] = []
    for low, high in parts:
        pieces.append((low, min(high, _HALVES[0] - 1)))
        pieces.append((max(low, _HALVES[1] + 1), high))
    for low, high in sorted(piece for piece in pieces if piece[0] <= piece[1]):
        if whole and _follows(whole[-1][1], low):
            whole[-1] = (whole[-1][0], max(high, whole[-1][1]))
        else:
            whole.append((low, high))
    return tuple(whole)


def other_than(ranges: Ranges) -> Ranges:
    """Return the complement of a set."""
    found, begin = [], 0
    for low, high in ranges:
        found.append((begin, low - 1))
        begin = high + 1
    return union(part for part in (*found, (begin, LAST)) if part[0] <= part[1])


def common(one: Ranges, other: Ranges) -> Ranges:
    """Return the intersection of two sets."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return union(pair for pair in pairs if pair[0] <= pair[1])


def holds(ranges: Ranges, char: str) -> bool:
    """Whether the set contains the character."""
    return any(low <= ord(char) <= high for low, high in ranges)


def is_quoted_wrongly(ranges: Ranges) -> bool:
    """Whether the backend would allow characters that the set excludes."""
    return holds(ranges, "\0") and not (holds(ranges, '"') and holds(ranges, "\\"))


def written(ranges: Ranges) -> str:
    """Return the character class, without NUL if the backend would quote it wrongly."""
    if is_quoted_wrongly(ranges):
        ranges = common(ranges, ((1, LAST),))
    if not ranges:
        return r"[^\s\S]"
    if ranges == ALL:
        return "(?s:.)"
    is_negated = ranges[-1][1] == LAST
    listed = other_than(ranges) if is_negated else ranges
    return f"[{'^' * is_negated}{members(listed)}]"


def members(ranges: Ranges) -> str:
    """Return the set as it is written between the brackets of a class."""
    return "".join(_range(low, high) for low, high in ranges)


def _follows(high: int, low: int) -> bool:
    """Whether a range that begins at `low` overlaps or follows one that ends at `high`."""
    return low <= high + 1 or (high + 1 == _HALVES[0] and low == _HALVES[1] + 1)


def _range(low: int, high: int) -> str:
    if low == high:
        return shown(low)
    return f"{shown(low)}{'-' if high > low + 1 else ''}{shown(high)}"


def shown(code: int) -> str:
    """Return one character as it is written in a class."""
    if code in _NAMES:
        return _NAMES[code]
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    char = chr(code)
    return f"\\{char}" if char in _IN_CLASS else char


ALL = union(((0, LAST),))
DIGITS: Ranges = ((48, 57),)
WORD = union(((48, 57), (65, 90), (95, 95), (97, 122)))
SPACE = union(
    (
        *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    )
)
"""ECMA-262's, which is not Rust's."""
