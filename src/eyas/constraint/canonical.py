"""Trees of nodes that allow less than the original: JSON with the usual white space only, so that more
text is forced.

Promises: what a canonical tree allows, its original allows as well.
Does not know: who compiles them, when.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eyas.constraint.sources import spacing_of
from eyas.grammar import COMPACT, SPACED, Json, Node, Spacing, leaves, replaced
from eyas.white_space import MAX_WRITTEN_CHARS, is_plain, read_white_space


def canonical_trees(root: Node, default: Spacing) -> list[Node]:
    """Return copies of the tree with fixed separators in its schemas, one for each usual style; none
    where the tree has no free white space. default: the spacing of schemas that do not set their own.
    """
    styles = [_styles(leaf, default) for leaf in leaves(root) if isinstance(leaf, Json)]
    most = max(map(len, styles), default=0)
    return [replaced(root, lambda leaf, i=i: _fixed(leaf, default, i)) for i in range(most)]


def _styles(leaf: Json, default: Spacing) -> Sequence[tuple[str, str]]:
    """Return the separators that a schema's white space permits, the wider ones first."""
    spacing = spacing_of(leaf, default)
    own = (spacing.item, spacing.key)
    if not spacing.white_space or not all(map(is_plain, own)):
        return ()
    if own == COMPACT and " " in read_white_space(spacing.white_space, MAX_WRITTEN_CHARS).alone:
        return (SPACED, COMPACT)
    return (own,)


def _fixed(leaf: Node, default: Spacing, number: int) -> Node:
    styles = _styles(leaf, default) if isinstance(leaf, Json) else ()
    if not styles:
        return leaf
    return msgspec.structs.replace(leaf, separators=styles[number % len(styles)], white_space="")
