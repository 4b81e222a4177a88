"""Who goes through drafts and comes back sees what a fresh copy sees."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from eyas.constraint import build_backend, llguidance_rollback
from eyas.constraint.llguidance_rollback import CopyCost
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.engine.exactness import random_tree
from eyas.grammar import Regex, Source
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.walking import compiled, letters_of, tokens_of

ALIKE = Source("lark", 'start: one | two\none: "a" "t" "h" one?\ntwo: "c" "t" "o" two?\n')
"""After `a` and after `c` lexer and row are the same, and what follows is not."""
MORE_ALIKE = Source(
    "lark",
    'start: s\ns: one | two | three\none: "a" "t" "h" s?\ntwo: "c" "t" "o" s?\n'
    'three: "e" ("t" "i" | "a" "o") s?\n',
)


@pytest.fixture(autouse=True)
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy counts as dear."""
    monkeypatch.setattr(llguidance_rollback, "SURE", 0)


@pytest.fixture(params=["always", "at times", "hardly"])
def dear_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies count as dear then."""
    draw = random.Random(5)
    share = {"always": 1.0, "at times": 0.5, "hardly": 0.05}[request.param]
    monkeypatch.setattr(
        CopyCost, "is_expensive_to_copy", property(lambda place: draw.random() < share)
    )


@pytest.fixture
def num_copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a matcher was copied since it was asked for."""
    copies: list[int] = []
    copied = CopyCost.copied

    def counted(place: CopyCost, matcher: Any) -> Any:
        copies.append(1)
        return copied(place, matcher)

    monkeypatch.setattr(CopyCost, "copied", counted)

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


def plain_masks(
    backend: Any, grammar: Any, before: Sequence[int], draft: Sequence[int]
) -> np.ndarray:
    """[1 + D, K] by a matcher for each row, which has read what is before it; zeros behind what is not
    legal."""
    mask_LK = np.zeros((1 + len(draft), backend.vocabulary.num_mask_words), dtype=np.int32)
    for num in range(1 + len(draft)):
        state = grammar.start().after_all([*before, *draft[:num]])
        if state is None or state.matcher is None:
            break
        assert backend.fill([state], mask_LK[num : num + 1]) == []
    return mask_LK


class Scene(NamedTuple):
    """A grammar and the tokens of a text of it, its end included."""

    name: str
    backend: Any
    grammar: Any
    tokens: list[int]


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=[*WALKS, "alike"])
def scene(
    request: pytest.FixtureRequest, vocabulary: Any, tokenizer: Tokenizer, num_threads: int
) -> Iterator[Scene]:
    backend: Any = build_backend("llguidance", vocabulary, num_threads)
    root, pieces = WALKS.get(request.param) or (
        MORE_ALIKE,
        letters_of(tokenizer, "athctoetiatheaoctocto"),
    )
    tokens = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    yield Scene(request.param, backend, compiled(backend, root), tokens)  # type: ignore[arg-type]
    backend.close()


def some_token(draw: random.Random, tokenizer: Tokenizer, ahead: Sequence[int], place: int) -> int:
    """What comes there in a text, or not."""
    others = [draw.randrange(tokenizer.vocab_size), tokenizer.eos_id, -1, 2**31 - 1]
    others += letters_of(tokenizer, "athcoei")  # of MORE_ALIKE
    is_right = place < len(ahead) and draw.random() < 0.7
    return ahead[place] if is_right else draw.choice([*ahead, *others])  # type: ignore[list-item]


@pytest.mark.usefixtures("dear_at")
def test_masks_are_those_of_a_walk_however_many_drafts_came_before(
    scene: Scene, tokenizer: Tokenizer
) -> None:
    """Right, wrong, over the end, with what is no token; steps of every length."""
    name, backend, grammar, tokens = scene
    for seed in range(6):
        draw = random.Random(f"{name} {seed}")
        state, place = grammar.start(), 0
        while place < len(tokens):
            ahead = tokens[place : place + draw.randrange(1, 6)]
            draft = [some_token(draw, tokenizer, ahead, i) for i in range(len(ahead))]
            expected_LK = plain_masks(backend, grammar, tokens[:place], draft)
            assert np.array_equal(masks_of(backend, state, draft), expected_LK), (place, draft)
            num = draw.randrange(1, 5)
            state = state.become(tokens[place : place + num])
            place += num


@pytest.mark.usefixtures("dear_at")
def test_masks_of_trees_are_those_of_their_paths(scene: Scene, tokenizer: Tokenizer) -> None:
    """Of two outputs at once, a few nodes at a time, in any order; some steps have chains."""
    name, backend, grammar, text = scene
    num_words, num_nodes = backend.vocabulary.num_mask_words, 0
    for seed in range(3):
        draw = random.Random(f"{name} {seed}")
        states, befores = [grammar.start(), grammar.start()], [[], []]  # type: list[Any], list[list[int]]
        while any(state.matcher is not None for state in states):
            nodes: list[tuple[Any, np.ndarray]] = []
            for state, before in zip(states, befores, strict=True):
                if state.matcher is None:
                    continue
                ahead = text[len(before) : len(before) + 6]
                if draw.random() < 0.2:
                    assert np.array_equal(
                        masks_of(backend, state, ahead),
                        plain_masks(backend, grammar, before, ahead),
                    )
                parents, _ = random_tree(np.random.default_rng(draw.randrange(99)), 12)
                at: list[tuple[Any, list[int]] | None] = [(state, [])]
                for above in parents[1:]:
                    place = at[above]
                    after = None
                    if place is not None:
                        token = some_token(draw, tokenizer, ahead, len(place[1]))
                        path = [*place[1], token]
                        reached = place[0].after(token)
                        is_legal = grammar.start().after_all([*before, *path]) is not None
                        assert (reached is not None) == is_legal, (before, path)
                        after = None if reached is None else (reached, path)
                    at.append(after)
                nodes += [
                    (reached, plain_masks(backend, grammar, [*before, *path], [])[0])
                    for reached, path in filter(None, at)
                ]
            draw.shuffle(nodes)
            mask_RK = np.zeros((len(nodes), num_words), dtype=np.int32)
            rows = [range(first, min(first + 7, len(nodes))) for first in range(0, len(nodes), 7)]
            jobs = [backend.job([nodes[i][0] for i in piece], mask_RK, piece) for piece in rows]
            for job in jobs:
                job.run()
            for job in jobs:
                job.settle()
            num_nodes += len(nodes)
            assert np.array_equal(mask_RK, np.stack([mask_K for _, mask_K in nodes]))
            for i, before in enumerate(befores):
                num = draw.randrange(1, 5)
                states[i] = states[i].become(text[len(before) : len(before) + num])
                before += text[len(before) : len(before) + num]
    assert num_nodes > 40


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
        assert np.array_equal(found_LK, plain_masks(llguidance_backend, grammar, text, t))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_a_mask_of_one_branch_is_not_taken_for_anothers(
    llguidance_backend: Any, tokenizer: Tokenizer, order: Sequence[int]
) -> None:
    grammar = compiled(llguidance_backend, ALIKE)
    state = grammar.start()
    texts = ["a", "at", "c", "ct"]
    places = []
    for text in texts:
        place = state
        for token in (tokens_of(tokenizer, letter)[0] for letter in text):
            place = place.after(token)
        places.append(place)
    mask_RK = np.zeros((4, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
    for row in order:  # in calls of their own, then all at once
        assert llguidance_backend.fill([places[row]], mask_RK, [row]) == []
    again_RK = np.zeros_like(mask_RK)
    assert llguidance_backend.fill(places, again_RK) == []
    for row, text in enumerate(texts):
        letters = [tokens_of(tokenizer, letter)[0] for letter in text]
        expected_K = plain_masks(llguidance_backend, grammar, letters, [])[0]
        assert np.array_equal(mask_RK[row], expected_K), text
        assert np.array_equal(again_RK[row], expected_K), text
    assert not np.array_equal(mask_RK[0], mask_RK[2])


def test_a_draft_and_a_place_in_another_are_asked_for_in_one_call(
    llguidance_backend: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where copies are no longer dear."""
    grammar = compiled(llguidance_backend, ALIKE)
    one, two = (tokens_of(tokenizer, letter) for letter in "ac")
    for is_expensive_to_copy in (True, False):
        monkeypatch.setattr(llguidance_rollback, "SURE", 0)
        state = grammar.start()
        place = state.after(two[0])
        monkeypatch.setattr(llguidance_rollback, "SURE", 0 if is_expensive_to_copy else 10**9)
        mask_RK = np.zeros((4, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
        job = llguidance_backend.job([state, place], mask_RK, [0, 3], [one, ()])
        job.run()
        job.settle()
        assert np.array_equal(mask_RK[3], plain_masks(llguidance_backend, grammar, two, [])[0])
        assert np.array_equal(mask_RK[:2], plain_masks(llguidance_backend, grammar, [], one))


def test_who_has_failed_on_the_way_is_copied_anew(
    llguidance_backend: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = compiled(llguidance_backend, ALIKE)
    one, two, t = (tokens_of(tokenizer, letter) for letter in "act")
    state = grammar.start()
    fill = type(llguidance_backend).fill_drafts

    def fails(backend: Any, asked: Any, mask_RK: np.ndarray) -> None:
        fill(backend, asked, mask_RK)
        raise ValueError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(type(llguidance_backend), "fill_drafts", fails)
        with pytest.raises(ValueError, match="a bug of ours"):
            masks_of(llguidance_backend, state, one)
    state = state.become(two)
    expected_LK = plain_masks(llguidance_backend, grammar, two, t)
    assert np.array_equal(masks_of(llguidance_backend, state, t), expected_LK)


def test_an_end_alone_and_nothing_are_asked_for_in_one_call(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(llguidance_backend, ALIKE)
    mask_RK = np.zeros((6, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
    states, drafts = [grammar.start(), grammar.start()], [(), (tokenizer.eos_id,)]
    job = llguidance_backend.job(states, mask_RK, [0, 4], drafts)
    job.run()
    assert [filled.num_masks for filled in job.settle()] == [1, 1]
    assert np.array_equal(mask_RK[0], mask_RK[4]) and mask_RK[0].any()


@pytest.mark.parametrize("is_tree", [False, True])
def test_who_has_hit_a_limit_in_a_draft_goes_as_far_as_a_copy_the_next_time(
    llguidance_backend: Any, tokenizer: Tokenizer, is_tree: bool
) -> None:
    """The lexer, which copies share, may be at its limit as well."""
    backend: Any = llguidance_backend
    grammar = compiled(backend, Regex("(.{1,1000}){1,1000}"))
    tokens = tokens_of(tokenizer, "abcdefghijklmnopqrstuvwxyz" * 3)
    num_failed = 0
    for size in range(1, len(tokens), 5):
        state: Any = grammar.start(fresh=True)
        if is_tree:
            reached = state
            for token in tokens[:size]:
                reached = reached.after(token)
            mask_LK = np.zeros((1, backend.vocabulary.num_mask_words), dtype=np.int32)
            is_over = backend.fill([reached], mask_LK) == [0]
            assert is_over != mask_LK.any()
        else:
            mask_LK = masks_of(backend, state, tokens[:size])
        num_failed += not mask_LK[-1].any()
        copy = LlguidanceState(grammar, state.copy())
        found_LK, copys_LK = (masks_of(backend, each, tokens[:1]) for each in (state, copy))
        assert np.array_equal(found_LK, copys_LK), size
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
        expected_LK = plain_masks(llguidance_backend, grammar, tokens[:place], draft)
        assert np.array_equal(masks_of(llguidance_backend, state, draft), expected_LK)
        for reached, row in ((state.after(draft[0]), 1), (state, 0), (state.after(draft[0]), 1)):
            mask_1K = np.zeros((1, expected_LK.shape[1]), dtype=np.int32)
            assert llguidance_backend.fill([reached], mask_1K) == []
            assert np.array_equal(mask_1K[0], expected_LK[row])
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
            expected_LK = plain_masks(backend, grammar, tokens_of(tokenizer, "ab"), draft)
            assert np.array_equal(mask_RK[row : row + 1 + len(draft)], expected_LK)
