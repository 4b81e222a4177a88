"""The prefix tree as blocks: which runs of `block_size` tokens are stored, as events and hashes.

Routers index the caches of their servers by blocks, as vLLM has them. The prefix tree has no blocks: a
block here is a run of tokens that ends at a multiple of `block_size`, and it is stored if all tokens of
its prefix are. So each block ends inside exactly one edge of the tree, and its hash is kept there.

Promises: the events, applied in order, give the stored blocks; a block is stored after its parent and
removed before it. Does not know: slots, who reads the events.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from eyas.cache.node import RadixNode


class BlocksStored(NamedTuple):
    """Consecutive blocks were stored. parent: hash of the block before the first one; None at the
    start of a prompt. tokens: of all blocks. namespace: that of their prefixes."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    namespace: str


class BlocksRemoved(NamedTuple):
    """Blocks were evicted."""

    hashes: list[int]


class BlocksCleared(NamedTuple):
    """No block is stored."""


BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared


def block_hash(parent: int | None, tokens: np.ndarray, namespace: str) -> int:
    """Return the hash of a block: 63 bits of BLAKE2b over its parent's hash, or its namespace if it has
    no parent, and its tokens. It is the same on all machines."""
    before = namespace.encode() if parent is None else parent.to_bytes(8, "little")
    hashed = blake2b(before, digest_size=8)
    hashed.update(tokens.astype("<i8").tobytes())
    return int.from_bytes(hashed.digest(), "little") >> 1


class BlockLog:
    """Collects the events of one prefix tree, which calls `store`, `remove` and `split`.

    block_size: tokens of a block.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._events: list[BlockEvent] = [BlocksCleared()]

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call. Those of the first call begin with BlocksCleared."""
        events, self._events = self._events, []
        return events

    def store(self, node: RadixNode, tokens: np.ndarray, namespace: str) -> None:
        """Enter a new leaf. tokens: from the start of the prompt to the leaf's end."""
        above = node.parent
        while above is not None and not above.blocks:
            above = above.parent
        parent = above.blocks[-1] if above is not None else None
        begin = node.start // self.block_size * self.block_size
        end = len(tokens) // self.block_size * self.block_size
        if begin < end:
            event = self._stored(tokens[begin:end], parent, namespace)
            node.blocks = event.hashes
            self._events.append(event)

    def remove(self, node: RadixNode) -> None:
        """Take out a leaf that is evicted."""
        if node.blocks:
            self._events.append(BlocksRemoved(node.blocks))

    def split(self, upper: RadixNode, lower: RadixNode) -> None:
        """Divide the blocks of `lower`, whose first tokens have become those of `upper`."""
        num_upper = lower.start // self.block_size - upper.start // self.block_size
        upper.blocks, lower.blocks = lower.blocks[:num_upper], lower.blocks[num_upper:]

    def begin_anew(self, roots: dict[str, RadixNode]) -> None:
        """Replace the events by those that make the present content from nothing."""
        self._events = [BlocksCleared()]
        empty = np.empty(0, dtype=np.int64)
        for namespace, root in roots.items():
            stack: list[tuple[RadixNode, np.ndarray, int | None]] = [(root, empty, None)]
            while stack:
                node, before, parent = stack.pop()
                # `before`: the tokens above the node that belong to no whole block yet
                tokens = np.concatenate([before, node.tokens])
                end = len(tokens) // self.block_size * self.block_size
                if end:
                    run = tokens[:end].tolist()
                    self._events.append(BlocksStored(node.blocks, parent, run, namespace))
                    parent = node.blocks[-1]
                stack += [(child, tokens[end:], parent) for child in node.children.values()]

    def _stored(self, tokens: np.ndarray, parent: int | None, namespace: str) -> BlocksStored:
        hashes: list[int] = []
        last = parent
        for begin in range(0, len(tokens), self.block_size):
            last = block_hash(last, tokens[begin : begin + self.block_size], namespace)
            hashes.append(last)
        return BlocksStored(hashes, parent, tokens.tolist(), namespace)
