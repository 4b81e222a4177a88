"""The prefix tree against a dictionary of prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eyas.cache.radix import RadixNode, RadixTree
from tests.thorough import drawn

RUNS = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=10)
NAMES = st.sampled_from(["", "", "b"])
Prefix = tuple[str, tuple[int, ...]]


def array(tokens: list[int]) -> np.ndarray:
    return np.asarray(tokens, dtype=np.int64)


class RadixMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree()
        self.slot_of: dict[Prefix, int] = {}
        self.locks: list[tuple[RadixNode, Prefix]] = []
        self.next_slot = 1

    def known_length(self, tokens: list[int], name: str) -> int:
        length = 0
        while length < len(tokens) and (name, tuple(tokens[: length + 1])) in self.slot_of:
            length += 1
        return length

    def locked(self) -> set[Prefix]:
        return {(n, run[:i]) for _, (n, run) in self.locks for i in range(1, len(run) + 1)}

    @rule(tokens=RUNS, name=NAMES)
    def insert(self, tokens: list[int], name: str) -> None:
        slots = np.arange(self.next_slot, self.next_slot + len(tokens))
        self.next_slot += len(tokens)
        expected = self.known_length(tokens, name)
        known, node = self.tree.insert(array(tokens), slots, name)
        assert known.tolist() == [
            self.slot_of[name, tuple(tokens[: i + 1])] for i in range(expected)
        ]
        for i in range(expected, len(tokens)):
            self.slot_of[name, tuple(tokens[: i + 1])] = int(slots[i])
        assert self.path(node) == tokens

    @rule(tokens=RUNS, name=NAMES)
    def match(self, tokens: list[int], name: str) -> None:
        slots, node = self.tree.match(array(tokens), name)
        length = self.known_length(tokens, name)
        expected = [self.slot_of[name, tuple(tokens[: i + 1])] for i in range(length)]
        assert slots.tolist() == expected
        assert self.path(node) == tokens[:length]

    @rule(tokens=RUNS, name=NAMES)
    def lock(self, tokens: list[int], name: str) -> None:
        _, node = self.tree.match(array(tokens), name)
        length = self.known_length(tokens, name)
        if length:
            self.tree.lock(node)
            self.locks.append((node, (name, tuple(tokens[:length]))))

    @precondition(lambda self: self.locks)
    @rule(which=st.integers(0, 99))
    def unlock(self, which: int) -> None:
        node, _ = self.locks.pop(which % len(self.locks))
        self.tree.unlock(node)

    @rule(wanted=st.integers(1, 12))
    def evict(self, wanted: int) -> None:
        evictable = self.tree.num_evictable
        freed = set(self.tree.evict(wanted).tolist())
        assert min(wanted, evictable) <= len(freed) <= evictable
        gone = {prefix for prefix, slot in self.slot_of.items() if slot in freed}
        assert len(gone) == len(freed), "freed a slot that the tree did not hold"
        assert gone.isdisjoint(self.locked()), "freed a locked prefix"
        for prefix in gone:
            del self.slot_of[prefix]
        for name, run in self.slot_of:
            assert len(run) == 1 or (name, run[:-1]) in self.slot_of, "a prefix lost its beginning"

    def path(self, node: RadixNode) -> list[int]:
        tokens: list[int] = []
        while node.parent is not None:
            tokens[:0] = node.tokens.tolist()
            node = node.parent
        return tokens

    @invariant()
    def agrees_with_the_dictionary(self) -> None:
        assert sorted(self.tree.all_slots().tolist()) == sorted(self.slot_of.values())
        assert self.tree.num_slots == len(self.slot_of)
        assert self.tree.num_locked_slots == len(self.locked())


RadixMachine.TestCase.settings = settings(
    max_examples=drawn(60, 150),
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRadixMachine = RadixMachine.TestCase


def test_the_least_recently_used_leaf_goes_first() -> None:
    tree = RadixTree()
    for i, run in enumerate(([1, 1], [2, 2], [3, 3])):
        tree.insert(array(run), np.array([10 * i + 1, 10 * i + 2]), "")
    tree.match(array([1, 1]), "")
    assert sorted(tree.evict(2).tolist()) == [11, 12]
    assert sorted(tree.evict(3).tolist()) == [2, 21, 22]
    assert tree.match(array([1, 1]), "")[0].tolist() == [1]


def test_a_locked_leaf_is_passed_over_however_old_it_is() -> None:
    tree = RadixTree()
    for i, run in enumerate(([1, 1], [2, 2])):
        tree.insert(array(run), np.array([10 * i + 1, 10 * i + 2]), "")
    _, oldest = tree.match(array([1, 1]), "")
    tree.lock(oldest)
    tree.match(array([2, 2]), "")
    assert sorted(tree.evict(2).tolist()) == [11, 12]
    assert len(tree.evict(1)) == 0
    tree.unlock(oldest)
    assert sorted(tree.evict(2).tolist()) == [1, 2]


def test_the_heap_stays_bounded_under_endless_matches() -> None:
    tree = RadixTree()
    for i in range(20):
        tree.insert(array([i, 0]), np.array([2 * i + 1, 2 * i + 2]), "")
    for i in range(20_000):
        tree.match(array([i % 20, 0]), "")
    assert len(tree._heap) <= 1025
    assert len(tree.evict(40)) == 40
