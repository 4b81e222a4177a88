"""The blocks that the cache's events tell of are those that its prefixes hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.cache import BlockLog, CacheManager, SlotsExhausted
from eyas.cache.blocks import (
    BlockEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    block_hash,
)

SIZE = 4
Prefixes = set[tuple[str, tuple[int, ...]]]


class Index:
    """What a router keeps: the prefix of each stored block, by its hash."""

    def __init__(self) -> None:
        self.prefixes: dict[int, tuple[str, tuple[int, ...]]] = {}

    def apply(self, events: list[BlockEvent]) -> None:
        for event in events:
            match event:
                case BlocksStored(hashes, parent, tokens, namespace):
                    assert len(tokens) == SIZE * len(hashes)
                    before = () if parent is None else self.prefixes[parent][1]
                    for i, key in enumerate(hashes):
                        assert key not in self.prefixes
                        before = (*before, *tokens[SIZE * i : SIZE * (i + 1)])
                        self.prefixes[key] = (namespace, before)
                case BlocksRemoved(hashes):
                    for key in hashes:
                        del self.prefixes[key]
                case BlocksCleared():
                    self.prefixes.clear()


def stored(cache: CacheManager, prompts: list[tuple[str, list[int]]]) -> Prefixes:
    """The whole blocks that the cache would find of these prompts, which are all that it was given."""
    found: Prefixes = set()
    for namespace, tokens in prompts:
        lease = cache.admit([*tokens, 0], len(tokens) + 1, namespace=namespace)
        for end in range(SIZE, lease.num_shared + 1, SIZE):
            found.add((namespace, tuple(tokens[:end])))
        cache.release(lease, [*tokens, 0])
    return found


def store(cache: CacheManager, namespace: str, tokens: list[int]) -> bool:
    """Store a prompt as a sequence does. Returns whether there was room."""
    lease = cache.admit([*tokens, 0], len(tokens) + 1, namespace=namespace)
    try:
        slots = cache.reserve(lease, len(tokens) - lease.num_stored)
    except SlotsExhausted:
        cache.release(lease, [*tokens, 0])
        return False
    cache.commit(lease, slots, slots)
    cache.release(lease, [*tokens, 0])
    return True


PROMPTS = st.lists(
    st.tuples(st.sampled_from(["", "salt"]), st.lists(st.integers(0, 1), max_size=19)),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=60)
@given(prompts=PROMPTS, anew=st.sets(st.integers(0, 13)), forgets=st.sets(st.integers(0, 13)))
def test_events_give_the_blocks_of_the_cache(
    prompts: list[tuple[str, list[int]]], anew: set[int], forgets: set[int]
) -> None:
    """Prefixes that share a beginning, split edges, evictions (30 slots), a cache that forgets, and
    subscribers that begin anew."""
    cache = CacheManager(30, blocks=BlockLog(SIZE))
    index = Index()
    for i, (namespace, tokens) in enumerate(prompts):
        assert store(cache, namespace, tokens)
        if i in forgets:
            cache.forget_prefixes()
        if i in anew:
            cache.log_blocks_anew()
        index.apply(cache.take_block_events())
        assert set(index.prefixes.values()) == stored(cache, prompts[: i + 1])
        assert not cache.take_block_events()  # looking changes nothing
    cache.check()


def test_a_cache_that_forgets_says_that_it_is_empty() -> None:
    cache = CacheManager(30, blocks=BlockLog(SIZE))
    store(cache, "", list(range(9)))
    cache.take_block_events()
    assert cache.forget_prefixes() == 9
    assert cache.take_block_events() == [BlocksCleared()]
    assert cache.stats().num_free == 30


def test_prefixes_in_use_are_not_forgotten() -> None:
    cache = CacheManager(30, blocks=BlockLog(SIZE))
    store(cache, "", [1] * 8)
    store(cache, "", [2] * 8)
    lease = cache.admit([1] * 9, 9)
    index = Index()
    cache.forget_prefixes()
    index.apply(cache.take_block_events())
    assert {tokens for _, tokens in index.prefixes.values()} == {(1,) * 4, (1,) * 8}
    cache.release(lease, [1] * 9)


def test_hashes_depend_on_everything_before() -> None:
    block = np.arange(SIZE)
    keys = {
        block_hash(None, block, ""),
        block_hash(None, block, "salt"),
        block_hash(7, block, ""),
        block_hash(None, block + 1, ""),
    }
    assert len(keys) == 4 and all(0 <= key < 2**63 for key in keys)
    # Routers keep hashes over restarts, and so do servers of other versions.
    assert block_hash(None, block, "") == 8479124504904169328


@pytest.mark.parametrize("length", [3, 4, 9])
def test_without_a_log_there_are_no_events(length: int) -> None:
    cache = CacheManager(30)
    store(cache, "", list(range(length)))
    cache.log_blocks_anew()
    assert cache.take_block_events() == []
