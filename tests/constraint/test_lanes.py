"""A grammar in several lanes: the same masks, for outputs that do not wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from eyas.constraint import build_backend
from eyas.constraint.automaton import Automaton
from eyas.constraint.llguidance import MAX_LANES
from eyas.constraint.llguidance_grammar import MANY_STARTS
from eyas.grammar import Regex
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.test_filling import expected
from tests.constraint.test_readers import masks_of
from tests.constraint.walking import compiled, tokens_of, walked

LETTERS = Regex("[a-z]{1,30}!")


@pytest.fixture
def wide(vocabulary: Any) -> Iterator[Any]:
    """A backend of enough threads for all lanes."""
    backend = build_backend("llguidance", vocabulary, MAX_LANES)
    yield backend
    backend.close()


def much_used(backend: Any, grammar: Any) -> Any:
    """The grammar, once all its lanes are there."""
    for _ in range(MANY_STARTS):
        grammar.start()
    until_idle(backend)
    return grammar


def until_idle(backend: Any) -> None:
    backend._background.submit(lambda: None).result()


def test_outputs_of_a_grammar_that_many_use_are_in_different_lanes(wide: Any) -> None:
    grammar: Any = compiled(wide, LETTERS)
    before, num_bytes = grammar.start(), grammar.num_bytes
    for _ in range(MANY_STARTS - 2):
        assert grammar.start().matcher is before.matcher
    until_idle(wide)
    assert grammar.num_lanes == 1 and grammar.num_bytes == num_bytes
    grammar.start()
    until_idle(wide)
    assert grammar.num_lanes == MAX_LANES and grammar.num_bytes == MAX_LANES * num_bytes
    states = [grammar.start() for _ in range(2 * MAX_LANES)]
    assert len({id(state.matcher) for state in states}) == MAX_LANES
    assert any(state.matcher is before.matcher for state in states)
    mask_RK = np.zeros((len(states), wide.vocabulary.num_mask_words), dtype=np.int32)
    assert wide.fill(states, mask_RK) == []
    assert (mask_RK == mask_RK[0]).all() and mask_RK.any()


@pytest.mark.parametrize("name", WALKS)
def test_masks_are_those_of_a_walk_in_every_lane(
    wide: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = WALKS[name]
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    other = compiled(wide, root)
    grammar = much_used(wide, compiled(wide, root))
    states = [grammar.start() for _ in range(MAX_LANES)]
    place = 0
    while place < len(tokens):
        draft = tokens[place : place + 4]
        along = walked(other, tokens[: place + 4])[place:]
        expected_LK = expected(wide, along, 1 + len(draft))
        for state in states:
            assert np.array_equal(masks_of(wide, state, draft), expected_LK), place
        states = [state.become(tokens[place : place + 3]) for state in states]
        place += 3
    assert len({id(lane) for lane in grammar._lanes}) == MAX_LANES
    assert all(grammar.is_first(lane) for lane in grammar._lanes)
    assert not any(grammar.is_first(state.matcher) for state in states), "the starts stay"


def test_an_output_that_holds_others_up_goes_on_in_a_lane_that_came_later(
    wide: Any, tokenizer: Tokenizer
) -> None:
    grammar: Any = compiled(wide, LETTERS)
    automaton, twin = Automaton(grammar), Automaton(grammar)
    twin.fork()
    for each in (automaton, twin):
        each.advance(tokens_of(tokenizer, "abcabc"))
    root = automaton.root
    automaton.held_up(5)
    assert automaton.root is root, "there is one lane"
    much_used(wide, grammar)
    automaton.held_up(5)
    moved = automaton.root
    assert moved is not root and automaton.reach.limit == 0
    automaton.held_up(5)
    assert automaton.root is moved, "once is enough"
    here = twin.root
    twin.held_up(5)
    assert twin.root is here, "twins stay together"
    expected_LK = expected(wide, [root.state], 1)
    assert np.array_equal(masks_of(wide, moved.state, []), expected_LK)
    for each in (automaton, twin):
        each.advance([*tokens_of(tokenizer, "xyz!"), tokenizer.eos_id])
        assert each.num_replays == 0 and each.root.state.after(tokenizer.eos_id) is None


def test_one_thread_needs_one_lane(vocabulary: Any) -> None:
    backend: Any = build_backend("llguidance", vocabulary, 1)
    grammar = much_used(backend, compiled(backend, LETTERS))
    assert grammar.num_lanes == 1
    backend.close()


def test_after_it_is_closed_nothing_is_compiled(wide: Any) -> None:
    grammar: Any = compiled(wide, LETTERS)
    wide.close()
    for _ in range(2 * MANY_STARTS):
        grammar.start()
    assert grammar.num_lanes == 1
