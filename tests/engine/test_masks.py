"""A step's masks where trees are seen too late to lose nodes, as on a device: those of a walk."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eyas.constraint import Vocabulary, build_backend
from eyas.constraint.automaton import Automaton
from eyas.core import DraftTree
from eyas.engine.masks import FAILED, TreeMasks
from eyas.engine.prune import Refusals
from eyas.engine.sequence import Status
from eyas.grammar import Budget, FreeText, Json, Literal, Marker, Node, OutputSpec, Regex, Series
from eyas.wire import GrammarStats
from tests.constraint.walking import tokens_of
from tests.laws.structured import BACKENDS, ask, engine, told

QUESTION = "What is the capital of France? Think about it."
OBJECT = Json('{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}}')
TEXT = '{"a": 12, "b": "some text"}'
HEAVY = Regex("(.{1,1000}){1,1000}")
TOKENIZER = engine("root").tokenizer
END = engine("root").info.eos_token_ids[0]


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out of a tree before the forward."""
    monkeypatch.setattr(TreeMasks, "walks_ahead", property(lambda masks: False))


@pytest.fixture(scope="module", params=[1, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    info = engine("root").info
    vocabulary = Vocabulary.of(TOKENIZER, info.vocab_size, info.eos_token_ids)
    made = build_backend("llguidance", vocabulary, request.param)
    yield made
    made.close()


def sequence(backend: Any, root: Node | None, *pieces: str, **more: Any) -> Any:
    """What of a sequence the masks look at, behind a text."""
    constraint = None
    if root is not None:
        constraint = Automaton(backend.compile(OutputSpec(root=root)), **more)
        constraint.advance(tokens_of(TOKENIZER, *pieces))
    return SimpleNamespace(constraint=constraint, status=Status.RUNNING, failure=None)


def chains(rows: Sequence[Sequence[int]]) -> DraftTree:
    """Roots and what is drafted behind each."""
    width = 1 + max(len(row) for row in rows)
    return DraftTree(
        torch.tensor([[0, *row, *[7] * (width - 1 - len(row))] for row in rows]),
        torch.arange(-1, width - 1).repeat(len(rows), 1),
        torch.tensor([1 + len(row) for row in rows]),
        True,
    )


def as_walked(tree: DraftTree) -> DraftTree:
    """The same, not known to be a chain, so that every node is walked to."""
    return DraftTree(tree.tokens_BW, tree.parents_BW, tree.sizes_B, False)


def filled(
    tree: DraftTree, rooted: Sequence[Any], backend: Any, deadline: float = 60.0
) -> tuple[np.ndarray, Refusals, GrammarStats]:
    """[B, W, K], what was refused, and the counts. What is refused is asked for before the masks."""
    stats = GrammarStats()
    masks = TreeMasks(tree, backend.vocabulary.vocab_size, deadline, stats)
    masks.walk(rooted)
    refusals = masks.refusals
    masks.begin(None)
    mask_RK = masks.finish()
    return mask_RK.reshape(*tree.tokens_BW.shape, -1), refusals, stats


def some_steps(backend: Any, draw: random.Random) -> tuple[DraftTree, list[Any]]:
    """Drafts from many places of a text: right, wrong, over the end, empty; unconstrained ones."""
    tokens = [*tokens_of(TOKENIZER, TEXT), END]
    rooted, rows = [], []
    for place in range(0, len(tokens) - 1, 2):
        grammar = OBJECT if place % 3 else Json(TEXT.replace("12", "1.5").join(('{"const":', "}")))
        end = 0 if grammar is not OBJECT else place
        held = sequence(backend, grammar)
        held.constraint.advance(tokens[:end])
        rooted.append(held)
        row = tokens[end : end + draw.randrange(6)]
        if row and draw.random() < 0.5:
            row[draw.randrange(len(row))] = draw.choice([draw.randrange(4000), END, tokens[0]])
        rows.append(row)
        if place % 4 == 0:
            rooted.append(sequence(backend, None))
            rows.append([1, 2, 3])
    ended = sequence(backend, OBJECT)
    ended.status = Status.FINISHED
    return chains([*rows, [5, 6, 7, 8, 9]]), [*rooted, ended]


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_that_is_not_walked_has_the_masks_of_one_that_is(backend: Any, seed: int) -> None:
    tree, rooted = some_steps(backend, random.Random(seed))
    mask_BWK, refusals, stats = filled(tree, rooted, backend)
    walked_BWK, expected, counts = filled(as_walked(tree), rooted, backend)
    assert np.array_equal(mask_BWK, walked_BWK)
    assert refusals == expected and refusals.num_nodes > 0
    assert stats.num_pruned == counts.num_pruned == refusals.num_nodes
    assert (mask_BWK[1, :4] == -1).all() and not mask_BWK[1, 4:].any(), "nobody holds it"
    assert not mask_BWK[-1].any(), "it has ended"
    assert stats.num_masks >= counts.num_masks > len(rooted) / 2
    for b, held in enumerate(rooted):  # what it looked at did not move it
        if held.constraint is not None and held.status is Status.RUNNING:
            assert held.constraint.root.ahead is None, b
            assert held.failure is None


def test_a_budget_has_its_say_in_a_chain(backend: Any) -> None:
    marker = Marker("</x>")
    closing = tuple(TOKENIZER.encode_text("</x>", continues=True))
    root = Series((FreeText(until=(marker,)), Literal("Paris")))
    budget = Budget(2, (marker,), closing)
    held = sequence(backend, root, budget=budget, token_bytes=TOKENIZER.token_bytes)
    tokens = tokens_of(TOKENIZER, "some words here")[:2]
    tree = chains([[*tokens, *closing], [*tokens, tokens[0]]])
    twin = SimpleNamespace(constraint=held.constraint.fork(), status=held.status, failure=None)
    mask_BWK, refusals, _ = filled(tree, [held, twin], backend)
    bits = np.unpackbits(mask_BWK[0, 2].view(np.uint8), bitorder="little")
    assert np.nonzero(bits)[0].tolist() == [closing[0]]
    assert refusals.illegal == [set(), {3}] and refusals.below == [set(), {2}]
    assert mask_BWK[0].any(axis=1).all() and not mask_BWK[1, 3:].any()


def test_a_draft_that_hits_a_limit_loses_only_what_hits_it(backend: Any) -> None:
    """It and no other; and where the root hits it the sequence ends."""
    letter = tokens_of(TOKENIZER, "a")[0]
    digits = tokens_of(TOKENIZER, '{"a": 12}')[:5]
    heavy = sequence(backend, HEAVY)
    tree = chains([digits, [letter] * 5, digits])
    for _ in range(300):
        rooted = [sequence(backend, OBJECT), heavy, sequence(backend, OBJECT)]
        mask_BWK, refusals, _ = filled(tree, rooted, backend)
        assert mask_BWK[[0, 2]].any(axis=2).all()
        if not mask_BWK[1].any(axis=1).all():
            break
        heavy.constraint.advance([letter])
    has_mask = mask_BWK[1].any(axis=1).tolist()
    assert has_mask == sorted(has_mask, reverse=True) and has_mask[0]
    assert heavy.failure is None and refusals.num_nodes == 0
    while heavy.failure is None:
        heavy.constraint.advance([letter])
        mask_BWK, refusals, _ = filled(tree, rooted, backend)
    assert heavy.failure == FAILED and not mask_BWK[1].any()
    assert heavy.constraint.num_replays > 0
    assert [held.failure for held in rooted] == [None, FAILED, None]
    assert mask_BWK[[0, 2]].any(axis=2).all() and refusals.illegal[1] == set()
    mask_BWK, _, _ = filled(tree, rooted, backend)
    assert not mask_BWK[1].any() and mask_BWK[[0, 2]].any(axis=2).all()


def test_when_time_is_over_only_roots_have_masks(backend: Any) -> None:
    tree, rooted = some_steps(backend, random.Random(1))
    in_time_BWK, _, _ = filled(tree, rooted, backend)
    mask_BWK, refusals, stats = filled(tree, rooted, backend, deadline=-1.0)
    held = [
        b
        for b, each in enumerate(rooted)
        if each.constraint is not None and each.status is Status.RUNNING
    ]
    assert np.array_equal(mask_BWK[:, 0], in_time_BWK[:, 0])
    assert mask_BWK[held, 0].any(axis=1).all() and not mask_BWK[held, 1:].any()
    assert stats.num_masks == len(held) and refusals.num_nodes == 0


def test_twins_share_what_is_made_for_one_of_them(backend: Any) -> None:
    tokens = tokens_of(TOKENIZER, TEXT)[:4]
    first = sequence(backend, OBJECT)
    twins = [
        SimpleNamespace(constraint=first.constraint.fork(), status=first.status, failure=None)
        for _ in range(3)
    ]
    one_1WK, _, stats = filled(chains([tokens]), [first], backend)
    assert stats.num_masks == 5
    mask_BWK, _, stats = filled(chains([tokens] * 3), twins, backend)
    assert stats.num_masks == 0 and (mask_BWK == one_1WK).all()
    for each in twins:
        each.constraint.advance(tokens)
    _, _, stats = filled(chains([[], [], []]), twins, backend)
    assert stats.num_masks == 1


@pytest.mark.parametrize("library", BACKENDS)
@pytest.mark.parametrize("drafter", ["chain", "short chain", "tree", "root"])
def test_an_engine_says_the_same_however_late_it_sees_its_trees(
    monkeypatch: pytest.MonkeyPatch, drafter: str, library: str
) -> None:
    if library == "xgrammar":
        pytest.importorskip("xgrammar")
    llm = engine(drafter, library)
    for temperature, n in ((0.0, 1), (1.0, 3)):
        for wanted in (OBJECT, Regex("(Paris|Amsterdam)[a-z ]{4,9}"), Literal("Paris")):
            options = {"temperature": temperature, "seed": 3, "n": n, "max_tokens": 50}
            answer = ask(llm, QUESTION, wanted, **options)  # type: ignore[arg-type]
            with monkeypatch.context() as ahead:
                ahead.setattr(TreeMasks, "walks_ahead", property(lambda masks: True))
                plain = ask(llm, QUESTION, wanted, **options)  # type: ignore[arg-type]
            assert told(answer) == told(plain)
            assert all(choice.error is None for choice in answer.choices)
