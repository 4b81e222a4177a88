"""Drafts that are gone through mask by mask: as if every token had been walked to, or left behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from eyas.constraint import ConstraintFailure
from eyas.constraint.automaton import Automaton
from eyas.constraint.drafts import Draft, DraftThreads, Filling
from eyas.constraint.fill import fill_points
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
def test_a_draft_is_followed_as_if_it_had_been_walked_through(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    """With the end and what is no token at all; and a state stays what it is."""
    root, pieces = WALKS[name]
    grammar = compiled(backend, root)
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    for place, draft in enumerate(some_drafts(tokenizer, tokens, random.Random(name))):
        along = drafted_from(grammar, tokens[:place], draft)
        wanted = expected(backend, along[1:], len(draft))
        for _ in range(2):
            mask_LK = np.zeros_like(wanted)
            num = sum(1 for _ in backend.follow(along[0], draft, mask_LK))
            assert np.array_equal(mask_LK, wanted)
            assert len(along) - 2 <= num <= len(along) - 1 or num == len(draft) == 0


def test_a_draft_is_followed_only_as_far_as_it_is_asked_for(
    backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(backend, Regex("[a-z ]{3,40}"))
    draft = tokens_of(tokenizer, "abc def ghi")[:4]
    wanted = expected(backend, drafted_from(grammar, [], draft)[1:], len(draft))
    for num in range(len(draft) + 1):
        mask_LK = np.zeros_like(wanted)
        following = backend.follow(grammar.start(), draft, mask_LK)
        for _ in range(num):
            next(following)
        following.close()
        assert np.array_equal(mask_LK[:num], wanted[:num]) and not mask_LK[num:].any()


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
    mask_LK = np.zeros((len(draft), llguidance_backend.vocabulary.num_mask_words), np.int32)
    assert len(list(llguidance_backend.follow(along[0], draft, mask_LK))) == len(along) - 1 > 1
    assert np.array_equal(mask_LK, expected(llguidance_backend, along[1:], len(mask_LK)))


def test_a_limit_hit_in_a_draft_leaves_its_rows_empty(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    heavy = compiled(llguidance_backend, HEAVY)
    letter = tokens_of(tokenizer, "a")[0]
    draft = [letter] * 5
    state, num = heavy.start(), len(draft)
    for _ in range(300):
        mask_LK = np.zeros((5, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
        num = len(list(llguidance_backend.follow(state, draft, mask_LK)))
        assert mask_LK[:num].any(axis=1).all() and not mask_LK[num:].any()
        if num < len(draft):
            break
        state = state.after(letter)
    assert num < len(draft), "the pattern is meant to be over the library's limits"
    with pytest.raises(ConstraintFailure):
        heavy.start(fresh=True).after_all([letter] * 400)


# Drafts of points


class Faulty:
    """A backend that counts the drafts it is asked for; it breaks in `spoilt` after a mask, and in
    `slow` waits for `go` after each."""

    vocabulary: Any

    def __init__(self, backend: Any) -> None:
        self.backend: Any = backend
        self.num = self.num_ended = 0
        self.spoilt: list[int] | None = None
        self.slow: list[int] | None = None
        self.go = threading.Event()
        self.is_waiting = threading.Event()

    def fill(self, states: Any, mask_NK: Any) -> list[int]:
        return self.backend.fill(states, mask_NK)

    def follow(self, state: Any, tokens: Sequence[int], mask_LK: np.ndarray) -> Iterator[None]:
        self.num += 1
        try:
            for row, _ in enumerate(self.backend.follow(state, tokens, mask_LK)):
                yield
                if list(tokens) == self.spoilt:
                    mask_LK[row:] = -1
                    raise MemoryError("on purpose")
                if list(tokens) == self.slow:
                    mask_LK[row + 1 :] = -1
                    self.is_waiting.set()
                    assert self.go.wait(30)
        finally:
            self.num_ended += 1


@pytest.fixture
def faulty(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> Iterator[tuple[Faulty, Any, list[int]]]:
    """It, a way to new grammars of it, and tokens that are legal from the start."""
    backend = Faulty(llguidance_backend)
    for name in ("vocabulary", "eos_token_ids", "is_nameless", "spelled"):
        setattr(backend, name, getattr(llguidance_backend, name))

    def grammar() -> Any:
        made = compiled(llguidance_backend, Regex("[a-z ]{3,40}"))
        made._backend = backend
        return made

    yield backend, grammar, tokens_of(tokenizer, "abc def ghi")[:4]
    backend.go.set()


@pytest.fixture(scope="module", params=["here", "threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[DraftThreads | None]:
    made = DraftThreads(3) if request.param == "threads" else None
    yield made
    if made is not None:
        made.close()


def never(missing: int) -> bool:
    return False


def draft_of(automaton: Automaton, tokens: Sequence[int], row: int) -> Draft:
    return Draft(automaton.root, tuple(tokens), row, automaton.has_twins)


def begun(drafts: Sequence[Draft], num_words: int, threads: Any) -> tuple[Filling, np.ndarray]:
    """Under way, behind the masks of the points."""
    mask_RK = np.zeros((max(d.row + len(d.tokens) + 1 for d in drafts), num_words), dtype=np.int32)
    fill_points([draft.point for draft in drafts], num_words)
    for draft in drafts:
        mask_RK[draft.row] = draft.point.mask
    return Filling(drafts, mask_RK, threads), mask_RK


def filled(
    drafts: Sequence[Draft],
    backend: Any,
    threads: DraftThreads | None,
    deadline: float = 60.0,
    may_leave: Callable[[int], bool] = never,
) -> tuple[Filling, np.ndarray]:
    filling, mask_RK = begun(drafts, backend.vocabulary.num_mask_words, threads)
    filling.wait(time.perf_counter() + deadline, may_leave)
    return filling, mask_RK


def test_a_draft_is_filled_once_however_often_it_is_asked_for(
    faulty: tuple[Faulty, Any, list[int]], threads: DraftThreads | None
) -> None:
    backend, grammar, tokens = faulty
    first = Automaton(grammar())
    twin, other = first.fork(), Automaton(grammar())
    drafts = [draft_of(first, tokens, 0), draft_of(twin, tokens, 5), draft_of(other, tokens, 10)]
    drafts += [draft_of(twin, tokens[:2], 15), draft_of(other, [], 18)]
    filling, mask_RK = filled(drafts, backend, threads)
    assert filling.num_masks == 4 + 4 + 2 and filling.num_late == 0
    assert backend.num == backend.num_ended == 3, "twins stand at one point, with one draft"
    assert np.array_equal(mask_RK[:5], mask_RK[5:10]) and mask_RK.any(axis=1).all()
    assert np.array_equal(mask_RK[:3], mask_RK[15:18])
    assert [draft.num_legal for draft in drafts] == [4, 4, 4, 2, 0]
    assert all(draft.is_filled for draft in drafts)
    # a step later for one of them: what was filled last is known, and without twins nothing is kept
    twins, alone = draft_of(twin, first.root.ahead[0], 0), draft_of(other, tokens, 5)  # type: ignore[index]
    filling, again_RK = filled([twins, alone], backend, threads)
    assert filling.num_masks == 4 and backend.num == 4
    assert twins.num_legal == len(twins.tokens) and twins.is_filled
    assert np.array_equal(again_RK[5:], mask_RK[10:15]) and other.root.ahead is None
    assert np.array_equal(again_RK[: 1 + twins.num_legal], mask_RK[: 1 + twins.num_legal])


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
    faulty: tuple[Faulty, Any, list[int]], threads: DraftThreads | None
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
    filling, mask_RK = filled(drafts, backend, threads)
    assert filling.num_masks == 4 + 3 and filling.num_late == 0
    assert [draft.is_filled for draft in drafts] == [True, False, True]
    assert mask_RK.any(axis=1).tolist() == [True] * 6 + [False] * 4 + [True] * 4


def test_after_the_deadline_no_draft_is_begun(faulty: tuple[Faulty, Any, list[int]]) -> None:
    backend, grammar, tokens = faulty
    drafts = [draft_of(Automaton(grammar()), tokens, 0)]
    filling, mask_RK = filled(drafts, backend, None, deadline=-1.0)
    assert backend.num == filling.num_masks == 0 and filling.num_late == 1
    assert not mask_RK[1:].any() and not drafts[0].is_filled
    filling, _ = filled(drafts, backend, None)
    assert filling.num_masks == 4 and drafts[0].is_filled


def slow_among_others(
    faulty: tuple[Faulty, Any, list[int]], threads: DraftThreads
) -> tuple[Filling, np.ndarray, list[Draft]]:
    """Eight drafts; the third hangs after its first mask, and writes what it should not."""
    backend, grammar, tokens = faulty
    backend.slow = tokens[:3]
    drafts = [
        draft_of(Automaton(grammar()), tokens[:3] if i == 2 else tokens, 5 * i) for i in range(8)
    ]
    filling, mask_RK = begun(drafts, backend.vocabulary.num_mask_words, threads)
    assert backend.is_waiting.wait(30)
    return filling, mask_RK, drafts


@pytest.fixture
def two_threads() -> Iterator[DraftThreads]:
    made = DraftThreads(2)
    yield made
    made.close()


def test_a_late_draft_is_left_with_the_masks_that_it_has(
    faulty: tuple[Faulty, Any, list[int]], two_threads: DraftThreads
) -> None:
    backend, _, _ = faulty
    filling, mask_RK, drafts = slow_among_others(faulty, two_threads)
    asked: list[int] = []

    def one(missing: int) -> bool:
        asked.append(missing)
        return missing <= 1

    filling.wait(time.perf_counter() + 60, one)
    assert asked[-1] == 1 and filling.num_late == 1 and filling.num_masks == 7 * 4 + 1
    assert [draft.is_filled for draft in drafts] == [i != 2 for i in range(8)]
    assert mask_RK.any(axis=1).tolist() == [row not in (12, 13, 14) for row in range(40)]
    before_RK = mask_RK.copy()
    backend.go.set()
    while backend.num_ended < 8:
        time.sleep(0.001)
    assert np.array_equal(mask_RK, before_RK), "what was left behind writes elsewhere"
    again, again_RK = filled(drafts, backend, two_threads)  # and its thread is there again
    assert again.num_masks == 7 * 4 + 3 and again.num_late == 0
    assert np.array_equal(again_RK[:12], before_RK[:12])


def test_what_may_not_be_left_is_waited_for(
    faulty: tuple[Faulty, Any, list[int]], two_threads: DraftThreads
) -> None:
    backend, _, _ = faulty
    filling, mask_RK, _ = slow_among_others(faulty, two_threads)
    timer = threading.Timer(0.05, backend.go.set)
    timer.start()
    begin = time.perf_counter()
    filling.wait(begin + 60, lambda missing: missing == 0)
    assert time.perf_counter() - begin > 0.02 and filling.num_late == 0
    assert mask_RK.any(axis=1).tolist() == [row != 14 for row in range(40)]
    timer.join()


def test_the_deadline_holds_for_whatever_is_missing(
    faulty: tuple[Faulty, Any, list[int]], two_threads: DraftThreads
) -> None:
    filling, _, drafts = slow_among_others(faulty, two_threads)
    filling.wait(time.perf_counter() + 0.05, never)
    assert filling.num_late >= 1 and not drafts[2].is_filled


def test_threads_end_although_a_draft_is_under_way(
    faulty: tuple[Faulty, Any, list[int]], two_threads: DraftThreads
) -> None:
    """Its error is nobody's; what had not begun never does."""
    backend, _, _ = faulty
    filling, _, _ = slow_among_others(faulty, two_threads)
    backend.spoilt = backend.slow
    filling.wait(time.perf_counter() + 60, lambda missing: missing <= 1)
    two_threads.close()
    backend.go.set()
    while backend.num_ended < backend.num:
        time.sleep(0.001)
    assert backend.num == 8
