"""A grammar in several replicas: the same masks, for outputs that do not wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from eyas.constraint import build_backend
from eyas.constraint.automaton import Automaton
from eyas.constraint.llguidance_grammar import FEW
from eyas.constraint.llguidance_library import MAX_REPLICAS
from eyas.grammar import Regex
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.test_draft_matchers import masks_of
from tests.constraint.test_filling import expected
from tests.constraint.walking import compiled, tokens_of, walked

LETTERS = Regex("[a-z]{1,30}!")


@pytest.fixture
def wide(vocabulary: Any) -> Iterator[Any]:
    """A backend of enough threads for all replicas."""
    backend = build_backend("llguidance", vocabulary, MAX_REPLICAS)
    yield backend
    backend.close()


def crowded(backend: Any, grammar: Any) -> list[Any]:
    """States of so many outputs that all of the grammar's replicas are there, and in use."""
    states = []
    for _ in range(2 * FEW * MAX_REPLICAS):
        states.append(grammar.start())
        until_idle(backend)
    return states


def until_idle(backend: Any) -> None:
    backend._background.submit(lambda: None).result()


def test_there_are_as_many_replicas_as_outputs_under_way_need(wide: Any) -> None:
    grammar: Any = compiled(wide, LETTERS)
    num_bytes = grammar.num_bytes
    states, counts = [], []
    for _ in range(2 * FEW * MAX_REPLICAS):
        states.append(grammar.start())
        places = Counter(state.replica.number for state in states)
        assert max(places.values()) <= FEW + 1 or grammar.num_replicas == MAX_REPLICAS
        until_idle(wide)
        counts.append(grammar.num_replicas)
    assert counts[: FEW + 1] == [1] * FEW + [2] and sorted(set(counts)) == [1, 2, 4, 8]
    assert counts == sorted(counts) and list(places.values()) == [2 * FEW] * MAX_REPLICAS
    assert grammar.num_bytes == MAX_REPLICAS * num_bytes
    assert len({id(state.matcher) for state in states}) == MAX_REPLICAS
    mask_RK = np.zeros((len(states), wide.vocabulary.num_mask_words), dtype=np.int32)
    assert wide.fill(states, mask_RK) == []
    assert (mask_RK == mask_RK[0]).all() and mask_RK.any()


def test_outputs_one_after_the_other_stay_in_the_first_replica(
    wide: Any, tokenizer: Tokenizer
) -> None:
    """Whose lexer is warm; what has ended does not count, what has moved on does."""
    grammar: Any = compiled(wide, LETTERS)
    for _ in range(4 * FEW):
        state = grammar.start().become(tokens_of(tokenizer, "abc"))
        assert (
            state.replica.number == 0
            and state.after(tokens_of(tokenizer, "d")[0]).replica.number == 0
        )
        del state
    until_idle(wide)
    assert grammar.num_replicas == 1
    crowded(wide, grammar)
    assert grammar.num_replicas == MAX_REPLICAS
    assert [grammar.start().replica.number for _ in range(3)] == [0, 0, 0]
    kept = [grammar.start().become(tokens_of(tokenizer, "abc")) for _ in range(3)]
    assert [state.replica.number for state in kept] == [0, 1, 2]


@pytest.mark.parametrize("name", WALKS)
def test_masks_are_those_of_a_walk_in_every_replica(
    wide: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = WALKS[name]
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    other = compiled(wide, root)
    grammar: Any = compiled(wide, root)
    states = crowded(wide, grammar)[-MAX_REPLICAS:]
    assert len({state.replica.number for state in states}) == MAX_REPLICAS
    place = 0
    while place < len(tokens):
        draft = tokens[place : place + 4]
        along = walked(other, tokens[: place + 4])[place:]
        expected_LK = expected(wide, along, 1 + len(draft))
        for state in states:
            assert np.array_equal(masks_of(wide, state, draft), expected_LK), place
        states = [state.become(tokens[place : place + 3]) for state in states]
        place += 3
    starts = [replica.matcher for replica in grammar._replicas]
    assert not any(state.matcher in starts for state in states), "the starts stay"


def test_an_output_that_holds_others_up_goes_on_in_a_replica_that_came_later(
    wide: Any, tokenizer: Tokenizer
) -> None:
    grammar: Any = compiled(wide, LETTERS)
    automaton = Automaton(grammar)
    fork = automaton.fork()
    for each in (automaton, fork):
        each.advance(tokens_of(tokenizer, "abcabc"))
    root = automaton.root
    automaton.held_up(5)
    assert automaton.root is root, "there is one replica"
    others = crowded(wide, grammar)
    automaton.held_up(5)
    moved: Any = automaton.root
    assert moved is not root and automaton.mask_limit.limit == 0 and len(others) > MAX_REPLICAS
    automaton.held_up(5)
    assert automaton.root is moved, "once is enough"
    fork.held_up(5)
    assert fork.root is not moved
    expected_LK = expected(wide, [root], 1)
    for each in (automaton, fork):
        assert np.array_equal(masks_of(wide, each.root, []), expected_LK)
        each.advance([*tokens_of(tokenizer, "xyz!"), tokenizer.eos_id])
        assert each.num_replays == 0 and each.root.after(tokenizer.eos_id) is None


def test_one_thread_needs_one_replica(vocabulary: Any) -> None:
    backend: Any = build_backend("llguidance", vocabulary, 1)
    grammar: Any = compiled(backend, LETTERS)
    crowded(backend, grammar)
    assert grammar.num_replicas == 1
    backend.close()


def test_after_it_is_closed_nothing_is_compiled(wide: Any) -> None:
    grammar: Any = compiled(wide, LETTERS)
    wide.close()
    states = [grammar.start() for _ in range(2 * FEW)]
    assert grammar.num_replicas == 1 and len(states) > FEW
