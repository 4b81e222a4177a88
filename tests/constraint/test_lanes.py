"""A grammar in several lanes: the same masks, by more threads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from eyas.constraint import build_backend, llguidance_states
from eyas.constraint.automaton import Automaton
from eyas.constraint.llguidance import MAX_LANES
from eyas.constraint.llguidance_grammar import MANY_STARTS
from eyas.grammar import Regex
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.test_filling import expected
from tests.constraint.test_readers import masks_of
from tests.constraint.walking import compiled, tokens_of, walked

LETTERS = "[a-z]{1,30}!"


@pytest.fixture
def wide(vocabulary: Any) -> Iterator[Any]:
    """A backend of enough threads for all lanes."""
    backend = build_backend("llguidance", vocabulary, 2 * MAX_LANES)
    yield backend
    backend.close()


def widened(backend: Any, grammar: Any) -> Any:
    """The grammar, once its lanes are there."""
    backend.widen(grammar)
    until_idle(backend)
    return grammar


def until_idle(backend: Any) -> None:
    backend._background.submit(lambda: None).result()


def in_pieces(backend: Any, state: Any, draft: Sequence[int]) -> list[int]:
    """With which mask each of the library's matchers begins."""
    job_masks = np.zeros((1 + len(draft), backend.vocabulary.num_mask_words), dtype=np.int32)
    drafts: list[int] = []
    copy_beside = type(state).copy_beside

    def noted(self: Any, lane: int, tokens: Sequence[int]) -> Any:
        matcher = copy_beside(self, lane, tokens)
        drafts.extend([len(tokens)] * (matcher is not None))
        return matcher

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(state), "copy_beside", noted)
        job = backend.job([state], job_masks, None, [draft])
    job.run()
    job.settle()
    return [0, *drafts]


@pytest.mark.parametrize("name", WALKS)
@pytest.mark.parametrize("is_dear", [True, False])
def test_masks_are_those_of_a_walk(
    wide: Any, tokenizer: Tokenizer, name: str, is_dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts of every length, right, wrong, over the end, with what is no token."""
    monkeypatch.setattr(llguidance_states, "DEAR_SECONDS", -1.0 if is_dear else 1.0)
    root, pieces = WALKS[name]
    grammar = widened(wide, compiled(wide, root))
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    lanes = set()
    for seed in range(6):
        draw = random.Random(f"{name} {seed}")
        state, place = grammar.start(), 0
        while place < len(tokens):
            lanes.add(state.num_lanes)
            draft = tokens[place : place + draw.randrange(1, 9)]
            if draw.random() < 0.6:
                others = [draw.randrange(tokenizer.vocab_size), tokenizer.eos_id, -1, 2**31 - 1]
                draft[draw.randrange(len(draft))] = draw.choice(others)  # type: ignore[assignment]
            along = walked(grammar, [*tokens[:place], *draft])[place:]
            expected_LK = expected(wide, along, 1 + len(draft))
            assert np.array_equal(masks_of(wide, state, draft), expected_LK), (place, draft)
            num = draw.randrange(1, 5)
            state = state.become(tokens[place : place + num])
            place += num
    assert MAX_LANES in lanes, "and some drafts went through in pieces"


def test_a_draft_goes_through_in_pieces_of_two_masks_and_more(
    wide: Any, tokenizer: Tokenizer
) -> None:
    grammar = widened(wide, compiled(wide, Regex(LETTERS)))
    [letter] = tokens_of(tokenizer, "a")
    for state in (grammar.start(), grammar.start().become([letter, letter])):
        begins = [in_pieces(wide, state, [letter] * num) for num in range(1, 8)]
        assert begins == [[0], [0], [0, 2], [0, 2], [0, 2, 4], [0, 2, 4], [0, 2, 5]]
    wrong = [letter, -1, letter, letter, letter]
    assert in_pieces(wide, grammar.start(), wrong) == [0], "nothing is asked behind what is refused"


def test_lanes_come_when_masks_have_held_a_step_up_and_are_for_new_outputs(
    wide: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(wide, Regex(LETTERS))
    early = Automaton(grammar)
    early.held_up(5)
    until_idle(wide)
    assert early.reach.limit == 0
    early.advance(tokens_of(tokenizer, "a"))
    state: Any = early.root.state
    assert state.num_lanes == 1
    later: Any = Automaton(grammar).root.state
    assert later.num_lanes == MAX_LANES
    assert grammar.start(fresh=True).num_lanes == 1, "a fresh one shares nothing"
    assert later.after(tokens_of(tokenizer, "a")[0]).num_lanes == 1


def test_outputs_of_a_grammar_that_many_use_are_in_different_lanes(wide: Any) -> None:
    grammar: Any = compiled(wide, Regex(LETTERS))
    matchers = [grammar.start().matcher for _ in range(MANY_STARTS)]
    assert all(matcher is matchers[0] for matcher in matchers)
    until_idle(wide)
    states = [grammar.start() for _ in range(2 * MAX_LANES)]
    assert len({id(state.matcher) for state in states}) == MAX_LANES
    assert {state.num_lanes for state in states} == {1}, "and no draft is in pieces for that"
    mask_RK = np.zeros((len(states), wide.vocabulary.num_mask_words), dtype=np.int32)
    assert wide.fill(states, mask_RK) == []
    assert (mask_RK == mask_RK[0]).all() and mask_RK.any()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_few_threads_need_no_lanes(vocabulary: Any, num_threads: int) -> None:
    backend: Any = build_backend("llguidance", vocabulary, num_threads)
    grammar = widened(backend, compiled(backend, Regex(LETTERS)))
    assert grammar.start().num_lanes == 1 and len(grammar._lanes) == 1
    backend.close()


def test_a_limit_hit_in_a_later_piece_leaves_its_rows_empty(
    wide: Any, tokenizer: Tokenizer
) -> None:
    """The library allows an end where it has hit a limit: that is taken back, whoever hit it."""
    grammar = widened(wide, compiled(wide, Regex("(.{1,1000}){1,1000}")))
    tokens = tokens_of(tokenizer, "abcdefghijklmnopqrstuvwxyz" * 3)
    num_places = set()
    for size in range(4, len(tokens), 5):
        mask_LK = masks_of(wide, grammar.start(), tokens[:size])
        has_mask = mask_LK.any(axis=1)
        num = int(has_mask.argmin()) if not has_mask.all() else len(has_mask)
        assert not has_mask[num:].any(), "nothing behind what is missing"
        assert (np.count_nonzero(mask_LK[:num], axis=1) > 1).all(), "letters, and not an end alone"
        if num < len(has_mask):
            num_places.add(num * MAX_LANES // len(has_mask))
    assert num_places - {0}, "hit in a later piece too"


def test_after_it_is_closed_nothing_is_compiled(wide: Any) -> None:
    grammar = compiled(wide, Regex(LETTERS))
    wide.close()
    wide.widen(grammar)
    assert grammar.start().num_lanes == 1
