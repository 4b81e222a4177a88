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
_GROUP = r"(?P<group>\((?:\?P?<[\w.\[\]]+>|(?!\?)))"
_OPEN = r"(?P<open>\[\^?(?:-+|\])?)"
"""A bracket or hyphens right behind the bracket that opens a class are members of it."""
_OUTSIDE = re.compile(rf"\\.|{_OPEN}|{_GROUP}|[^\\\[(/]+|.", re.DOTALL)
_ESCAPE = r"\\(?:[xuU](?:\{[^}]*\}|[0-9a-fA-F]+)|[pP]\{[^}]*\}|.)"
_IN_CLASS = (
    rf"(?P<close>\])|\\[dDwW]|&&|--|~~|(?:{_ESCAPE}|[^\\\[\]])"
    rf"(?:BLANKS-(?!BLANKS[\]-])BLANKS(?:{_ESCAPE}|[^\\\]]))?|{_OPEN}|."
)
"""A range is one piece: a class such as \\d at its end means nothing, and stays for the library to
refuse."""
_STRICT = re.compile(_IN_CLASS.replace("BLANKS", ""), re.DOTALL)
_LOOSE = re.compile(_IN_CLASS.replace("BLANKS", r"\s*"), re.DOTALL)
_HAS_COMMENTS = re.compile(r"\(\?[a-zA-Z]*x")
"""Where anything may stand in comments, groups are left as they are, and blanks mean nothing."""
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def told(pattern: str) -> str:
    """Return the pattern between two slashes."""
    return f"/{''.join(theirs for _, theirs in _pieces(pattern))}/"


def place_in(pattern: str, position: int) -> int:
    """Return the place in the user's pattern of a position between the slashes."""
    place = 0
    for ours, theirs in _pieces(pattern):
        if position < len(theirs):
            return place + min(position, len(ours) - 1)
        place += len(ours)
        position -= len(theirs)
    return place


def _pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """What stands there, and what is told."""
    is_loose = _HAS_COMMENTS.search(pattern) is not None
    inside = _LOOSE if is_loose else _STRICT
    depth = place = 0
    while found := (inside if depth else _OUTSIDE).match(pattern, place):
        piece, place = found[0], found.end()
        part = found.lastgroup
        if part == "group" and not is_loose:
            yield piece, "(?:"
        elif piece in _ASCII_CLASSES:
            yield piece, _ASCII_CLASSES[piece]
        else:
            yield piece, _SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], piece)
        depth += (part == "open") - (part == "close")
