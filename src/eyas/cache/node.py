"""A node of the prefix tree.

Does not know: how the tree matches, splits and evicts (`eyas.cache.radix`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True, eq=False)
class RadixNode:
    """A node with the edge above it: `tokens` and their `slots`. namespace: only set on roots.

    start: number of tokens above the edge. snapshot: of the sequence state after the node's last token;
    None if there is none. blocks: hashes of the blocks that end in the edge (`eyas.cache.blocks`), if
    they are logged.
    """

    tokens: np.ndarray
    slots: np.ndarray
    parent: RadixNode | None
    start: int = 0
    children: dict[int, RadixNode] = field(default_factory=dict)
    num_locks: int = 0
    last_used: int = 0
    namespace: str = ""
    snapshot: int | None = None
    blocks: list[int] = field(default_factory=list)
