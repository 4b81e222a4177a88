"""The prefix tree (a radix tree): token prefixes whose keys and values are stored, and their slots.

Promises: prefixes are compared token by token (no hashes, so no collisions). Namespaces share
nothing. A locked path is never evicted. Eviction takes the least recently used leaves first.
Does not know: sequences, the pool of free slots, what a slot holds.
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np

from eyas.cache.blocks import BlockLog
from eyas.cache.node import RadixNode


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    limit = min(len(a), len(b))
    differs = np.flatnonzero(a[:limit] != b[:limit])
    return int(differs[0]) if len(differs) else limit


_EMPTY = np.empty(0, dtype=np.int64)


class RadixTree:
    """The prefixes of all namespaces. Tokens and slots are int64 arrays.

    blocks: gets the changes in blocks; None logs none.
    """

    def __init__(self, blocks: BlockLog | None = None) -> None:
        self.blocks = blocks
        self._roots: dict[str, RadixNode] = {}
        self._clock = count(1)
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._ties = count()
        self._num_nodes = 0
        self.num_slots = 0
        self.num_locked_slots = 0
        self.dropped_snapshots: list[int] = []

    def match(self, tokens: np.ndarray, namespace: str) -> tuple[np.ndarray, RadixNode]:
        """Return the slots of the longest stored prefix of `tokens`, and the node at its end. An edge
        that the prefix ends inside is split."""
        node, parts, at = self._roots.get(namespace), [], 0
        if node is None:
            return _EMPTY, RadixNode(_EMPTY, _EMPTY, None, namespace=namespace)
        now = next(self._clock)
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            length = _common_length(child.tokens, tokens[at:])
            if length < len(child.tokens):
                child = self._split(child, length)
            child.last_used = now
            parts.append(child.slots)
            node, at = child, at + length
        if node.parent is not None:
            self._push(node)
        return (np.concatenate(parts) if parts else _EMPTY), node

    def insert(
        self, tokens: np.ndarray, slots: np.ndarray, namespace: str
    ) -> tuple[np.ndarray, RadixNode]:
        """Store a prefix. Returns the slots of the leading tokens that were stored before, and the node
        at the end of the prefix. The tree takes over the given slots of the other tokens; those of the
        leading tokens still belong to the caller."""
        stored, node = self.match(tokens, namespace)
        num_stored = len(stored)
        if num_stored < len(tokens):
            own_tokens, own_slots = tokens[num_stored:].copy(), slots[num_stored:].copy()
            child = RadixNode(own_tokens, own_slots, node, num_stored)
            child.last_used = next(self._clock)
            node.children[int(child.tokens[0])] = child
            if node.parent is None:
                self._roots[namespace] = node
            self._num_nodes += 1
            self.num_slots += len(child.slots)
            if self.blocks is not None:
                self.blocks.store(child, tokens, namespace)
            self._push(child)
            node = child
        return stored, node

    def lock(self, node: RadixNode) -> None:
        """Protect the path from the root to `node` from eviction until `unlock`."""
        while node.parent is not None:
            if node.num_locks == 0:
                self.num_locked_slots += len(node.slots)
            node.num_locks += 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        """Undo one `lock` of the path from the root to `node`."""
        while node.parent is not None:
            assert node.num_locks > 0, "unlocked more often than locked"
            node.num_locks -= 1
            if node.num_locks == 0:
                self.num_locked_slots -= len(node.slots)
                self._push(node)
            node = node.parent

    @property
    def num_evictable(self) -> int:
        """Number of slots of unlocked paths."""
        return self.num_slots - self.num_locked_slots

    def evict(self, num_wanted: int) -> np.ndarray:
        """Remove the least recently used leaves. Returns their slots: `num_wanted`, or fewer if the
        rest is locked. The last leaf is cut so that no more are removed."""
        freed: list[np.ndarray] = []
        num_freed = 0
        while num_freed < num_wanted and self._heap:
            last_used, _, node = heapq.heappop(self._heap)
            parent = node.parent
            if parent is None or node.num_locks or node.children or node.last_used != last_used:
                continue
            if parent.children.get(int(node.tokens[0])) is not node:
                continue
            surplus = num_freed + len(node.slots) - num_wanted
            if surplus > 0:
                node = self._split_tail(node, len(node.slots) - surplus)
            parent = node.parent
            assert parent is not None
            del parent.children[int(node.tokens[0])]
            freed.append(node.slots)
            if self.blocks is not None:
                self.blocks.remove(node)
            if node.snapshot is not None:
                self.dropped_snapshots.append(node.snapshot)
                node.snapshot = None
            num_freed += len(node.slots)
            self._num_nodes -= 1
            self.num_slots -= len(node.slots)
            if parent.children:
                continue
            if parent.parent is None:
                del self._roots[parent.namespace]
            else:
                self._push(parent)
        return np.concatenate(freed) if freed else _EMPTY

    def log_anew(self) -> None:
        """Replace what the log of blocks holds by the events that make the present content."""
        if self.blocks is not None:
            self.blocks.begin_anew(self._roots)

    def all_slots(self) -> np.ndarray:
        """Return all slots of the tree, for integrity checks."""
        parts, stack = [], list(self._roots.values())
        while stack:
            node = stack.pop()
            parts.append(node.slots)
            stack.extend(node.children.values())
        return np.concatenate(parts) if parts else _EMPTY

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Split an edge: a new node takes its first `length` tokens. Returns the new node."""
        parent = node.parent
        assert parent is not None and 0 < length < len(node.tokens)
        upper = RadixNode(node.tokens[:length], node.slots[:length], parent, node.start)
        self._num_nodes += 1
        upper.num_locks, upper.last_used = node.num_locks, node.last_used
        upper.children[int(node.tokens[length])] = node
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.slots, node.parent = node.tokens[length:], node.slots[length:], upper
        node.start += length
        if self.blocks is not None:
            self.blocks.split(upper, node)
        return upper

    def _split_tail(self, leaf: RadixNode, num_tail: int) -> RadixNode:
        """Split a leaf so that its last `num_tail` tokens are a leaf, and return that leaf."""
        if num_tail < len(leaf.tokens):
            self._push(self._split(leaf, len(leaf.tokens) - num_tail))
        return leaf

    def _push(self, node: RadixNode) -> None:
        """Push a node to the heap of eviction candidates, and drop outdated entries if they are
        many."""
        heapq.heappush(self._heap, (node.last_used, next(self._ties), node))
        if len(self._heap) > 1024 and len(self._heap) > 4 * self._num_nodes:
            fresh = {id(n): (t, i, n) for t, i, n in self._heap if n.last_used == t}
            self._heap = list(fresh.values())
            heapq.heapify(self._heap)
