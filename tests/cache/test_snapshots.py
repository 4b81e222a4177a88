"""Prefixes of models with a state per sequence: shared up to a snapshot, none lost or held twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.cache import CacheManager
from eyas.cache.lease import Lease
from eyas.cache.manager import LEAST_GAIN

NUM_SLOTS = 200
TEXT = list(range(1000, 1100))


def store(cache: CacheManager, lease: Lease, stop: int, *, is_kept: bool = True) -> int | None:
    """Store the positions before `stop` in one flight, and take a snapshot there."""
    slots = cache.reserve(lease, stop - lease.num_stored)
    snapshot = cache.reserve_snapshot(lease, stop)
    cache.commit(lease, slots, slots if is_kept else slots[:0])
    if snapshot is not None:
        cache.commit_snapshot(lease, stop, is_kept=is_kept)
    cache.check()
    return snapshot


def run(cache: CacheManager, tokens: list[int], *stops: int) -> Lease:
    """Store a text but for its last token, with snapshots at these positions and at its end."""
    lease = cache.admit(tokens, 200)
    for stop in (*stops, len(tokens) - 1):
        if stop > lease.num_stored:
            store(cache, lease, stop)
    cache.publish(lease, tokens[:-1])
    cache.check()
    return lease


def test_a_hit_ends_at_the_deepest_snapshot() -> None:
    cache = CacheManager(NUM_SLOTS, num_snapshots=4)
    first = run(cache, TEXT[:51], 20)
    longer = cache.admit(TEXT[:60], 200)
    assert longer.num_stored == 50 and longer.snapshot is not None
    assert longer.slots[:50].tolist() == first.slots[:50].tolist()
    other = cache.admit(TEXT[:40], 200)
    assert other.num_stored == 20 and other.snapshot not in (None, longer.snapshot)
    assert cache.admit(TEXT[:15], 200).num_stored == 0
    cache.check()


def test_where_texts_part_a_snapshot_is_wanted_if_it_saves_enough() -> None:
    cache = CacheManager(NUM_SLOTS, num_snapshots=4)
    run(cache, TEXT[:81])
    for length in (LEAST_GAIN, LEAST_GAIN - 1):
        lease = cache.admit([*TEXT[:length], 7, 8], 200)
        assert lease.num_stored == 0
        assert lease.boundary == (length if length >= LEAST_GAIN else 0)
    store(cache, lease, 31)
    cache.release(lease, [*TEXT[:31], 7])
    assert cache.admit([*TEXT[:31], 9, 9], 200).num_stored == 31


def test_the_least_recently_used_snapshot_is_given_up() -> None:
    cache = CacheManager(NUM_SLOTS, num_snapshots=2)
    texts = [[first, *TEXT[:9]] for first in (1, 2, 3)]
    for text in texts[:2]:
        cache.release(run(cache, text), text)
    hit = cache.admit(texts[0], 200)  # used now
    cache.release(hit, texts[0])
    cache.release(run(cache, texts[2]), texts[2])
    assert [cache.admit(text, 200).num_stored for text in texts] == [9, 0, 9]
    cache.check()


def test_an_evicted_prefix_gives_its_snapshot_back() -> None:
    cache = CacheManager(40, num_snapshots=1)
    cache.release(run(cache, TEXT[:21]), TEXT[:21])
    lease = cache.admit([5, *TEXT[50:80]], 200)
    store(cache, lease, 30)
    cache.release(lease, [5, *TEXT[50:80]])
    assert cache.admit([5, *TEXT[50:90]], 200).num_stored == 30
    assert cache.admit(TEXT[:30], 200).num_stored == 0
    cache.check()


def test_a_failed_flight_leaves_no_snapshot() -> None:
    cache = CacheManager(NUM_SLOTS, num_snapshots=1)
    lease = cache.admit(TEXT[:21], 200)
    assert store(cache, lease, 20, is_kept=False) is not None
    cache.release(lease, TEXT[:21])
    assert cache.admit(TEXT[:21], 200).num_stored == 0
    assert run(cache, TEXT[:21]).num_stored == 20
    assert cache.admit(TEXT[:21], 200).num_stored == 20


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    cache = CacheManager(NUM_SLOTS, shares_prefixes=False, num_snapshots=0)
    lease = cache.admit(TEXT[:21], 200)
    assert store(cache, lease, 20) is None
    cache.release(lease, TEXT[:21])
    assert cache.admit(TEXT[:21], 200).num_stored == 0


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(
        st.tuples(
            st.lists(st.sampled_from([0, 0, 1]), min_size=2, max_size=14),
            st.integers(1, 12),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_no_snapshot_is_lost_or_stands_for_another_text(
    texts: list[tuple[list[int], int, bool]],
) -> None:
    cache = CacheManager(24, num_snapshots=3)
    states: dict[int, tuple[int, ...]] = {}
    running: list[tuple[Lease, list[int]]] = []
    for tokens, stop, ends in texts:
        if len(running) == 2 or (running and ends):
            cache.release(*running.pop(0))
            cache.check()
        lease = cache.admit(tokens, 200)
        if lease.num_stored:
            assert lease.snapshot is not None
            assert states[lease.snapshot] == tuple(tokens[: lease.num_stored])
        if len(tokens) > cache.num_available(lease):
            cache.release(lease, tokens)
            continue
        for end in sorted({min(stop, len(tokens) - 1), len(tokens) - 1}):
            if end > lease.num_stored:
                snapshot = store(cache, lease, end)
                if snapshot is not None:
                    states[snapshot] = tuple(tokens[:end])
        cache.publish(lease, tokens[:-1])
        assert np.unique(lease.slots[: lease.num_stored]).size == lease.num_stored
        running.append((lease, tokens))
        cache.check()


def test_a_snapshot_that_is_held_is_not_given_up() -> None:
    cache = CacheManager(NUM_SLOTS, num_snapshots=1)
    text, other = TEXT[:21], [5, *TEXT[50:60]]
    cache.release(run(cache, text), text)
    held = cache.admit(text, 200)
    cache.hold_snapshot(held)
    assert cache.most_read == 1
    cache.release(run(cache, other), other)
    assert [cache.admit(tokens, 200).num_stored for tokens in (text, other)] == [20, 0]
    cache.check()
    cache.release(held, text)
    cache.release(run(cache, other), other)
    assert cache.admit(other, 200).num_stored == 10
    cache.check()
