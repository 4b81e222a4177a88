"""Who goes through drafts and comes back sees what a fresh copy sees."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from eyas.constraint import build_backend, llguidance_states
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.grammar import Regex, Source
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.test_filling import expected
from tests.constraint.walking import compiled, tokens_of, walked

ALIKE = Source("lark", 'start: one | two\none: "a" "t" "h" one?\ntwo: "c" "t" "o" two?\n')
"""After `a` and after `c` lexer and row are the same, and what follows is not."""


@pytest.fixture(autouse=True)
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy counts as dear."""
    monkeypatch.setattr(llguidance_states, "DEAR_SECONDS", -1.0)


@pytest.fixture
def num_copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a matcher was copied since it was asked for."""
    copies: list[int] = []
    copy = LlguidanceState.copy

    def counted(state: LlguidanceState) -> Any:
        copies.append(1)
        return copy(state)

    monkeypatch.setattr(LlguidanceState, "copy", counted)

    def since() -> int:
        num = len(copies)
        copies.clear()
        return num

    return since


def masks_of(backend: Any, state: Any, draft: Sequence[int]) -> np.ndarray:
    """[1 + D, K] by a job, as a step has it."""
    mask_LK = np.zeros((1 + len(draft), backend.vocabulary.num_mask_words), dtype=np.int32)
    backend.expect([state])
    job = backend.job([state], mask_LK, None, [draft])
    job.run()
    job.settle()
    return mask_LK


@pytest.mark.parametrize("name", WALKS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_masks_are_those_of_a_walk_however_many_drafts_came_before(
    vocabulary: Any, tokenizer: Tokenizer, name: str, num_threads: int
) -> None:
    """Right, wrong, over the end, with what is no token; steps of every length."""
    backend: Any = build_backend("llguidance", vocabulary, num_threads)
    root, pieces = WALKS[name]
    grammar = compiled(backend, root)
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    for seed in range(6):
        draw = random.Random(f"{name} {seed}")
        state, place = grammar.start(), 0
        while place < len(tokens):
            draft = tokens[place : place + draw.randrange(1, 6)]
            if draw.random() < 0.7:
                others = [draw.randrange(tokenizer.vocab_size), tokenizer.eos_id, -1, 2**31 - 1]
                draft[draw.randrange(len(draft))] = draw.choice(others)  # type: ignore[assignment]
            along = walked(grammar, [*tokens[:place], *draft])[place:]
            expected_LK = expected(backend, along, 1 + len(draft))
            assert np.array_equal(masks_of(backend, state, draft), expected_LK), (place, draft)
            num = draw.randrange(1, 5)
            state = state.become(tokens[place : place + num])
            place += num
    backend.close()


def test_a_text_is_copied_once_however_long_it_gets(
    llguidance_backend: Any, tokenizer: Tokenizer, num_copies: Callable[[], int]
) -> None:
    grammar = compiled(llguidance_backend, Regex("(?:ab|ac){1,200}"))
    state, step = grammar.start(), tokens_of(tokenizer, "ab")
    masks_of(llguidance_backend, state, step)
    state = state.become(step)
    assert num_copies() == 2, "the start is everybody's, and one for its draft"
    for _ in range(40):
        masks_of(llguidance_backend, state, tokens_of(tokenizer, "acab"))
        state = state.become(step)
        masks_of(llguidance_backend, state, [])
    assert num_copies() == 0


def test_a_mask_of_a_draft_is_not_taken_for_another_texts(
    llguidance_backend: Any, tokenizer: Tokenizer, num_copies: Callable[[], int]
) -> None:
    grammar = compiled(llguidance_backend, ALIKE)
    one, two, t = (tokens_of(tokenizer, text) for text in "act")
    assert all(len(tokens_of(tokenizer, text)) == 1 for text in ("th", "to"))
    for draft, text in ((one, two), (two, one)):
        state = grammar.start()
        masks_of(llguidance_backend, state, draft)
        num_copies()
        state = state.become(text)
        found_LK = masks_of(llguidance_backend, state, t)
        assert num_copies() == 1, "of the start that all share, and not for the draft"
        along = walked(grammar, [*text, *t])[1:]
        assert np.array_equal(found_LK, expected(llguidance_backend, along, 2))


def test_who_hits_a_limit_in_a_draft_does_not_come_back(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(llguidance_backend, Regex("(.{1,1000}){1,1000}"))
    tokens = tokens_of(tokenizer, "abcdefghijklmnopqrstuvwxyz" * 3)
    num_failed = 0
    for size in range(1, len(tokens), 5):
        state: Any = grammar.start(fresh=True)
        mask_LK = masks_of(llguidance_backend, state, tokens[:size])
        if not mask_LK[-1].any():
            num_failed += 1
            assert state._reader is None
        else:
            assert not state._reader.is_error()
    assert 0 < num_failed < len(tokens) // 5


def test_who_cannot_go_back_does_not_come_back(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(
        llguidance_backend, Source("lark", 'start: some "!"\nsome[max_tokens=6]: /[a-z ]*/\n')
    )
    tokens = tokens_of(tokenizer, "abc def ghi")[:5]
    state, place = grammar.start(), 0
    while place < len(tokens):
        draft = tokens[place:]
        along = walked(grammar, tokens)[place:]
        expected_LK = expected(llguidance_backend, along, 1 + len(draft))
        assert np.array_equal(masks_of(llguidance_backend, state, draft), expected_LK)
        state = state.become(tokens[place : place + 2])
        place += 2


def test_drafts_of_one_state_in_one_call_do_not_meet(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    """As twins have them: one goes with the reader, another with a copy."""
    backend = llguidance_backend
    grammar = compiled(backend, Regex("(?:ab|ac){1,200}"))
    state = grammar.start().become(tokens_of(tokenizer, "ab"))
    drafts = [tokens_of(tokenizer, text) for text in ("abab", "acab", "b")]
    for _ in range(3):
        rows = [8 * i for i in range(len(drafts))]
        mask_RK = np.zeros((24, backend.vocabulary.num_mask_words), dtype=np.int32)
        job = backend.job([state] * len(drafts), mask_RK, rows, drafts)
        job.run()
        job.settle()
        for row, draft in zip(rows, drafts, strict=True):
            along = walked(grammar, [*tokens_of(tokenizer, "ab"), *draft])
            along = along[len(tokens_of(tokenizer, "ab")) :]
            expected_LK = expected(backend, along, 1 + len(draft))
            assert np.array_equal(mask_RK[row : row + 1 + len(draft)], expected_LK)
