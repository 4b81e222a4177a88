"""Drafts that are filled at once with the points before them: as if every token had been walked to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Automaton
from eyas.constraint.fill import Draft, fill_drafts
from eyas.grammar import Regex, Source
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


@pytest.mark.parametrize("name", WALKS)
def test_a_draft_is_filled_as_if_it_had_been_walked_through(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    """With the end and what is no token at all; and a state stays what it is."""
    root, pieces = WALKS[name]
    grammar = compiled(backend, root)
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    starts, drafts, wanted = [], [], []
    for place, draft in enumerate(some_drafts(tokenizer, tokens, random.Random(name))):
        along = drafted_from(grammar, tokens[:place], draft)
        starts.append(along[0])
        drafts.append(draft)
        wanted.append(expected(backend, along, 1 + len(draft)))
    rows = [sum(len(each) for each in wanted[:i]) for i in range(len(wanted))]
    for order in (list(range(len(rows))), list(range(len(rows)))[::-1]):
        mask_RK = np.zeros_like(np.concatenate(wanted))
        asked = [[each[i] for i in order] for each in (starts, rows, drafts)]
        assert backend.fill(asked[0], mask_RK, asked[1], asked[2]) == []
        assert np.array_equal(mask_RK, np.concatenate(wanted))
    for state, draft, wanted_LK in zip(starts, drafts, wanted, strict=True):  # each by itself
        mask_LK = np.zeros_like(wanted_LK)
        assert backend.fill([state], mask_LK, None, [draft]) == []
        assert np.array_equal(mask_LK, wanted_LK)


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
    assert len(along) > 2
    wanted = expected(llguidance_backend, along, 1 + len(draft))
    for _ in range(2):
        mask_LK = np.zeros_like(wanted)
        assert llguidance_backend.fill([along[0]], mask_LK, None, [draft]) == []
        assert np.array_equal(mask_LK, wanted)


def test_a_limit_hit_in_a_draft_leaves_its_rows_empty(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    """And no other's; where the point itself hits it that is told."""
    heavy, light = (compiled(llguidance_backend, root) for root in (HEAVY, Regex("[a-z]{0,40}")))
    letter = tokens_of(tokenizer, "a")[0]
    state, others = heavy.start(), [light.start(), light.start().after(letter)]
    words = llguidance_backend.vocabulary.num_mask_words
    has_mask = [True] * 6
    for _ in range(300):
        mask_RK = np.zeros((18, words), dtype=np.int32)
        states, drafts = [others[0], state, others[1]], [[letter] * 5] * 3
        failed = llguidance_backend.fill(states, mask_RK, [0, 6, 12], drafts)
        assert mask_RK[:6].any(axis=1).all() and mask_RK[12:].any(axis=1).all()
        has_mask = mask_RK[6:12].any(axis=1).tolist()
        assert failed == []
        if not all(has_mask):
            break
        state = state.after(letter)
    assert has_mask == sorted(has_mask, reverse=True) and has_mask[0]
    assert not all(has_mask), "the pattern is meant to be over the library's limits"
    # now it is spoilt for all that share its lexer
    mask_RK[:] = 0
    assert llguidance_backend.fill(states, mask_RK, [0, 6, 12], drafts) == [1]
    assert mask_RK.any(axis=1).tolist() == [True] * 6 + [False] * 6 + [True] * 6
    with pytest.raises(ConstraintFailure):
        heavy.start(fresh=True).after_all([letter] * 400)


# Drafts of points


class Faulty:
    """A backend that counts the drafts it is asked for, and breaks over `spoilt`, whose rows and its
    neighbours' it leaves full of rubbish."""

    vocabulary: Any

    def __init__(self, backend: Any) -> None:
        self.backend: Any = backend
        self.num = 0
        self.spoilt: list[int] | None = None

    def fill(self, states: Any, mask_RK: Any, rows: Any = None, drafts: Any = None) -> list[int]:
        if self.spoilt in [list(draft) for draft in drafts or ()]:
            for row, draft in zip(rows, drafts, strict=True):
                mask_RK[row : row + 1 + len(draft)] = 7
            raise MemoryError("on purpose")
        self.num += sum(bool(draft) for draft in drafts or ())
        return self.backend.fill(states, mask_RK, rows, drafts)


@pytest.fixture
def faulty(llguidance_backend: Any, tokenizer: Tokenizer) -> tuple[Faulty, Any, list[int]]:
    """It, a way to new grammars of it, and tokens that are legal from the start."""
    backend = Faulty(llguidance_backend)
    for name in ("vocabulary", "eos_token_ids", "is_nameless", "spelled"):
        setattr(backend, name, getattr(llguidance_backend, name))

    def grammar() -> Any:
        made = compiled(llguidance_backend, Regex("[a-z ]{3,40}"))
        made._backend = backend
        return made

    return backend, grammar, tokens_of(tokenizer, "abc def ghi")[:4]


def draft_of(automaton: Automaton, tokens: Sequence[int], row: int) -> Draft:
    return Draft(automaton.root, tuple(tokens), row, automaton.has_twins)


def filled(drafts: Sequence[Draft], backend: Any) -> tuple[int, np.ndarray]:
    """How many masks were made, and all."""
    num_rows = max(draft.row + len(draft.tokens) + 1 for draft in drafts)
    mask_RK = np.zeros((num_rows, backend.vocabulary.num_mask_words), dtype=np.int32)
    return fill_drafts(drafts, mask_RK), mask_RK


def test_a_draft_is_filled_once_however_often_it_is_asked_for(
    faulty: tuple[Faulty, Any, list[int]],
) -> None:
    backend, grammar, tokens = faulty
    first = Automaton(grammar())
    twin, other = first.fork(), Automaton(grammar())
    first.has_twins = twin.has_twins = True
    drafts = [draft_of(first, tokens, 0), draft_of(twin, tokens, 5), draft_of(other, tokens, 10)]
    drafts += [draft_of(twin, tokens[:2], 15), draft_of(other, [], 18)]
    num, mask_RK = filled(drafts, backend)
    assert num == 5 + 5 + 3 + 1
    assert backend.num == 3, "twins stand at one point, with one draft"
    assert np.array_equal(mask_RK[:5], mask_RK[5:10]) and mask_RK.any(axis=1).all()
    assert np.array_equal(mask_RK[:3], mask_RK[15:18])
    assert [draft.num_legal for draft in drafts] == [4, 4, 4, 2, 0]
    assert all(draft.is_filled and draft.has_root for draft in drafts)
    # a step later for one of them: what was filled is known, and without twins nothing is kept
    twins, alone = draft_of(twin, first.root.ahead[0], 0), draft_of(other, tokens, 5)  # type: ignore[index]
    num, again_RK = filled([twins, alone], backend)
    assert num == 5 and backend.num == 4
    assert twins.num_legal == len(twins.tokens) and twins.is_filled
    assert np.array_equal(again_RK[5:], mask_RK[10:15]) and other.root.ahead is None
    assert np.array_equal(again_RK[: 1 + twins.num_legal], mask_RK[: 1 + twins.num_legal])
    assert np.array_equal(first.root.mask, mask_RK[0])  # type: ignore[arg-type]


def test_twins_that_move_over_the_same_tokens_stay_together(
    faulty: tuple[Faulty, Any, list[int]],
) -> None:
    _, grammar, tokens = faulty
    first = Automaton(grammar())
    twin = first.fork()
    for _ in range(3):
        first.advance(tokens[:3])
        twin.advance(tokens[:3])
        assert first.root is twin.root
    first.advance(tokens[:2])
    twin.advance(tokens[1:3])
    assert first.root is not twin.root


def test_one_draft_that_breaks_the_library_breaks_no_other(
    faulty: tuple[Faulty, Any, list[int]],
) -> None:
    backend, grammar, tokens = faulty
    backend.spoilt = tokens[:2]
    shared = grammar()
    automata = [Automaton(shared), Automaton(shared), Automaton(grammar())]
    lengths = (4, 2, 3)
    drafts = [
        draft_of(automaton, tokens[:length], 5 * i)
        for i, (automaton, length) in enumerate(zip(automata, lengths, strict=True))
    ]
    num, mask_RK = filled(drafts, backend)
    assert num == 5 + 4
    assert [draft.is_filled for draft in drafts] == [True, False, True]
    assert [draft.has_root for draft in drafts] == [True, False, True]
    assert mask_RK.any(axis=1).tolist() == [True] * 5 + [False] * 5 + [True] * 4
