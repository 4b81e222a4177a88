"""Trees that allow less than theirs: JSON with the usual white space only, so that more is forced.

Promises: what a canonical tree allows, its tree allows as well.
Does not know: who compiles them, when.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eyas.constraint.sources import spacing_of
from eyas.grammar import COMPACT, SPACED, Json, Node, Spacing, leaves, replaced
from eyas.white_space import MAX_WRITTEN_CHARS, is_plain, read_white_space


def canonical_trees(root: Node, default: Spacing) -> list[Node]:
    """The tree with fixed separators in its schemas, in each usual way; none where it has no free white
    space. default: the spacing of schemas that say nothing of it."""
    ways = [_ways(leaf, default) for leaf in leaves(root) if isinstance(leaf, Json)]
    most = max(map(len, ways), default=0)
    return [replaced(root, lambda leaf, way=way: _fixed(leaf, default, way)) for way in range(most)]


def _ways(leaf: Json, default: Spacing) -> Sequence[tuple[str, str]]:
    """Separators that a schema's white space comes to, the wider ones first."""
    spacing = spacing_of(leaf, default)
    own = (spacing.item, spacing.key)
    if not spacing.white_space or not all(map(is_plain, own)):
        return ()
    if own == COMPACT and " " in read_white_space(spacing.white_space, MAX_WRITTEN_CHARS).alone:
        return (SPACED, COMPACT)
    return (own,)


def _fixed(leaf: Node, default: Spacing, way: int) -> Node:
    ways = _ways(leaf, default) if isinstance(leaf, Json) else ()
    if not ways:
        return leaf
    return msgspec.structs.replace(leaf, separators=ways[way % len(ways)], white_space="")
