"""Patterns as EBNF expressions, of texts or of the contents of JSON strings, for libraries whose own
reading of patterns differs.

Promises: an expression allows no text that the pattern does not match. In strings characters are
written as they are; the quote, the backslash and the control characters with short escapes are escaped.
Does not know: schemas, grammar libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eyas.schemas import charsets
from eyas.schemas.charsets import Ranges
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import Chars, Choice, Edge, Node, PatternFault, Repeat, Series

_PLAIN = charsets.other_than(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
"""Characters that a JSON string holds as they are."""
_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_ANYTHING = Repeat(Chars(charsets.ALL, charsets.written(charsets.ALL)), 0, None)


NO_CHARACTERS = "\\ud800-\\udfff"
"""In a class: halves of surrogate pairs, which no UTF-8 has; a negated one would let them in."""
ANY_STRING = f'([^\\0-\\x1f{NO_CHARACTERS}\\"\\\\] | ("\\\\" [\\"\\\\bfnrt]))*'
"""The contents of any string."""


def string_rule(pattern: str) -> str:
    """Return the EBNF expression of the strings' contents in which a pattern of a prepared schema
    matches. ValueError names the part of the pattern that has none."""
    try:
        return _written(_completed(read(pattern)), _in_string, None)
    except PatternFault:  # it was read once, so it is the backend's syntax by now
        raise ValueError("a class of Unicode's properties in a pattern") from None


def text_rule(pattern: str) -> str:
    """Return the EBNF expression of the texts that a whole pattern matches. PatternFault for what is
    not supported; ValueError names a part that has no expression."""
    return _written(read(pattern), _in_text, '""')


def _completed(node: Node) -> Node:
    """Return the pattern of the whole text, without anchors."""
    options = node.options if isinstance(node, Choice) else (node,)
    return Choice(tuple(_option(option) for option in options))


def _option(node: Node) -> Node:
    parts = list(node.parts) if isinstance(node, Series) else [node]
    has_start = bool(parts) and parts[0] == Edge(is_end=False)
    has_end = bool(parts) and parts[-1] == Edge(is_end=True)
    inner = parts[has_start : len(parts) - has_end]
    return Series((*_around(has_start), *inner, *_around(has_end)))


def _around(is_anchored: bool) -> Sequence[Node]:
    return () if is_anchored else (_ANYTHING,)


def _written(node: Node, chars: Callable[[Ranges], str], edge: str | None) -> str:
    """chars: writes a set of characters. edge: stands for ^ and $; None refuses them."""
    match node:
        case Chars(ranges, text):
            if ranges is None:
                raise ValueError(f"{text} in a pattern")
            return chars(ranges)
        case Edge(is_end):
            if edge is None:
                raise ValueError(f"{'$' if is_end else '^'} inside of a group of a pattern")
            return edge
        case Series(parts):
            return f"({' '.join(_written(part, chars, edge) for part in parts)})" if parts else '""'
        case Choice(options):
            return f"({' | '.join(_written(option, chars, edge) for option in options)})"
        case Repeat(part, least, most):
            count = (
                "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
            )
            return f"({_written(part, chars, edge)}){count}"


def _in_text(ranges: Ranges) -> str:
    if not ranges:
        raise ValueError("an empty class of characters")
    return f"[{''.join(map(_range, ranges))}]"


def _in_string(ranges: Ranges) -> str:
    plain = charsets.common(ranges, _PLAIN)
    escapes = [sign for char, sign in _ESCAPES.items() if charsets.holds(ranges, char)]
    options = [_in_text(plain)] if plain else []
    options += [f'("\\\\" [{"".join(map(_escaped, escapes))}])'] if escapes else []
    if not options:
        raise ValueError("a class of characters that no string can spell")
    return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    if low < 0xD800 and high > 0xDFFF:  # no text has the halves of pairs between
        return _range((low, 0xD7FF)) + _range((0xE000, high))
    return _shown(low) if low == high else f"{_shown(low)}-{_shown(high)}"


def _shown(code: int) -> str:
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


def _escaped(sign: str) -> str:
    return f"\\{sign}" if sign in '"\\' else sign
