"""The prefix tree: which token sequences already have their keys and values in slots.

Promises: edges carry runs of real token ids, compared one by one (no hashes, so no collisions);
namespaces never share anything; a locked path is never evicted; eviction frees the least recently
used leaves first.
Does not know: sequences, the pool its slots came from, what a slot holds.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

import numpy as np


@dataclass(slots=True, eq=False)
class RadixNode:
    """An edge of the tree: `tokens` and their `slots`, below `parent`. namespace: set on roots."""

    tokens: np.ndarray
    slots: np.ndarray
    parent: RadixNode | None
    children: dict[int, RadixNode] = field(default_factory=dict)
    num_locks: int = 0
    last_used: int = 0
    namespace: str = ""


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    limit = min(len(a), len(b))
    differs = np.flatnonzero(a[:limit] != b[:limit])
    return int(differs[0]) if len(differs) else limit


_EMPTY = np.empty(0, dtype=np.int64)


class RadixTree:
    """Prefixes by namespace. Token runs are int64 arrays throughout."""

    def __init__(self) -> None:
        self._roots: dict[str, RadixNode] = {}
        self._clock = count(1)
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._ties = count()
        self._num_nodes = 0
        self.num_slots = 0
        self.num_locked_slots = 0

    def match(self, tokens: np.ndarray, namespace: str) -> tuple[np.ndarray, RadixNode]:
        """Slots of the longest stored prefix of `tokens`, and the node it ends at (split there)."""
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
            self._remember(node)
        return (np.concatenate(parts) if parts else _EMPTY), node

    def insert(
        self, tokens: np.ndarray, slots: np.ndarray, namespace: str
    ) -> tuple[int, RadixNode]:
        """Store a prefix. Returns how many leading tokens were there already (their given slots are
        still the caller's, the rest are the tree's now) and the node the prefix ends at."""
        known, node = self.match(tokens, namespace)
        num_known = len(known)
        if num_known < len(tokens):
            child = RadixNode(tokens[num_known:].copy(), slots[num_known:].copy(), node)
            child.last_used = next(self._clock)
            node.children[int(child.tokens[0])] = child
            if node.parent is None:
                self._roots[namespace] = node
            self._num_nodes += 1
            self.num_slots += len(child.slots)
            self._remember(child)
            node = child
        return num_known, node

    def lock(self, node: RadixNode) -> None:
        """Keep the path from the root to `node` until `unlock`."""
        while node.parent is not None:
            if node.num_locks == 0:
                self.num_locked_slots += len(node.slots)
            node.num_locks += 1
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        while node.parent is not None:
            assert node.num_locks > 0, "unlocked more often than locked"
            node.num_locks -= 1
            if node.num_locks == 0:
                self.num_locked_slots -= len(node.slots)
                self._remember(node)
            node = node.parent

    @property
    def num_evictable(self) -> int:
        return self.num_slots - self.num_locked_slots

    def evict(self, num_wanted: int) -> np.ndarray:
        """Free up to `num_wanted` or a few more slots, least recently used leaves first."""
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
            above = node.parent
            assert above is not None
            del above.children[int(node.tokens[0])]
            freed.append(node.slots)
            num_freed += len(node.slots)
            self._num_nodes -= 1
            self.num_slots -= len(node.slots)
            if above.children:
                continue
            if above.parent is None:
                del self._roots[above.namespace]
            else:
                self._remember(above)
        return np.concatenate(freed) if freed else _EMPTY

    def all_slots(self) -> np.ndarray:
        """Every slot the tree holds, for integrity checks."""
        parts, stack = [], list(self._roots.values())
        while stack:
            node = stack.pop()
            parts.append(node.slots)
            stack.extend(node.children.values())
        return np.concatenate(parts) if parts else _EMPTY

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Cut an edge: a new node takes the first `length` tokens. Returns the new upper node."""
        parent = node.parent
        assert parent is not None and 0 < length < len(node.tokens)
        upper = RadixNode(node.tokens[:length], node.slots[:length], parent)
        self._num_nodes += 1
        upper.num_locks, upper.last_used = node.num_locks, node.last_used
        upper.children[int(node.tokens[length])] = node
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.slots, node.parent = node.tokens[length:], node.slots[length:], upper
        return upper

    def _split_tail(self, leaf: RadixNode, num_tail: int) -> RadixNode:
        """Cut off a leaf's last `num_tail` tokens as a leaf of their own, and return it."""
        if num_tail < len(leaf.tokens):
            self._remember(self._split(leaf, len(leaf.tokens) - num_tail))
        return leaf

    def _remember(self, node: RadixNode) -> None:
        heapq.heappush(self._heap, (node.last_used, next(self._ties), node))
        if len(self._heap) > 1024 and len(self._heap) > 4 * self._num_nodes:
            fresh = {id(n): (t, i, n) for t, i, n in self._heap if n.last_used == t}
            self._heap = list(fresh.values())
            heapq.heapify(self._heap)
