"""The beginnings of the texts of a grammar, to check that two alternatives differ there.

Promises: returns False only if it is certain.
Does not know: what the alternatives are.
"""

from __future__ import annotations

from eyas.dialect.segment import WHITE
from eyas.grammar import (
    Choice,
    Concat,
    FreeText,
    Json,
    Literal,
    Marker,
    Node,
    Regex,
    Repeat,
    Source,
)

_BEGINS_JSON = frozenset('{["-0123456789tfn' + WHITE)
_BEGINS_ITEM = _BEGINS_JSON | {"]", ""}


def may_begin_with(node: Node, text: str) -> bool:
    """Whether a text of `node` may begin with `text`, or be a prefix of it."""
    match node:
        case Literal(own):
            return own.startswith(text) or text.startswith(own)
        case Marker(own):
            return node.is_text and (own.startswith(text) or text.startswith(own))
        case FreeText(until, without):
            return bool(until) or not any(text.startswith(marker.text) for marker in without)
        case Json():
            return text[:1] in _BEGINS_JSON and (text[0] != "[" or text[1:2] in _BEGINS_ITEM)
        case Regex() | Source():
            return True
        case Concat(parts):
            return _may_parts_begin_with(parts, text)
        case Choice(options):
            return any(may_begin_with(option, text) for option in options)
        case Repeat(part, least):
            return least == 0 or may_begin_with(part, text)


def _may_parts_begin_with(parts: tuple[Node, ...], text: str) -> bool:
    first = parts[0] if parts else Literal("")
    if len(parts) > 1 and isinstance(first, Literal) and len(first.text) < len(text):
        rest = text.removeprefix(first.text)
        return text.startswith(first.text) and _may_parts_begin_with(parts[1:], rest)
    if len(parts) > 1 and isinstance(first, FreeText):
        return True
    return may_begin_with(first, text)


def may_begin_with_white(node: Node) -> bool:
    """Whether a text of `node` may begin with white space that is part of it."""
    match node:
        case Literal(text):
            return text[:1] in tuple(WHITE)
        case Marker(text):
            return node.is_text and text[:1] in tuple(WHITE)
        case FreeText(until):
            return any(marker.text[:1] in tuple(WHITE) for marker in until if marker.is_text)
        case Json():
            return False
        case Regex() | Source():
            return True
        case Concat(parts):
            for part in parts:
                if may_begin_with_white(part):
                    return True
                if not _may_be_empty(part):
                    return False
            return False
        case Choice(options):
            return any(may_begin_with_white(option) for option in options)
        case Repeat(part):
            return may_begin_with_white(part)


def _may_be_empty(node: Node) -> bool:
    match node:
        case Literal(text):
            return not text
        case Marker() | Json():
            return False
        case FreeText(until):
            return not until
        case Regex() | Source():
            return True
        case Concat(parts):
            return all(_may_be_empty(part) for part in parts)
        case Choice(options):
            return any(_may_be_empty(option) for option in options)
        case Repeat(part, least):
            return least == 0 or _may_be_empty(part)
