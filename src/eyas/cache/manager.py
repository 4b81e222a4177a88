"""The cache manager: which sequence owns which slot, from admission to release.

All other rooms take and return slots through it.

Promises: each usable slot is free, held by one sequence, reserved for one flight, or shared through the
prefix tree; `check` verifies it. Where layers have a state per sequence, a prefix is shared up to a
snapshot of the state alone; where they have windows, up to a position before which all that a window
shows is still there. Slots are never copied: those of accepted nodes stay where they were
written. Shared slots are never written to: a sequence's own slots begin after its matched prefix. Where
ranks have sequences of their own, a sequence has slots of one rank, and each rank has a prefix tree.
Does not know: tensors, devices, how sequences are scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eyas.cache.blocks import BlockEvent, BlockLog
from eyas.cache.lease import Lease
from eyas.cache.node import RadixNode
from eyas.cache.rank_slots import RankSlots
from eyas.cache.snapshots import SnapshotPool
from eyas.cache.windows import WindowSlots

LEAST_GAIN = 32
"""Tokens that a further snapshot must save the next sequence, to be worth a step of its own."""


class SlotsExhausted(Exception):
    """There are not enough slots, even after evicting all unlocked prefixes."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Numbers of slots. num_held: of admitted sequences and reservations, without shared ones.
    num_cached: in the prefix tree."""

    num_slots: int
    num_free: int
    num_held: int
    num_cached: int


class CacheManager:
    """Hands out slots: `admit` a sequence, `reserve` slots for a step, `commit` them when it lands,
    `release` the sequence.

    num_slots: usable slots, of all ranks. num_ranks: ranks that have sequences of their own, each with
    as many slots; a sequence gets its rank when it is admitted. shares_prefixes: whether stored
    prefixes are shared between sequences.
    num_snapshots: how many states of sequences can be kept, where layers have one; None where keys and
    values are all that is stored of a prefix. windows: (number of window slots, widest window), where
    layers with a window have fewer slots than the others. blocks: gets the changes of the stored
    prefixes, in blocks; None logs none.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        num_ranks: int = 1,
        shares_prefixes: bool = True,
        num_snapshots: int | None = None,
        windows: tuple[int, int] | None = None,
        blocks: BlockLog | None = None,
    ) -> None:
        assert num_slots % num_ranks == 0, "ranks have equally many slots"
        assert num_ranks == 1 or (num_snapshots is None and windows is None and blocks is None)
        size = num_slots // num_ranks
        self._blocks = blocks
        self._leases: set[Lease] = set()
        self.shares_prefixes = shares_prefixes
        self.num_slots = num_slots
        self._snapshots = None if num_snapshots is None else SnapshotPool(num_snapshots)
        self.windows = None if windows is None else WindowSlots(num_slots, *windows)
        self._ranks = [
            RankSlots(
                size,
                1 + rank * size,
                blocks=blocks,
                windows=self.windows,
                snapshots=self._snapshots,
            )
            for rank in range(num_ranks)
        ]

    def admit(
        self, tokens: list[int], capacity: int, *, namespace: str = "", share: bool = True
    ) -> Lease:
        """Make the lease of a sequence. It starts with the longest stored prefix of `tokens`, without
        the last token, since the root must run.

        Of several ranks it gets the one that would then have the fewest slots in use, once it and the
        others have stored what they are known to need: a rank that has stored a prefix is preferred,
        unless it has so many more in use as the prefix saves.

        capacity: most positions that the sequence can have. namespace: prefixes are only shared within
        one. share: whether a stored prefix may be used.
        """
        slots = np.zeros(capacity, dtype=np.int64)
        lease = Lease(namespace, slots, 0, 0, None, num_expected=len(tokens) - 1)
        shares = self.shares_prefixes and share and len(tokens) > 1
        context = np.asarray(tokens[:-1] if shares else [], dtype=np.int64)
        if self.num_ranks > 1:
            lease.rank = self._choose_rank(lease.num_expected, context, namespace)
        if shares:
            matched, node = self._match(lease, context)
            if len(matched):
                self._slots_of(lease).tree.lock(node)
                slots[: len(matched)] = matched
                lease.num_stored = lease.num_shared = len(matched)
                lease.node = node
                self._hold_windows(lease)
        self._leases.add(lease)
        return lease

    @property
    def num_ranks(self) -> int:
        """How many ranks have slots of their own."""
        return len(self._ranks)

    def _slots_of(self, lease: Lease) -> RankSlots:
        """Return the slots of a lease's rank."""
        return self._ranks[lease.rank]

    def _choose_rank(self, num_expected: int, context: np.ndarray, namespace: str) -> int:
        """Return the rank of a new sequence. num_expected: positions to store, of which a stored prefix
        of `context` is spared. Ranks with too few slots come last."""
        missing = [
            num_expected - len(part.tree.match(context, namespace)[0]) for part in self._ranks
        ]
        for lease in self._leases:
            missing[lease.rank] += lease.num_missing

        def cost(rank: int) -> tuple[bool, int, int]:
            part = self._ranks[rank]
            num_used = part.pool.num_slots - part.num_available
            return missing[rank] > part.num_available, num_used + missing[rank], rank

        return min(range(self.num_ranks), key=cost)

    def _match(self, lease: Lease, context: np.ndarray) -> tuple[np.ndarray, RadixNode]:
        """Return the slots and the node of the longest stored prefix that a sequence can continue."""
        tree = self._slots_of(lease).tree
        matched, node = tree.match(context, lease.namespace)
        num_matched, end = len(matched), -1
        while len(matched) != end:
            end = len(matched)
            if self.windows is not None:
                end = self.windows.usable(matched)
                matched, node = tree.match(context[:end], lease.namespace)
            if self._snapshots is not None:
                matched, node = _up_to_snapshot(matched, node)
        if self._snapshots is not None:
            if num_matched - len(matched) >= LEAST_GAIN:
                lease.boundary = num_matched
            if node.snapshot is not None:
                lease.snapshot = node.snapshot
                self._snapshots.use(node.snapshot)
        return matched, node

    def _hold_windows(self, lease: Lease) -> None:
        """Hold the window slots that the query after a shared prefix sees."""
        if self.windows is not None:
            lease.window_start = max(0, lease.num_stored - self.windows.reach)
            self.windows.hold(lease.slots[lease.window_start : lease.num_stored])
            self._prefer_windows(lease, lease.num_stored)

    def _prefer_windows(self, lease: Lease, position: int) -> None:
        """Keep what the query at a position sees longer than other window slots."""
        if self.windows is not None:
            self.windows.prefer(lease.slots[max(0, position - self.windows.reach) : position])

    def _leave_windows(self, lease: Lease, stop: int) -> None:
        """Give up the window slots of positions before `stop`."""
        if self.windows is not None and stop > lease.window_start:
            self.windows.leave(lease.slots[lease.window_start : stop])
            lease.window_start = stop

    def num_available(self, lease: Lease) -> int:
        """Return how many slots can be reserved now: free ones of the lease's rank, and those of its
        unlocked prefixes, as far as window slots suffice for them."""
        available = self._slots_of(lease).num_available
        return available if self.windows is None else min(available, self.windows.num_available)

    def has_room(self, lease: Lease, count: int, most_rows: int) -> bool:
        """Whether slots for `count` positions of a sequence can be reserved now, one flight after the
        other. most_rows: of a flight."""
        if count > self._slots_of(lease).num_available:
            return False
        windows = self.windows
        return windows is None or min(count, windows.reach + most_rows) <= windows.num_available

    def reserve(self, lease: Lease, count: int) -> np.ndarray:
        """Reserve `count` slots for rows of one flight, evicting unlocked prefixes if needed. Raises
        SlotsExhausted, with nothing changed, if there are fewer."""
        if count > self.num_available(lease):
            raise SlotsExhausted
        slots = self._slots_of(lease).take(count)
        if self.windows is not None:
            self.windows.take(slots)
        lease.reserved.append(slots)
        return slots

    def reserve_read(self, lease: Lease, count: int) -> list[np.ndarray]:
        """Reserve slots for the next `count` positions of a sequence, which are read from elsewhere:
        window slots only for those that the query after them sees. The caller has checked `has_room`.

        Returns reservations that are to be committed in order, all of them or none.
        """
        num_unseen = 0 if self.windows is None else max(0, count - self.windows.reach)
        parts = []
        if num_unseen:
            parts.append(self._slots_of(lease).take(num_unseen))
            lease.unseen.append(parts[0])
        if count > num_unseen:
            parts.append(self.reserve(lease, count - num_unseen))
        return parts

    def commit(self, lease: Lease, reserved: np.ndarray, kept: np.ndarray) -> None:
        """Apply a landed flight to a lease. The other reserved slots become free.

        reserved: the array that `reserve` returned. kept: those of its slots that hold the sequence's
        next positions, in order of position.
        """
        is_unseen = bool(lease.unseen) and _remove(lease.unseen, reserved)
        was_reserved = is_unseen or _remove(lease.reserved, reserved)
        assert was_reserved, "committed slots that were not reserved"
        part = self._slots_of(lease)
        end = lease.num_stored + len(kept)
        if is_unseen and len(kept):
            self._leave_windows(lease, lease.num_stored)
            lease.window_start = end
        lease.slots[lease.num_stored : end] = kept
        lease.num_stored = end
        if not len(kept):
            part.give(reserved)
        elif len(kept) < len(reserved):
            part.give(_rejected(reserved, kept))
        if self.windows is not None:
            # Flights that have not landed have no query before the next position.
            self._leave_windows(lease, end - self.windows.reach)

    def reserve_snapshot(self, lease: Lease, position: int) -> int | None:
        """Reserve a snapshot for the state that a flight reaches at `position`, the end of its prompt
        chunk. None if no state is wanted there, or no snapshot is left."""
        if self._snapshots is None or not self.shares_prefixes or position in lease.saved:
            return None
        snapshot = self._snapshots.take()
        if snapshot is not None:
            lease.saving[position] = snapshot
        return snapshot

    def commit_snapshot(self, lease: Lease, position: int, *, is_kept: bool) -> None:
        """Apply a landed flight that has taken a snapshot. is_kept: whether the flight succeeded."""
        snapshot = lease.saving.pop(position)
        if is_kept:
            lease.saved[position] = snapshot
        else:
            assert self._snapshots is not None
            self._snapshots.give(snapshot)

    def hold_snapshot(self, lease: Lease) -> None:
        """Keep the snapshot that a lease starts from, where there is one, until it is released."""
        if lease.snapshot is not None:
            assert self._snapshots is not None and not lease.holds_snapshot
            self._snapshots.hold(lease.snapshot)
            lease.holds_snapshot = True

    @property
    def most_read(self) -> int | None:
        """How many prefixes of other engines may be held or read at a time, so that window slots and
        snapshots are left for sequences; None is no limit."""
        limits = []
        if self.windows is not None:
            limits.append(self.windows.num_slots // 2 // max(1, self.windows.reach))
        if self._snapshots is not None:
            limits.append(self._snapshots.num_snapshots // 2)
        return max(1, min(limits)) if limits else None

    def _attach_snapshots(self, lease: Lease, tokens: list[int]) -> None:
        """Make the snapshots that a lease has taken those of their prefixes, as far as these are
        shared; free the others."""
        if self._snapshots is None:
            return
        for position, snapshot in lease.saved.items():
            run = np.asarray(tokens[:position], dtype=np.int64)
            matched, node = self._slots_of(lease).tree.match(run, lease.namespace)
            if len(matched) == position:
                self._snapshots.attach(snapshot, node)
            else:
                self._snapshots.give(snapshot)
        lease.saved.clear()

    def publish(self, lease: Lease, tokens: list[int]) -> None:
        """Share the stored part of `tokens` with other sequences while this one is running."""
        self._publish_slots(lease, tokens)
        self._prefer_windows(lease, min(lease.num_stored, len(tokens)))
        self._attach_snapshots(lease, tokens)

    def _publish_slots(self, lease: Lease, tokens: list[int]) -> None:
        num_offered = min(lease.num_stored, len(tokens))
        if not self.shares_prefixes or num_offered <= lease.num_shared:
            return
        run = np.asarray(tokens[:num_offered], dtype=np.int64)
        tree = self._slots_of(lease).tree
        if len(tree.match(run, lease.namespace)[0]) > lease.num_shared:
            return  # another sequence has shared the same tokens; these stay private until release
        _, node = tree.insert(run, lease.slots[:num_offered], lease.namespace)
        tree.lock(node)
        if lease.node is not None:
            tree.unlock(lease.node)
        lease.node, lease.num_shared = node, num_offered

    def release(self, lease: Lease, tokens: list[int]) -> None:
        """Return the slots of a sequence that ends or is preempted. The stored part of `tokens` stays
        as a shared prefix until it is evicted. No flight may have reserved slots of the lease."""
        is_idle = not (lease.reserved or lease.unseen or lease.saving)
        assert is_idle, "released while a flight may still write"
        self._leases.remove(lease)
        if lease.holds_snapshot:
            assert self._snapshots is not None and lease.snapshot is not None
            self._snapshots.leave(lease.snapshot)
        part = self._slots_of(lease)
        self._leave_windows(lease, lease.num_stored)
        self._prefer_windows(lease, min(lease.num_stored, len(tokens)))
        num_kept = lease.num_shared
        if self.shares_prefixes:
            num_offered = min(lease.num_stored, len(tokens))
            if num_offered > lease.num_shared:
                run = np.asarray(tokens[:num_offered], dtype=np.int64)
                stored, _ = part.tree.insert(run, lease.slots[:num_offered], lease.namespace)
                if len(stored) > lease.num_shared:
                    own = lease.slots[lease.num_shared : len(stored)]
                    if self.windows is not None:
                        self.windows.move(own, stored[lease.num_shared :])
                    part.give(own)
                num_kept = num_offered
        self._attach_snapshots(lease, tokens)
        if lease.num_stored > num_kept:
            part.give(lease.slots[num_kept : lease.num_stored])
        if lease.node is not None:
            part.tree.unlock(lease.node)

    def forget_prefixes(self) -> int:
        """Evict all prefixes that no sequence holds. Returns the number of their slots."""
        num_evicted = 0
        for part in self._ranks:
            num_evicted += part.evict(part.tree.num_evictable)
            if not part.tree.num_slots:
                part.tree.log_anew()
        return num_evicted

    def take_block_events(self) -> list[BlockEvent]:
        """Return the changes of the stored prefixes since the last call, in blocks; empty if they are
        not logged."""
        return [] if self._blocks is None else self._blocks.take()

    def log_blocks_anew(self) -> None:
        """Replace what the log of blocks holds by the events that make the present content."""
        for part in self._ranks:
            part.tree.log_anew()

    def stats(self) -> CacheStats:
        """Return the numbers of free, held and cached slots."""
        num_free = sum(part.pool.num_free for part in self._ranks)
        num_cached = sum(part.tree.num_slots for part in self._ranks)
        num_held = self.num_slots - num_free - num_cached
        return CacheStats(self.num_slots, num_free, num_held, num_cached)

    def check(self) -> None:
        """Raise AssertionError unless each slot is exactly once free, held, reserved or shared, and
        those of a sequence are its rank's."""
        parts = [part.pool.free_slots() for part in self._ranks]
        num_free = len(parts)
        parts += [part.tree.all_slots() for part in self._ranks]
        size = self.num_slots // self.num_ranks
        for lease in self._leases:
            for own in (lease.slots[: lease.num_stored], *lease.reserved, *lease.unseen):
                assert ((own - 1) // size == lease.rank).all(), "a slot of another rank"
        for lease in self._leases:
            parts.append(lease.slots[lease.num_shared : lease.num_stored])
            parts.extend((*lease.reserved, *lease.unseen))
        slots = np.sort(np.concatenate(parts))
        expected = np.arange(1, self.num_slots + 1)
        assert np.array_equal(slots, expected), "a slot is lost, or held twice"
        if self.windows is not None:
            held_slots = [s for lease in self._leases for s in lease.reserved]
            held_slots += [
                lease.slots[lease.window_start : lease.num_stored] for lease in self._leases
            ]
            self.windows.check(np.concatenate(parts[num_free:]), held_slots)
        if self._snapshots is not None:
            held = [
                s for lease in self._leases for s in (*lease.saving.values(), *lease.saved.values())
            ]
            self._snapshots.check(held)
        locked = sum(len(n.slots) for n in self._locked_nodes())
        counted = sum(part.tree.num_locked_slots for part in self._ranks)
        assert locked == counted, "lock count of the prefix tree is off"

    def _locked_nodes(self) -> set[RadixNode]:
        nodes: set[RadixNode] = set()
        for lease in self._leases:
            node = lease.node
            while node is not None and node.parent is not None:
                nodes.add(node)
                node = node.parent
        return nodes


def _remove(arrays: list[np.ndarray], array: np.ndarray) -> bool:
    """Remove an array, by identity, from a list. Returns whether it was there."""
    for i, each in enumerate(arrays):
        if each is array:
            del arrays[i]
            return True
    return False


def _rejected(reserved: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the reserved slots that are not among those that are kept, which are in the same order."""
    differs = kept != reserved[: len(kept)]
    num_same = int(differs.argmax()) if differs.any() else len(kept)
    held = set(kept[num_same:].tolist())
    rest = [slot for slot in reserved[num_same:].tolist() if slot not in held]
    return np.array(rest, dtype=np.int64)


def _up_to_snapshot(matched: np.ndarray, node: RadixNode) -> tuple[np.ndarray, RadixNode]:
    """Return the slots and the node of the longest part of a stored prefix that ends at a snapshot."""
    end = len(matched)
    while node.parent is not None and node.snapshot is None:
        end -= len(node.slots)
        node = node.parent
    return matched[:end], node
