"""Users' regular expressions (Rust's syntax) as llguidance is told them.

Promises: `told` stands for the same texts, but that \\d and \\w are ASCII, as in JSON Schema's
patterns: what they allow is then the same in every other dialect as well. No group of it captures:
nested alternatives are merged only where they do not, and llguidance 1.9.1 panics over some that are
not merged, such as (\\w|(a|\\w)).
Does not know: what a pattern means, which patterns are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ASCII_CLASSES = {
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
}
_PIECE = re.compile(
    r"\\.|(?P<open>\[\^?\]?)|(?P<group>\((?:\?P?<[\w.\[\]]+>|(?!\?)))|[\]/]|[^\\\[\](/]+|.",
    re.DOTALL,
)
"""A bracket right behind the one that opens a class is a member of it."""
_HAS_COMMENTS = re.compile(r"\(\?[a-zA-Z]*x")
"""Where anything may stand in comments, groups are left as they are."""


def told(pattern: str) -> str:
    """The pattern between two slashes."""
    return f"/{''.join(theirs for _, theirs in _pieces(pattern))}/"


def place_in(pattern: str, position: int) -> int:
    """Where a position of what stands between the slashes lies in the user's pattern."""
    place = 0
    for ours, theirs in _pieces(pattern):
        if position < len(theirs):
            return place + min(position, len(ours) - 1)
        place += len(ours)
        position -= len(theirs)
    return place


def _pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """What stands there, and what is told."""
    depth, keeps_groups = 0, _HAS_COMMENTS.search(pattern) is not None
    for found in _PIECE.finditer(pattern):
        piece = found[0]
        if found["open"]:
            depth += 1
        elif piece == "]":
            depth = max(0, depth - 1)
        if piece == "/":
            yield piece, r"\/"
        elif found["group"] and not depth and not keeps_groups:
            yield piece, "(?:"
        else:
            yield piece, _ASCII_CLASSES.get(piece, piece)
