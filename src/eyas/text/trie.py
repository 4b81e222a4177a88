"""A regular expression that matches the longest of many texts, built from their trie.

Promises: the time per position grows with the length of the match, not with the number of texts.
Does not know: what the texts are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def any_of(texts: Iterable[str]) -> str:
    """Return a pattern that matches the longest of `texts` at a position. Without texts it never
    matches."""
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern_of(root) if root else r"(?!)"


def _pattern_of(node: dict[str, Any]) -> str:
    """Return the pattern of a trie's node, which maps a character to a node; "" marks the end of a
    text."""
    single, branches = [], []
    for character, child in node.items():
        if character == "":
            continue
        prefix = re.escape(character)
        while len(child) == 1 and "" not in child:
            [(character, child)] = child.items()
            prefix += re.escape(character)
        if set(child) == {""}:
            (single if len(prefix) == 1 else branches).append(prefix)
        else:
            branches.append(prefix + _pattern_of(child))
    if single:
        branches.append(single[0] if len(single) == 1 else f"[{''.join(single)}]")
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if "" in node else pattern
