"""The only door to the cache: who owns which slot, from admission to release.

Promises: every usable slot is free, held by one sequence, reserved by one flight, or shared through
the prefix tree, and `check()` proves it; nothing is copied; slots of a path that was accepted stay
where they are. Shared slots are never written: a sequence's own slots begin where its match ends.
Does not know: tensors, devices, how sequences are scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from eyas.cache.radix import RadixNode, RadixTree
from eyas.cache.slots import SlotPool


class SlotsExhausted(Exception):
    """No slots left, even after evicting every unlocked prefix; somebody must be preempted."""


@dataclass(slots=True, eq=False)
class Lease:
    """What one admitted sequence holds.

    slots[:num_stored] are the slots of its stored positions; the first num_shared of them belong to
    the prefix tree (locked through `node`), the rest to the sequence.
    """

    namespace: str
    slots: np.ndarray
    num_stored: int
    num_shared: int
    node: RadixNode | None
    reserved: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """num_held counts slots of admitted sequences, shared ones not included."""

    num_slots: int
    num_free: int
    num_held: int
    num_cached: int


class CacheManager:
    """admit, reserve, commit, release, check. shares_prefixes: between sequences."""

    def __init__(self, num_slots: int, *, shares_prefixes: bool = True) -> None:
        self._pool = SlotPool(num_slots)
        self._tree = RadixTree()
        self._leases: set[Lease] = set()
        self.shares_prefixes = shares_prefixes
        self.num_slots = num_slots

    def admit(
        self, tokens: list[int], capacity: int, *, namespace: str = "", share: bool = True
    ) -> Lease:
        """Take up a sequence with these known tokens. Its longest stored prefix is matched, short of
        the last token (the root has to run). `capacity`: the most positions it can ever have."""
        slots = np.zeros(capacity, dtype=np.int64)
        lease = Lease(namespace, slots, 0, 0, None)
        if self.shares_prefixes and share and len(tokens) > 1:
            known = np.asarray(tokens[:-1], dtype=np.int64)
            matched, node = self._tree.match(known, namespace)
            if len(matched):
                self._tree.lock(node)
                slots[: len(matched)] = matched
                lease.num_stored = lease.num_shared = len(matched)
                lease.node = node
        self._leases.add(lease)
        return lease

    @property
    def num_available(self) -> int:
        """Slots that can be reserved now: free ones, and shared prefixes nobody holds."""
        return self._pool.num_free + self._tree.num_evictable

    def reserve(self, lease: Lease, count: int) -> np.ndarray:
        """[count] slots for the rows of one flight. Raises SlotsExhausted, with nothing changed."""
        missing = count - self._pool.num_free
        if missing > 0:
            if missing > self._tree.num_evictable:
                raise SlotsExhausted
            self._pool.give(self._tree.evict(missing))
        slots = self._pool.take(count)
        lease.reserved.append(slots)
        return slots

    def commit(self, lease: Lease, reserved: np.ndarray, kept: np.ndarray) -> None:
        """A flight landed: `kept` (a subset of `reserved`, in position order) are the sequence's next
        stored positions; the other reserved slots return."""
        for i, held in enumerate(lease.reserved):
            if held is reserved:
                del lease.reserved[i]
                break
        else:
            raise AssertionError("committed slots that were not reserved")
        end = lease.num_stored + len(kept)
        lease.slots[lease.num_stored : end] = kept
        lease.num_stored = end
        if not len(kept):
            self._pool.give(reserved)
        elif len(kept) < len(reserved):
            held = set(kept.tolist())
            given_up = [slot for slot in reserved.tolist() if slot not in held]
            self._pool.give(np.array(given_up, dtype=np.int64))

    def publish(self, lease: Lease, tokens: list[int]) -> None:
        """Offer what a live sequence has stored of `tokens` to others (its prompt, once stored)."""
        num_offered = min(lease.num_stored, len(tokens))
        if not self.shares_prefixes or num_offered <= lease.num_shared:
            return
        run = np.asarray(tokens[:num_offered], dtype=np.int64)
        if len(self._tree.match(run, lease.namespace)[0]) > lease.num_shared:
            return  # somebody stored the same meanwhile; ours stays private until release
        _, node = self._tree.insert(run, lease.slots[:num_offered], lease.namespace)
        self._tree.lock(node)
        if lease.node is not None:
            self._tree.unlock(lease.node)
        lease.node, lease.num_shared = node, num_offered

    def release(self, lease: Lease, tokens: list[int]) -> None:
        """A sequence ends or is preempted: what it stored of `tokens` stays as a shared prefix until
        evicted, the rest returns. No flight may still touch its slots."""
        assert not lease.reserved, "released while a flight may still write"
        self._leases.remove(lease)
        num_kept = lease.num_shared
        if self.shares_prefixes:
            num_offered = min(lease.num_stored, len(tokens))
            if num_offered > lease.num_shared:
                run = np.asarray(tokens[:num_offered], dtype=np.int64)
                num_known, _ = self._tree.insert(run, lease.slots[:num_offered], lease.namespace)
                if num_known > lease.num_shared:
                    self._pool.give(lease.slots[lease.num_shared : num_known])
                num_kept = num_offered
        if lease.num_stored > num_kept:
            self._pool.give(lease.slots[num_kept : lease.num_stored])
        if lease.node is not None:
            self._tree.unlock(lease.node)

    def stats(self) -> CacheStats:
        num_held = self.num_slots - self._pool.num_free - self._tree.num_slots
        return CacheStats(self.num_slots, self._pool.num_free, num_held, self._tree.num_slots)

    def check(self) -> None:
        """Free + held + reserved + shared = all, each slot once. Raises AssertionError otherwise."""
        parts = [self._pool.free_slots(), self._tree.all_slots()]
        for lease in self._leases:
            parts.append(lease.slots[lease.num_shared : lease.num_stored])
            parts.extend(lease.reserved)
        everything = np.sort(np.concatenate(parts))
        expected = np.arange(1, self.num_slots + 1)
        assert np.array_equal(everything, expected), "a slot is lost, or held twice"
        locked = sum(len(n.slots) for n in self._locked_nodes())
        assert locked == self._tree.num_locked_slots, "lock count of the prefix tree is off"

    def _locked_nodes(self) -> set[RadixNode]:
        nodes: set[RadixNode] = set()
        for lease in self._leases:
            node = lease.node
            while node is not None and node.parent is not None:
                nodes.add(node)
                node = node.parent
        return nodes
