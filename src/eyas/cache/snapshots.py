"""Which snapshots of sequence states exist, and at which prefix each of them was taken.

Promises: a snapshot is free, reserved for a step, or that of one prefix. If none is free, the one that
was least recently used, and that nobody holds, is given up.
Does not know: states, tokens.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from eyas.cache.radix import RadixNode


class SnapshotPool:
    """`num_snapshots` snapshots, numbered from 0."""

    def __init__(self, num_snapshots: int) -> None:
        self.num_snapshots = num_snapshots
        self._free = list(range(num_snapshots - 1, -1, -1))
        self._prefixes: OrderedDict[int, RadixNode] = OrderedDict()
        self._num_holders = Counter[int]()

    def take(self) -> int | None:
        """Reserve a snapshot; None if all are reserved or held."""
        if self._free:
            return self._free.pop()
        for snapshot, node in self._prefixes.items():
            if not self._num_holders[snapshot]:
                del self._prefixes[snapshot]
                node.snapshot = None
                return snapshot
        return None

    def hold(self, snapshot: int) -> None:
        """Keep the snapshot of a locked prefix from being given up, until `leave`."""
        self._num_holders[snapshot] += 1

    def leave(self, snapshot: int) -> None:
        """Undo one `hold`."""
        self._num_holders[snapshot] -= 1

    def attach(self, snapshot: int, node: RadixNode) -> None:
        """Make a reserved snapshot that of the prefix that ends with `node`. If the prefix has one
        already, which holds the same state, that one is kept."""
        if node.snapshot is None:
            node.snapshot = snapshot
            self._prefixes[snapshot] = node
        else:
            self.give(snapshot)
            self.use(node.snapshot)

    def use(self, snapshot: int) -> None:
        """Note that a prefix's snapshot was used."""
        self._prefixes.move_to_end(snapshot)

    def give(self, snapshot: int) -> None:
        """Free a snapshot that was reserved, or whose prefix was evicted."""
        self._prefixes.pop(snapshot, None)
        self._free.append(snapshot)

    def check(self, reserved: list[int]) -> None:
        """Raise AssertionError unless each snapshot is exactly once free, reserved or a prefix's."""
        held = sorted([*self._free, *self._prefixes, *reserved])
        assert held == list(range(self.num_snapshots)), "a snapshot is lost, or held twice"
        assert all(s in self._prefixes for s, count in self._num_holders.items() if count), (
            "a snapshot that is held was given up"
        )
        for snapshot, node in self._prefixes.items():
            assert node.snapshot == snapshot and node.parent is not None, "a snapshot is astray"
