"""Translation of compiled patterns of Python's `re` to Rust's syntax.

Promises: the result matches no text that `re.fullmatch` rejects; a pattern that cannot be translated is
refused with the position.
Narrowing: \\d, \\w and \\s are ASCII, as everywhere in eyas.
Does not know: grammars, requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from eyas.core import GrammarError, GrammarFault
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import (
    Choice,
    Edge,
    Node,
    PatternFault,
    Repeat,
    Series,
    written,
)

_UNDERSTOOD = re.IGNORECASE | re.DOTALL | re.UNICODE | re.ASCII
_SPACES, _CONTROLS = r"\t-\r ", r"\x1c-\x1f\x85"
"""Python's white space of ASCII, and what only Python counts as white space."""
_OUTSIDE = {r"\s": f"[{_SPACES}]"}
_OF_UNICODE = {
    r"\S": rf"[^\s{_CONTROLS}]",
    r"\D": r"[^\d\p{Nd}]",
    r"\W": r"[^\w\p{L}\p{N}]",
}
_EXCLUDED_OF_UNICODE = {
    r"\s": rf"\s{_CONTROLS}",
    r"\d": r"\d\p{Nd}",
    r"\w": r"\w\p{L}\p{N}",
}
"""Members of negated classes: what is excluded is Python's whole class, in the parser's syntax."""
_PIECE = re.compile(r"(?P<escape>\\.)|(?P<open>\[\^?\]?)|(?P<close>\])|[^\\\[\]]+", re.DOTALL)
_IGNORES_CASE = re.compile(r"(?<!\\)(?:\\\\)*\(\?[a-z]*i[a-z]*[-:)]")
_LEADING_FLAGS = re.compile(r"\(\?[aiLmsux]+\)")


def rust_pattern(pattern: re.Pattern[Any], param: str) -> str:
    """Return a pattern in Rust's syntax for the texts that the whole pattern matches.

    Supports the flags IGNORECASE, DOTALL and ASCII, but not the first beside the last: Rust's letters
    have cases beyond ASCII. Without ASCII, \\D, \\S and \\W are refused inside
    a class: they would allow characters that they exclude in Python. GrammarError names `param`.
    """
    source = pattern.pattern
    if not isinstance(source, str):
        raise _refused(param, "is one of bytes; compile one of str", "invalid")
    flags = re.RegexFlag(pattern.flags)
    if others := flags & ~_UNDERSTOOD:
        raise _refused(param, f"has {others!r}, which is not supported; write it without")
    names = ((re.IGNORECASE, "i"), (re.DOTALL, "s"))
    given = "".join(name for flag, name in names if flags & flag)
    leading = _LEADING_FLAGS.match(source)  # also in `flags`
    shift = 0 if leading is None else leading.end()
    prefix = f"(?{given})" if given else ""
    try:
        read(prefix + source[shift:])
    except PatternFault as error:
        position = error.position - len(prefix) + shift
        message = f"cannot be kept to: position {position}: {error.message}"
        raise _refused(param, message, error.fault) from None
    if flags & re.ASCII and _IGNORES_CASE.search(f"{prefix}{source[shift:]}"):
        message = "has IGNORECASE beside ASCII; leave one of them out, or write [aA]"
        raise _refused(param, message)
    translated = _translated(source, shift, is_ascii=bool(flags & re.ASCII), param=param)
    return written(_without_edges(read(prefix + translated)))


def _translated(source: str, begin: int, *, is_ascii: bool, param: str) -> str:
    """Return the pattern from `begin` on with Python's classes in the parser's syntax. GrammarError for
    complements that cannot be translated."""
    pieces: list[str] = []
    is_inside = is_negated = False
    for found in _PIECE.finditer(source, begin):
        piece = found[0]
        if found["escape"] and is_inside and piece in _OF_UNICODE:
            if not is_ascii or (piece == r"\S" and is_negated):
                message = (
                    f"has {piece} in a class at position {found.start()}, which bars characters of all "
                    "of Unicode; compile it with re.ASCII, or write the characters out"
                )
                raise _refused(param, message)
        elif found["escape"] and is_inside:
            excluded = _EXCLUDED_OF_UNICODE if is_negated and not is_ascii else {}
            piece = excluded.get(piece, _SPACES if piece == r"\s" else piece)
        elif found["escape"]:
            piece = _OUTSIDE.get(piece, piece if is_ascii else _OF_UNICODE.get(piece, piece))
        elif found["open"] and not is_inside:
            is_inside, is_negated = True, piece.startswith("[^")
        elif found["close"]:
            is_inside = False
        pieces.append(piece)
    return "".join(pieces)


def _without_edges(node: Node) -> Node:
    """Remove ^ and $, which a match of the whole text implies."""

    def each(parts: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(map(_without_edges, parts))

    match node:
        case Edge():
            return Series(())
        case Series(parts):
            return Series(each(parts))
        case Choice(options):
            return Choice(each(options))
        case Repeat(part, least, most):
            return Repeat(_without_edges(part), least, most)
    return node


def _refused(param: str, message: str, fault: GrammarFault = "unsupported") -> GrammarError:
    return GrammarError(f"{param}: the compiled pattern {message}", fault, param=param)
