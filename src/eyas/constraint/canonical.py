"""Trees that allow less than theirs: JSON with the usual white space only, so that more is forced.

Promises: what a canonical tree allows, its tree allows as well.
Does not know: who compiles them, when.
"""

from __future__ import annotations

import msgspec

from eyas.grammar import Json, Node, leaves, replaced

CANONICAL_SEPARATORS = ((", ", ": "), (",", ":"))


def canonical_trees(root: Node) -> list[Node]:
    """The tree with the usual separators in its schemas; none where it has no free white space."""
    if not any(isinstance(leaf, Json) and leaf.separators is None for leaf in leaves(root)):
        return []
    return [
        replaced(root, lambda leaf, pair=pair: _spaced(leaf, pair)) for pair in CANONICAL_SEPARATORS
    ]


def _spaced(leaf: Node, separators: tuple[str, str]) -> Node:
    if isinstance(leaf, Json) and leaf.separators is None:
        return msgspec.structs.replace(leaf, separators=separators)
    return leaf
