"""Translation of compiled patterns of Python's `re` to Rust's syntax.

Promises: the result matches no text that `re.fullmatch` rejects; a pattern that cannot be translated is
refused with the position.
Narrowing: \\d, \\w and \\s are ASCII, as everywhere in eyas.
Does not know: grammars, requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from eyas.core import GrammarError, GrammarFault
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import (
    Chars,
    Choice,
    Edge,
    Node,
    PatternFault,
    Repeat,
    Series,
    written,
)

_UNDERSTOOD = re.IGNORECASE | re.DOTALL | re.UNICODE | re.ASCII
_NOT_ASCII_ALONE = {r"\S": r"[^\s\x1c-\x1f]", r"\D": r"\P{Nd}"}
"""Complements of Python's Unicode classes in Rust's syntax."""
_PIECE = re.compile(r"(?P<escape>\\.)|(?P<open>\[\^?\]?)|(?P<close>\])|[^\\\[\]]+", re.DOTALL)
_LEADING_FLAGS = re.compile(r"\(\?[aiLmsux]+\)")


def rust_pattern(pattern: re.Pattern[Any], param: str) -> str:
    """Return a pattern in Rust's syntax for the texts that the whole pattern matches.

    Supports the flags IGNORECASE, DOTALL and ASCII. Without ASCII, \\W is refused, and so are \\D and
    \\S inside a class: they would allow characters that they exclude in Python. GrammarError names
    `param`.
    """
    source = pattern.pattern
    if not isinstance(source, str):
        raise _refused(param, "is one of bytes; compile one of str", "invalid")
    flags = re.RegexFlag(pattern.flags)
    if others := flags & ~_UNDERSTOOD:
        raise _refused(param, f"has {others!r}, which is not supported; write it without")
    if not flags & re.ASCII:
        _check_complements(source, param)
    names = ((re.IGNORECASE, "i"), (re.DOTALL, "s"))
    given = "".join(name for flag, name in names if flags & flag)
    leading = _LEADING_FLAGS.match(source)  # also in `flags`
    shift = 0 if leading is None else leading.end()
    prefix = f"(?{given})" if given else ""
    try:
        node = read(prefix + source[shift:])
    except PatternFault as error:
        position = error.position - len(prefix) + shift
        message = f"cannot be kept to: position {position}: {error.message}"
        raise _refused(param, message, error.fault) from None
    return written(_adapted(node, {} if flags & re.ASCII else _NOT_ASCII_ALONE))


def _check_complements(source: str, param: str) -> None:
    """Refuse complements of Unicode classes that cannot be translated."""
    is_inside = False
    for found in _PIECE.finditer(source):
        is_inside = (is_inside or found["open"] is not None) and found["close"] is None
        piece = found["escape"]
        if piece == r"\W" or (is_inside and piece in _NOT_ASCII_ALONE):
            message = (
                f"has {piece} at position {found.start()}, which bars characters of all of Unicode; "
                "compile it with re.ASCII, or write the characters out"
            )
            raise _refused(param, message)


def _adapted(node: Node, complements: Mapping[str, str]) -> Node:
    """Replace Python's complements, and remove ^ and $, which a match of the whole text implies."""

    def each(parts: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(_adapted(part, complements) for part in parts)

    match node:
        case Edge():
            return Series(())
        case Series(parts):
            return Series(each(parts))
        case Choice(options):
            return Choice(each(options))
        case Repeat(part, least, most):
            return Repeat(_adapted(part, complements), least, most)
        case Chars(_, text) if text in complements:
            return Chars(None, complements[text])
    return node


def _refused(param: str, message: str, fault: GrammarFault = "unsupported") -> GrammarError:
    return GrammarError(f"{param}: the compiled pattern {message}", fault, param=param)
