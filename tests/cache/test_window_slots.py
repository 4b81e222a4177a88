"""Slots of layers with a window: held while they are seen, then shared until they are recycled."""

from __future__ import annotations

import numpy as np

from eyas.cache import CacheManager
from eyas.cache.lease import Lease
from eyas.cache.windows import WindowSlots


def store(cache: CacheManager, lease: Lease, count: int) -> None:
    slots = cache.reserve(lease, count)
    cache.commit(lease, slots, slots)
    cache.check()


def test_what_the_next_query_sees_is_held_and_no_more() -> None:
    cache = CacheManager(50, windows=(10, 4))
    lease = cache.admit([5] * 40, 50)
    for stored in range(1, 30):
        store(cache, lease, 1)
        assert cache.num_available(lease) == 10 - min(stored, 3)
    windows = cache.windows
    assert windows is not None and windows.num_recycled >= 19
    assert windows.usable(lease.slots[:29]) == 29
    cache.release(lease, [5] * 29)
    cache.check()
    assert cache.num_available(lease) == 10


def test_a_prefix_can_be_continued_where_all_is_left_that_a_query_sees() -> None:
    windows = WindowSlots(20, 20, 4)
    slots = np.arange(1, 9)
    windows.take(slots)
    windows.leave(slots)
    assert [windows.usable(slots[:end]) for end in range(9)] == list(range(9))
    windows.drop(slots[2:3])
    assert [windows.usable(slots[:end]) for end in range(9)] == [0, 1, 2, 2, 2, 2, 6, 7, 8]


def test_ends_of_prompts_and_answers_are_recycled_last() -> None:
    windows = WindowSlots(200, 64, 4)
    first, second = np.arange(1, 33), np.arange(33, 65)
    windows.take(first)
    windows.leave(first)
    windows.prefer(first[-3:])
    windows.take(second)
    windows.leave(second)
    windows.take(np.arange(100, 129))
    assert windows.num_recycled == 29 and windows.usable(first) == 32
    windows.take(np.arange(129, 161))
    assert windows.usable(first) == 32 and windows.usable(second) == 0


def test_window_slots_go_to_the_prefix_that_has_lost_its_own() -> None:
    cache = CacheManager(100, windows=(16, 4))
    text = list(range(20))
    first = cache.admit(text, 50)
    for _ in range(2):
        store(cache, first, 10)
    cache.release(first, text)
    other = cache.admit([7] * 30, 50)
    store(cache, other, 16)
    assert cache.admit([*text, 99], 50).num_stored == 0, "its window slots are another's"
    cache.release(other, [])
    again = cache.admit([*text, 99], 50, share=False)
    for _ in range(2):
        store(cache, again, 10)
    cache.release(again, text)
    cache.check()
    found = cache.admit([*text, 99], 50)
    assert found.num_stored == 20 and cache.stats().num_cached == 20


def test_positions_that_are_read_have_window_slots_where_the_next_query_sees_them() -> None:
    cache = CacheManager(60, windows=(10, 4))
    text = list(range(30))
    begun = cache.admit(text, 50)
    store(cache, begun, 5)
    cache.release(begun, text[:5])
    for is_read in (False, True):
        lease = cache.admit(text, 50)
        assert lease.num_stored == 5 and cache.has_room(lease, 24, 0)
        parts = cache.reserve_read(lease, 24)
        cache.check()
        assert [len(part) for part in parts] == [21, 3]
        for part in parts:
            cache.commit(lease, part, part if is_read else part[:0])
            cache.check()
        cache.release(lease, text[:29])
        cache.check()
    again = cache.admit(text, 50)
    assert again.num_stored == 29 and cache.windows is not None
    assert cache.windows.usable(again.slots[:28]) == 5
    assert cache.most_read == 1
