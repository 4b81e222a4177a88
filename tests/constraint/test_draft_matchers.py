"""A matcher that goes through drafts and comes back gives the masks of fresh copies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from eyas.constraint import build_backend
from eyas.constraint.automaton import Automaton
from eyas.constraint.filling import Filling
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.engine.branches import requested
from eyas.engine.startup.exactness_probe import random_tree
from eyas.grammar import Regex, Source
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.walking import compiled, letters_of, tokens_of
from tests.thorough import drawn

ALIKE = Source("lark", 'start: one | two\none: "a" "t" "h" one?\ntwo: "c" "t" "o" two?\n')
"""After `a` and after `c` lexer and row are the same, and what follows is not."""
MORE_ALIKE = Source(
    "lark",
    'start: s\ns: one | two | three\none: "a" "t" "h" s?\ntwo: "c" "t" "o" s?\n'
    'three: "e" ("t" "i" | "a" "o") s?\n',
)


@pytest.fixture
def num_copies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns how many matchers were copied since it was called last."""
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


def test_masks_are_those_of_a_walk_however_many_drafts_came_before(
    scene: Scene, tokenizer: Tokenizer
) -> None:
    """Right, wrong, over the end, with what is no token; steps of every length."""
    name, backend, grammar, tokens = scene
    for seed in range(drawn(2, 6)):
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


def test_masks_of_trees_are_those_of_their_paths(scene: Scene, tokenizer: Tokenizer) -> None:
    """Of two outputs at once, branch by branch; some steps have chains as well."""
    name, backend, grammar, text = scene
    num_words, num_nodes = backend.vocabulary.num_mask_words, 0
    for seed in range(drawn(1, 3)):
        draw = random.Random(f"{name} {seed}")
        automata, befores = [Automaton(grammar), Automaton(grammar)], [[], []]  # type: list[Automaton], list[list[int]]
        while any(len(before) < len(text) for before in befores):
            trees = []
            num_rows = 0
            for automaton, before in zip(automata, befores, strict=True):
                if len(before) == len(text):
                    continue
                ahead = text[len(before) : len(before) + 6]
                if draw.random() < 0.2:
                    assert np.array_equal(
                        masks_of(backend, automaton.root, ahead),
                        plain_masks(backend, grammar, before, ahead),
                    )
                parents, _ = random_tree(np.random.default_rng(draw.randrange(99)), 12)
                paths: list[list[int]] = [[]]
                for above in parents[1:]:
                    token = some_token(draw, tokenizer, ahead, len(paths[above]))
                    paths.append([*paths[above], token])
                tokens = [0, *(path[-1] for path in paths[1:])]
                legal = automaton.legal(tokens, list(parents))
                for path, is_legal in zip(paths, legal, strict=True):
                    reached = grammar.start().after_all([*before, *path])
                    assert is_legal == (reached is not None), (before, path)
                branches = requested(automaton.root, tokens, list(parents), legal, num_rows)
                num_rows += max(2, sum(len(branch.nodes) for branch in branches))
                trees.append((branches, before, paths, legal))
            rows_RK = np.zeros((num_rows, num_words), dtype=np.int32)
            branches = [branches for branches, *_ in trees]
            turns = itertools.zip_longest(*([b.request for b in each[1:]] for each in branches))
            later = [[request for request in turn if request is not None] for turn in turns]
            filling = Filling([each[0].request for each in branches], later, rows_RK, 60.0)
            assert filling.wait()
            for each, before, paths, legal in trees:
                mask_WK = np.zeros((len(paths), num_words), dtype=np.int32)
                for branch in each:
                    branch.put(rows_RK, mask_WK)
                for node, path in enumerate(paths):
                    expected_K = np.zeros(num_words, dtype=np.int32)
                    if legal[node]:
                        expected_K = plain_masks(backend, grammar, [*before, *path], [])[0]
                        num_nodes += 1
                    assert np.array_equal(mask_WK[node], expected_K), (before, path)
            for automaton, before in zip(automata, befores, strict=True):
                step = text[len(before) : len(before) + draw.randrange(1, 5)]
                if step:
                    automaton.advance(step)
                    before += step
    assert num_nodes > drawn(10, 40)


def test_a_text_is_copied_once_however_long_it_gets(
    llguidance_backend: Any, tokenizer: Tokenizer, num_copies: Callable[[], int]
) -> None:
    grammar = compiled(llguidance_backend, Regex("(?:ab|ac){1,200}"))
    state, step = grammar.start(), tokens_of(tokenizer, "ab")
    masks_of(llguidance_backend, state, step)
    state = state.become(step)
    assert num_copies() == 2, "the start is shared, and one for its draft"
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
        state = grammar.start(fresh=True)
        masks_of(llguidance_backend, state, draft)
        num_copies()
        state = state.become(text)
        found_LK = masks_of(llguidance_backend, state, t)
        assert num_copies() == 0, "the same matcher goes through this draft"
        assert np.array_equal(found_LK, plain_masks(llguidance_backend, grammar, text, t))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0), (2, 0, 3, 1)])
def test_a_mask_of_one_branch_is_not_taken_for_anothers(
    llguidance_backend: Any, tokenizer: Tokenizer, order: Sequence[int]
) -> None:
    """In whatever order paths from one state are asked for."""
    grammar = compiled(llguidance_backend, ALIKE)
    state = grammar.start()
    paths = [
        [tokens_of(tokenizer, letter)[0] for letter in text] for text in ("a", "at", "c", "ct")
    ]
    mask_RK = np.zeros((4, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
    for row in order:
        assert llguidance_backend.fill([state], mask_RK, [row], paths=[paths[row]]) == []
    for row, path in enumerate(paths):
        expected_K = plain_masks(llguidance_backend, grammar, path, [])[0]
        assert np.array_equal(mask_RK[row], expected_K), path
    assert not np.array_equal(mask_RK[0], mask_RK[2])


def test_two_drafts_of_one_state_in_one_call_have_a_matcher_each(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(llguidance_backend, ALIKE)
    one, two = (tokens_of(tokenizer, letter) for letter in "ac")
    state = grammar.start()
    mask_RK = np.zeros((4, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
    assert llguidance_backend.fill([state] * 2, mask_RK, [0, 3], [one, ()], [(), two]) == []
    assert np.array_equal(mask_RK[3], plain_masks(llguidance_backend, grammar, two, [])[0])
    assert np.array_equal(mask_RK[:2], plain_masks(llguidance_backend, grammar, [], one))


def test_a_matcher_that_is_still_at_another_step_is_not_waited_for(
    llguidance_backend: Any, tokenizer: Tokenizer, num_copies: Callable[[], int]
) -> None:
    """Nor taken along; what it writes later is not read."""
    grammar = compiled(llguidance_backend, ALIKE)
    state = grammar.start(fresh=True)
    one, t = (tokens_of(tokenizer, text) for text in ("a", "t"))
    num_words = llguidance_backend.vocabulary.num_mask_words
    late = llguidance_backend.job([state], np.zeros((2, num_words), dtype=np.int32), None, [one])
    assert num_copies() == 1
    assert masks_of(llguidance_backend, state, one).any() and num_copies() == 1
    late_again = llguidance_backend.job(
        [state], np.zeros((2, num_words), dtype=np.int32), None, [one]
    )
    state = state.become(one)
    assert np.array_equal(
        masks_of(llguidance_backend, state, t), plain_masks(llguidance_backend, grammar, one, t)
    )
    for job in (late, late_again):
        job.run()
    assert np.array_equal(
        masks_of(llguidance_backend, state, t), plain_masks(llguidance_backend, grammar, one, t)
    )


def test_a_matcher_that_has_failed_on_the_way_is_copied_anew(
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


def test_a_matcher_that_breaks_in_one_call_is_copied_anew_for_the_next(
    llguidance_backend: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = compiled(llguidance_backend, MORE_ALIKE)
    one, two, t = (tokens_of(tokenizer, letter)[0] for letter in "act")
    tokens, parents = [0, one, t, two, t], [-1, 0, 1, 0, 3]
    automaton = Automaton(grammar)
    legal = automaton.legal(tokens, parents)
    fill, broken = type(llguidance_backend).fill_drafts, []

    def breaks(backend: Any, asked: Any, mask_RK: np.ndarray) -> None:
        if not broken:
            broken.extend(asked)
            for matcher, _, draft in asked:
                matcher.try_consume_tokens(draft[:1])
            raise RuntimeError("in the middle of a draft, on purpose")
        fill(backend, asked, mask_RK)

    monkeypatch.setattr(type(llguidance_backend), "fill_drafts", breaks)
    branches = requested(automaton.root, tokens, parents, legal, 0)
    rows_RK = np.zeros((6, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
    first, second = (branch.request for branch in branches)
    assert Filling([first], [[second]], rows_RK, 60.0).wait() and broken
    for request in (first, second):
        expected_LK = plain_masks(llguidance_backend, grammar, [], request.tokens)
        assert np.array_equal(request.rows(rows_RK), expected_LK)


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


@pytest.mark.parametrize("is_path", [False, True])
def test_a_limit_that_a_draft_has_hit_is_no_limit_of_its_root(
    llguidance_backend: Any, tokenizer: Tokenizer, is_path: bool
) -> None:
    """Unless the lexer, which copies share, is at its limit as well."""
    backend: Any = llguidance_backend
    grammar = compiled(backend, Regex("(.{1,1000}){1,1000}"))
    tokens = tokens_of(tokenizer, "abcdefghijklmnopqrstuvwxyz" * 3)
    num_failed = 0
    for size in range(1, len(tokens), 5):
        state: Any = grammar.start(fresh=True)
        if is_path:
            mask_LK = np.zeros((1, backend.vocabulary.num_mask_words), dtype=np.int32)
            is_over = backend.fill([state], mask_LK, paths=[tokens[:size]]) == [0]
            assert is_over != mask_LK.any()
        else:
            mask_LK = masks_of(backend, state, tokens[:size])
            assert mask_LK[0].any()
        num_failed += not mask_LK[-1].any()
        copy = LlguidanceState(grammar, state.copy())
        found_LK, copys_LK = (masks_of(backend, each, tokens[:1]) for each in (state, copy))
        assert np.array_equal(found_LK, copys_LK), size
    assert 0 < num_failed < len(tokens) // 5


def test_a_matcher_that_cannot_be_rolled_back_is_copied_anew(
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
        for path, row in ((draft[:1], 1), ((), 0), (draft[:1], 1)):
            mask_1K = np.zeros((1, expected_LK.shape[1]), dtype=np.int32)
            assert llguidance_backend.fill([state], mask_1K, paths=[path]) == []
            assert np.array_equal(mask_1K[0], expected_LK[row])
        state = state.become(tokens[place : place + 2])
        place += 2


def test_drafts_of_one_state_in_one_call_do_not_meet(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    backend = llguidance_backend
    grammar = compiled(backend, Regex("(?:ab|ac){1,200}"))
    state = grammar.start().become(tokens_of(tokenizer, "ab"))
    drafts = [tokens_of(tokenizer, text) for text in ("abab", "acab", "b")]
    for _ in range(3):
        rows = [8 * i for i in range(len(drafts))]
        mask_RK = np.zeros((24, backend.vocabulary.num_mask_words), dtype=np.int32)
        assert backend.fill([state] * len(drafts), mask_RK, rows, drafts) == []
        for row, draft in zip(rows, drafts, strict=True):
            expected_LK = plain_masks(backend, grammar, tokens_of(tokenizer, "ab"), draft)
            assert np.array_equal(mask_RK[row : row + 1 + len(draft)], expected_LK)
