"""The cache law at the manager's door: whatever is asked of it, no slot is lost, doubled or mistaken.

The model beside the manager remembers what each slot holds: the tokens up to its position. A prefix
match must hand out exactly those slots whose content is the prefix asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from eyas.cache import CacheManager, SlotsExhausted
from eyas.cache.lease import Lease
from tests.thorough import drawn

NUM_SLOTS = 40
CAPACITY = 64
TOKENS = st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=14)
SALTS = st.sampled_from(["", "", "salt"])
Content = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class Holder:
    """A sequence as the model sees it: tokens may run ahead of what is stored."""

    lease: Lease
    salt: str
    tokens: list[int]
    reserved: list[np.ndarray] = field(default_factory=list)


class ManagerMachine(RuleBasedStateMachine):
    windows: tuple[int, int] | None = None
    """Window slots, and the window, where layers with a window have fewer slots."""
    num_ranks = 1
    holders = Bundle("holders")

    @initialize(prefix_cache=st.sampled_from([True, True, False]))
    def start(self, prefix_cache: bool) -> None:
        self.prefix_cache = prefix_cache
        self.cache = CacheManager(
            NUM_SLOTS,
            num_ranks=self.num_ranks,
            shares_prefixes=prefix_cache,
            windows=self.windows,
        )
        self.content: dict[int, Content] = {}
        self.window_content: dict[int, Content] = {}
        self.places = np.zeros(NUM_SLOTS + 1, dtype=np.int64)
        self.alive: list[Holder] = []

    @rule(target=holders, tokens=TOKENS, salt=SALTS, share=st.sampled_from([True, True, False]))
    def admit(self, tokens: list[int], salt: str, share: bool) -> Holder:
        lease = self.cache.admit(list(tokens), CAPACITY, namespace=salt, share=share)
        assert lease.num_stored == lease.num_shared <= len(tokens) - 1
        assert lease.num_stored == 0 or (share and self.prefix_cache)
        for i, slot in enumerate(lease.slots[: lease.num_stored].tolist()):
            assert self.content[slot] == (salt, tuple(tokens[: i + 1]))
        self.look(lease)
        holder = Holder(lease, salt, list(tokens))
        self.alive.append(holder)
        return holder

    def look(self, lease: Lease) -> None:
        """What the next query's window shows is where a device would read it."""
        if self.cache.windows is None:
            return
        changed, places = self.cache.windows.take_changes()
        self.places[changed] = places
        first = max(0, lease.num_stored - self.cache.windows.reach)
        for slot in lease.slots[first : lease.num_stored].tolist():
            assert self.places[slot] > 0
            assert self.window_content[self.places[slot]] == self.content[slot]

    @rule(holder=holders, count=st.integers(1, 9))
    def reserve(self, holder: Holder, count: int) -> None:
        planned = sum(len(r) for r in holder.reserved)
        if holder.lease.num_stored + planned + count > CAPACITY:
            return
        available = self.cache.num_available(holder.lease)
        before = self.cache.stats()
        if count > available:
            with pytest.raises(SlotsExhausted):
                self.cache.reserve(holder.lease, count)
            assert self.cache.stats() == before
            return
        slots = self.cache.reserve(holder.lease, count)
        assert len(set(slots.tolist())) == count and slots.min() >= 1
        held = {s for h in self.alive for s in h.lease.slots[: h.lease.num_stored].tolist()}
        assert held.isdisjoint(slots.tolist()), "a slot that holds something was handed out"
        for slot in slots.tolist():
            self.content.pop(slot, None)
        holder.reserved.append(slots)
        self.look(holder.lease)
        if self.windows is not None:
            assert (self.places[slots] > 0).all()

    @rule(holder=holders, data=st.data())
    def commit(self, holder: Holder, data: st.DataObject) -> None:
        if not holder.reserved:
            return
        reserved = holder.reserved.pop(0)
        flags = data.draw(st.lists(st.booleans(), min_size=len(reserved), max_size=len(reserved)))
        kept = reserved[np.array(flags, dtype=bool)]
        start = holder.lease.num_stored
        self.cache.commit(holder.lease, reserved, kept)
        assert holder.lease.num_stored == start + len(kept)
        while len(holder.tokens) < holder.lease.num_stored:
            holder.tokens.append(data.draw(st.sampled_from([0, 1])))
        for i, slot in enumerate(kept.tolist()):
            self.content[slot] = (holder.salt, tuple(holder.tokens[: start + i + 1]))
            self.window_content[int(self.places[slot])] = self.content[slot]
        self.look(holder.lease)

    @rule(holder=holders, fraction=st.sampled_from([0.5, 1.0]))
    def publish(self, holder: Holder, fraction: float) -> None:
        self.cache.publish(holder.lease, holder.tokens[: int(len(holder.tokens) * fraction)])

    @rule(holder=consumes(holders), cut=st.sampled_from([0, 0, 2]))
    def release(self, holder: Holder, cut: int) -> None:
        for reserved in holder.reserved:
            self.cache.commit(holder.lease, reserved, reserved[:0])
        shared = holder.lease.num_shared
        tokens = holder.tokens[: max(shared, len(holder.tokens) - cut)]
        stored = holder.lease.num_stored
        self.cache.release(holder.lease, tokens)
        self.alive.remove(holder)
        offered = max(shared, min(stored, len(tokens)))
        probe = self.cache.admit([*tokens[:offered], 0], CAPACITY, namespace=holder.salt)
        if self.prefix_cache and self.windows is None:
            assert probe.num_stored >= offered, "what a sequence had stored was not kept"
        self.cache.release(probe, [])

    @precondition(lambda self: self.alive)
    @rule(holder=holders)
    def rematch(self, holder: Holder) -> None:
        """A live sequence's published part is found again, and is its own slots."""
        lease = holder.lease
        again = self.cache.admit(
            [*holder.tokens[: lease.num_shared], 7], CAPACITY, namespace=holder.salt
        )
        assert again.num_stored == lease.num_shared or self.windows is not None
        assert np.array_equal(again.slots[: again.num_stored], lease.slots[: again.num_stored])
        self.cache.release(again, [])

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        stats = self.cache.stats()
        assert stats.num_free + stats.num_held + stats.num_cached == NUM_SLOTS
        own = sum(h.lease.num_stored - h.lease.num_shared for h in self.alive)
        own += sum(len(r) for h in self.alive for r in h.reserved)
        assert stats.num_held == own
        if not self.prefix_cache:
            assert stats.num_cached == 0

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for holder in self.alive:
            for reserved in holder.reserved:
                self.cache.commit(holder.lease, reserved, reserved[:0])
            self.cache.release(holder.lease, holder.tokens)
        stats = self.cache.stats()
        assert stats.num_held == 0 and stats.num_free + stats.num_cached == NUM_SLOTS
        slots: list[int] = []
        size = NUM_SLOTS // self.num_ranks
        for rank in range(self.num_ranks):
            everything = self.cache.admit([1], NUM_SLOTS, share=False)
            assert everything.rank == rank, "the rank with the fewest slots in use"
            if self.windows is not None:
                assert self.cache.num_available(everything) == self.windows[0]
                return
            assert self.cache.num_available(everything) == size
            slots += self.cache.reserve(everything, size).tolist()
        assert sorted(slots) == list(range(1, NUM_SLOTS + 1))
        assert self.cache.stats().num_cached == 0, "an evicted prefix is still in the tree"


ManagerMachine.TestCase.settings = settings(
    max_examples=drawn(60, 150),
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestManagerMachine = ManagerMachine.TestCase


class WindowedMachine(ManagerMachine):
    windows = (22, 4)


WindowedMachine.TestCase.settings = settings(
    ManagerMachine.TestCase.settings, max_examples=drawn(30, 80)
)
TestWindowedMachine = WindowedMachine.TestCase


class RankedMachine(ManagerMachine):
    num_ranks = 2


RankedMachine.TestCase.settings = settings(
    ManagerMachine.TestCase.settings, max_examples=drawn(20, 40)
)
TestRankedMachine = RankedMachine.TestCase


def test_a_sequence_gets_the_rank_with_its_prefix_or_the_fewest_slots_in_use() -> None:
    cache = CacheManager(64, num_ranks=2)

    def admit(tokens: list[int], count: int) -> Lease:
        lease = cache.admit(tokens, 32)
        slots = cache.reserve(lease, count)
        cache.commit(lease, slots, slots)
        cache.check()
        return lease

    waiting = [cache.admit([5] * 9, 32) for _ in range(2)]
    assert [each.rank for each in waiting] == [0, 1], "what is to be stored counts"
    for each in waiting:
        cache.release(each, [])
    text = list(range(10, 22))
    first = admit(text, 10)
    assert first.rank == 0 and set(first.slots[:10]) <= set(range(1, 33))
    second = admit([5] * 5, 4)
    assert second.rank == 1 and set(second.slots[:4]) <= set(range(33, 65))
    cache.release(first, text)
    third = admit([6] * 11, 10)
    assert third.rank == 0, "a prefix that can be evicted is no load"
    hit = cache.admit([*text, 1], 32)
    assert (hit.rank, hit.num_stored) == (0, 10), "six more slots in use, ten fewer to fill"
    cache.release(hit, text)
    short = cache.admit([*text[:5], 1], 32)
    assert (short.rank, short.num_stored) == (1, 0), "six more slots in use, five fewer to fill"
    full = cache.reserve(second, 26)
    assert cache.admit([9] * 8, 32).rank == 0, "the other rank has two slots"
    cache.commit(second, full, full[:0])


def test_a_match_stops_short_of_the_root() -> None:
    cache = CacheManager(16)
    first = cache.admit([1, 2, 3, 4], 8)
    slots = cache.reserve(first, 4)
    cache.commit(first, slots, slots)
    cache.release(first, [1, 2, 3, 4])
    assert cache.admit([1, 2, 3, 4], 8).num_stored == 3
    assert cache.admit([1, 2, 3, 4, 5], 8).num_stored == 4
    assert cache.admit([1], 8).num_stored == 0


def test_kept_slots_stay_where_they_are_and_the_others_return() -> None:
    cache = CacheManager(16)
    lease = cache.admit([1], 16)
    reserved = cache.reserve(lease, 6)
    kept = reserved[[0, 2, 5]]
    cache.commit(lease, reserved, kept)
    assert lease.slots[:3].tolist() == kept.tolist()
    assert cache.stats().num_free == 13
    cache.check()
    again = cache.reserve(lease, 13)
    assert set(again.tolist()).isdisjoint(kept.tolist())


def test_slots_in_use_are_never_evicted() -> None:
    cache = CacheManager(8)
    first = cache.admit([1, 2, 3, 4], 8)
    slots = cache.reserve(first, 3)
    cache.commit(first, slots, slots)
    cache.publish(first, [1, 2, 3])
    assert cache.num_available(first) == 5
    with pytest.raises(SlotsExhausted):
        cache.reserve(first, 6)
    second = cache.admit([1, 2, 3, 9], 8)
    cache.release(first, [1, 2, 3, 4])
    assert cache.num_available(second) == 5
    cache.release(second, [1, 2, 3, 9])
    assert cache.num_available(second) == 8
