"""Drafts that the libraries go through by themselves: as if every token had been walked to."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from eyas.constraint import ConstraintFailure, build_backend
from eyas.constraint.automaton import Automaton
from eyas.constraint.fill import Draft, fill_drafts
from eyas.grammar import Json, Regex, Source
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.walking import compiled, tokens_of, walked

HEAVY = Regex("(.{1,1000}){1,1000}")
"""Hits a limit after some tokens."""


def expected(backend: Any, states: Sequence[Any], num: int) -> np.ndarray:
    """[num, K]: the masks of states one at a time, and zeros."""
    mask_RK = np.zeros((num, backend.vocabulary.num_mask_words), dtype=np.int32)
    for row, state in enumerate(states):
        assert backend.fill([state], mask_RK[row : row + 1]) == []
    return mask_RK


def drafted_from(grammar: Any, before: Sequence[int], draft: Sequence[int]) -> list[Any]:
    """The states at the end of a text and along a draft, as far as it is legal."""
    states = walked(grammar, [*before, *draft])
    assert len(states) > len(before)
    return states[len(before) :]


def some_drafts(tokenizer: Tokenizer, tokens: list[int], draw: random.Random) -> list[list[int]]:
    """What may follow each place of a text: its own tokens, one of them another, none."""
    drafts = []
    for place in range(len(tokens)):
        draft = tokens[place : place + draw.randrange(6)]
        if draft and draw.random() < 0.7:
            others = [draw.randrange(tokenizer.vocab_size), tokenizer.eos_id, -1, 2**31 - 1]
            draft[draw.randrange(len(draft))] = draw.choice(others)  # type: ignore[assignment]
        drafts.append(draft)
    return drafts


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_a_draft_is_filled_as_if_it_had_been_walked_through(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, name: str, threads: int
) -> None:
    """All at once, many of one grammar and of others, with the end and what is no token at all."""
    backend = request.getfixturevalue(f"{name}_backend")
    if threads > 1:
        backend = build_backend(name, backend.vocabulary, threads, deadline_seconds=30.0)
    draw = random.Random(threads)
    states, drafts, wanted, rows, row = [], [], [], [], 1
    for root, pieces in WALKS.values():
        grammar = compiled(backend, root)
        tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
        for place, draft in enumerate(some_drafts(tokenizer, tokens, draw)):
            along = drafted_from(grammar, tokens[:place], draft)
            states.append(along[0])
            drafts.append(draft)
            rows.append(row)
            wanted.append(expected(backend, along, len(draft) + 1))
            row += len(draft) + 2  # one between them is nobody's
    assert any(len(draft) == 0 for draft in drafts)
    mask_RK = np.zeros((row, backend.vocabulary.num_mask_words), dtype=np.int32)
    assert backend.fill_drafts(states, drafts, rows, mask_RK) == []
    is_somebodys = np.zeros(row, dtype=bool)
    for first, rows_LK in zip(rows, wanted, strict=True):
        assert np.array_equal(mask_RK[first : first + len(rows_LK)], rows_LK)
        is_somebodys[first : first + len(rows_LK)] = True
    assert not mask_RK[~is_somebodys].any()
    again_RK = np.zeros_like(mask_RK)
    assert backend.fill_drafts(states, drafts, rows, again_RK) == []
    assert np.array_equal(again_RK, mask_RK), "a state stays what it is"
    if threads > 1:
        backend.close()


@pytest.mark.parametrize("name", WALKS)
def test_many_tokens_at_once_lead_where_each_of_them_leads(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = WALKS[name]
    grammar = compiled(backend, root)
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    states = walked(grammar, tokens)
    for place in range(0, len(tokens), 3):
        for end in range(place, len(tokens) + 1):
            reached = states[place].after_all(tokens[place:end])
            wanted = expected(backend, [states[end]], 1)
            assert np.array_equal(expected(backend, [reached], 1), wanted)
    if name not in ("reasoning", "calls"):  # there, anything may come first
        assert states[0].after_all(tokens[1:]) is None
    assert states[0].after_all([*tokens, tokens[0]]) is None
    assert states[0].after_all([-1]) is None


def test_a_grammar_that_cannot_go_back_goes_forward(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    text = 'start: some "!"\nsome[max_tokens=6]: /[a-z ]*/\n'
    grammar = compiled(llguidance_backend, Source("lark", text))
    draft = tokens_of(tokenizer, "abc def")[:4]
    along = drafted_from(grammar, [], draft)
    mask_RK = np.zeros((len(draft) + 1, llguidance_backend.vocabulary.num_mask_words), np.int32)
    assert llguidance_backend.fill_drafts([along[0]], [draft], [0], mask_RK) == []
    assert len(along) > 2
    assert np.array_equal(mask_RK, expected(llguidance_backend, along, len(mask_RK)))


def test_a_limit_hit_in_a_draft_leaves_its_rows_empty(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    heavy = compiled(llguidance_backend, HEAVY)
    light = compiled(llguidance_backend, Json('{"type":"integer"}'))
    letter, digits = tokens_of(tokenizer, "a")[0], tokens_of(tokenizer, "1234")[:3]
    draft = [letter] * 5
    state, failed = heavy.start(), False
    num = len(digits) + 1
    wanted = expected(llguidance_backend, drafted_from(light, [], digits), num)
    for _ in range(300):
        mask_RK = np.zeros((2 * num + 6, wanted.shape[1]), dtype=np.int32)
        states, drafts = [light.start(), state, light.start()], [digits, draft, digits]
        rows = [0, num, num + 6]
        told = llguidance_backend.fill_drafts(states, drafts, rows, mask_RK)
        has_row = mask_RK[num : num + 6].any(axis=1).tolist()
        assert has_row == sorted(has_row, reverse=True), "none behind one that failed"
        assert told == ([] if has_row[0] else [1])
        failed = failed or not all(has_row)
        assert np.array_equal(mask_RK[:num], wanted) and np.array_equal(mask_RK[num + 6 :], wanted)
        if failed:
            break
        state = state.after(letter)
    assert failed, "the pattern is meant to be over the library's limits"
    with pytest.raises(ConstraintFailure):
        heavy.start(fresh=True).after_all([letter] * 400)


# Drafts of points


def draft_of(automaton: Automaton, tokens: Sequence[int], row: int) -> Draft:
    return Draft(automaton.root, tuple(tokens), row, automaton.has_twins)


class Counting:
    """A backend that counts what it is asked for, and breaks where `spoilt` takes part."""

    vocabulary: Any

    def __init__(self, backend: Any) -> None:
        self.backend: Any = backend
        self.num = 0
        self.spoilt: list[int] | None = None

    def fill_drafts(self, states: Any, drafts: Any, rows: Any, mask_RK: Any) -> list[int]:
        self.num += len(states)
        if any(list(draft) == self.spoilt for draft in drafts):
            for row, draft in zip(rows, drafts, strict=True):
                mask_RK[row : row + len(draft) + 1] = -1
            raise MemoryError("on purpose")
        return self.backend.fill_drafts(states, drafts, rows, mask_RK)


@pytest.fixture
def counting(llguidance_backend: Any, tokenizer: Tokenizer) -> tuple[Counting, Any, list[int]]:
    """It, a grammar of its own, and tokens that are legal from the start."""
    grammar = compiled(llguidance_backend, Regex("[a-z ]{3,40}"))
    backend = Counting(llguidance_backend)
    grammar._backend = backend
    for name in ("vocabulary", "eos_token_ids", "is_nameless", "spelled"):
        setattr(backend, name, getattr(llguidance_backend, name))
    return backend, grammar, tokens_of(tokenizer, "abc def ghi")[:4]


def test_a_draft_is_filled_once_however_often_it_is_asked_for(
    counting: tuple[Counting, Any, list[int]],
) -> None:
    backend, grammar, tokens = counting
    first = Automaton(grammar)
    twin, other = first.fork(), Automaton(grammar)
    drafts = [draft_of(first, tokens, 0), draft_of(twin, tokens, 5), draft_of(other, tokens, 10)]
    drafts.append(draft_of(twin, tokens[:2], 15))
    mask_RK = np.zeros((18, backend.vocabulary.num_mask_words), dtype=np.int32)
    assert fill_drafts(drafts, mask_RK) == 5 + 5 + 3
    assert backend.num == 3, "twins stand at one point, with one draft"
    assert np.array_equal(mask_RK[:5], mask_RK[5:10]) and mask_RK[:5].any(axis=1).all()
    assert [draft.num_legal for draft in drafts] == [4, 4, 4, 2]
    assert all(draft.is_filled for draft in drafts)
    # a step later for one of them: it is still known, and of one that has no twins nothing is kept
    mask_RK[:] = 0
    twins, alone = draft_of(twin, tokens[:2], 0), draft_of(other, tokens, 3)
    assert fill_drafts([twins, alone], mask_RK) == 5
    assert backend.num == 4 and twins.num_legal == 2 and mask_RK[:8].any(axis=1).all()
    assert other.root.ahead is None and other.root.mask is None


def test_twins_that_move_over_the_same_tokens_stay_together(
    counting: tuple[Counting, Any, list[int]],
) -> None:
    _, grammar, tokens = counting
    first = Automaton(grammar)
    twin = first.fork()
    for _ in range(3):
        first.advance(tokens[:3])
        twin.advance(tokens[:3])
        assert first.root is twin.root
    first.advance(tokens[:2])
    twin.advance(tokens[1:3])
    assert first.root is not twin.root


def test_one_draft_that_breaks_the_library_breaks_no_other(
    counting: tuple[Counting, Any, list[int]],
) -> None:
    backend, grammar, tokens = counting
    backend.spoilt = tokens[:1]
    automata = [Automaton(grammar) for _ in range(3)]
    lengths = (4, 1, 2)
    drafts = [
        draft_of(automaton, tokens[:length], 5 * i)
        for i, (automaton, length) in enumerate(zip(automata, lengths, strict=True))
    ]
    mask_RK = np.zeros((15, backend.vocabulary.num_mask_words), dtype=np.int32)
    assert fill_drafts(drafts, mask_RK) == 5 + 3
    assert [draft.is_filled for draft in drafts] == [True, False, True]
    filled = mask_RK.any(axis=1).tolist()
    assert filled == [True] * 5 + [False] * 5 + [True] * 3 + [False] * 2


def test_after_the_deadline_no_draft_is_begun(counting: tuple[Counting, Any, list[int]]) -> None:
    backend, grammar, tokens = counting
    drafts = [draft_of(Automaton(grammar), tokens, 0)]
    mask_RK = np.zeros((5, backend.vocabulary.num_mask_words), dtype=np.int32)
    assert fill_drafts(drafts, mask_RK, time.perf_counter() - 1) == 0
    assert backend.num == 0 and not mask_RK.any() and drafts[0].is_filled is None
    assert fill_drafts(drafts, mask_RK, time.perf_counter() + 60) == 5
