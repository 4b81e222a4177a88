"""Regular expressions that rewritten schemas contain.

Promises: every pattern here is anchored and means the same in Rust and in Python.
Does not know: schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from eyas.schemas import charsets

ANYTHING = "(?s:.)*"
_MAX_LITERAL_CHARS = 4_000
_MAX_NESTING = 80
"""Characters of one literal; Rust's parser allows 250 levels of parentheses."""
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")
_UNIVERSAL = frozenset(("", ".*", "^.*", ".*$", "^", "$", "^[\\s\\S]*$", "[\\s\\S]*", "(?s:.)*"))

Trie = dict[str, "Trie"]


def escaped(text: str) -> str:
    """Return a pattern for exactly this text."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def none_of(texts: Iterable[str]) -> str | None:
    """Return a pattern for every text except these; None if it would be too large."""
    unique = set(texts)
    if (
        sum(map(len, unique)) > _MAX_LITERAL_CHARS
        or max(map(len, unique), default=0) > _MAX_NESTING
    ):
        return None
    root: Trie = {}
    for text in unique:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return f"^{_outside(root)}$"


def listed_names(pattern: str) -> list[str] | None:
    """Return the texts of a pattern that only lists them, such as ^(one|two)$, else None."""
    found = _LIST.fullmatch(pattern)
    return (found[1] or found[2]).split("|") if found else None


def is_universal(pattern: str) -> bool:
    """Whether a pattern certainly matches every text."""
    return pattern in _UNIVERSAL


_LIST = re.compile(r"\^(?:\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\)|([\w-]+))\$", re.ASCII)


def _outside(node: Trie) -> str:
    """Return a pattern for the texts that do not lead from this node to a leaf of the trie."""
    children = sorted(char for char in node if char)
    if not children:
        return f"(?s:.){ANYTHING}"
    options = [] if "" in node else [""]
    excluded = charsets.union((ord(char), ord(char)) for char in children)
    options.append(f"{charsets.written(charsets.other_than(excluded))}{ANYTHING}")
    options += [f"{escaped(char)}{_outside(node[char])}" for char in children]
    return f"(?:{'|'.join(options)})"
