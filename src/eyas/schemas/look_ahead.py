"""Look-aheads at the beginning of a pattern, as patterns of their own.

^(?=A)(?!B)C matches the texts that ^A matches, ^B does not, and ^C does.

Does not know: the syntax within groups and classes, schemas.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_COUNTS = ("*", "+", "?", "{")


class LookAhead(NamedTuple):
    """pattern: anchored at its beginning. must_match: whether the text has to match it, or must not."""

    pattern: str
    must_match: bool


def split_look_aheads(pattern: str) -> tuple[str, list[LookAhead]]:
    """Return the pattern without the look-aheads behind its ^, and these. The pattern stays as it is if
    they are not conditions on the whole of it."""
    found: list[LookAhead] = []
    place = 1
    while pattern[:1] == "^" and pattern.startswith(("(?=", "(?!"), place):
        end, _ = _end_of_alternatives(pattern, place + 3)
        if not pattern.startswith(")", end) or pattern.startswith(_COUNTS, end + 1):
            return pattern, []
        inner = pattern[place + 3 : end]
        found.append(LookAhead(f"^(?:{inner})", pattern[place + 2] == "="))
        place = end + 1
    if not found or _end_of_alternatives(pattern, place)[1]:
        return pattern, []
    return f"^{pattern[place:]}", found


def _end_of_alternatives(pattern: str, place: int) -> tuple[int, bool]:
    """Return where the group that `place` is in ends, or the pattern, and whether there are several
    alternatives up to there."""
    depth, has_several = 0, False
    while found := _PIECE.match(pattern, place):
        piece = found[0]
        if piece == ")" and depth == 0:
            break
        depth += (piece == "(") - (piece == ")")
        has_several = has_several or (piece == "|" and depth == 0)
        place = found.end()
    return place, has_several
