"""Trees whose masks are filled branch by branch: the masks are those of a copy at each node."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from eyas.constraint.automaton import Automaton
from eyas.draft_tree import DraftTree
from eyas.engine.branches import depths_of
from eyas.engine.masks import Masking, TreeMasks
from eyas.grammar import OutputSpec
from tests.constraint.walking import tokens_of

from .test_branches import random_parents
from .test_masks import END, OBJECT, TEXT, TOKENIZER, backend, filled, sequence

assert backend is not None  # a fixture

NUM_TREES = 30


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out of a tree before the forward."""
    monkeypatch.setattr(Masking, "prunes", property(lambda masking: False))


def random_tree(draw: random.Random, held: Any, right: list[int], size: int) -> list[list[int]]:
    """[tokens, parents]: the text's tokens with siblings that are allowed, refused, or over the end."""
    parents, tokens = random_parents(draw, size), [0]
    depths = depths_of(parents)
    for node in range(1, size):
        beside = {tokens[w] for w in range(1, node) if parents[w] == parents[node]}
        place = held.place + depths[node] - 1
        asked = [right[place] if place < len(right) else END]
        asked += [END, *right[:3], draw.randrange(4000), *range(4000, 4000 + size)]
        tokens.append(next(token for token in asked if token not in beside))
    return [tokens, parents]


def mask_of(backend: Any, state: Any) -> np.ndarray:
    """[K], all zero where there is no state."""
    mask_1K = np.zeros((1, backend.vocabulary.num_mask_words), dtype=np.int32)
    assert state is None or not backend.fill([state], mask_1K)
    return mask_1K[0]


def states_of(root: Any, tokens: list[int], parents: list[int]) -> list[Any]:
    """By node, each by a copy of the state above it; None where it is not legal."""
    states = [root]
    for token, above in zip(tokens[1:], parents[1:], strict=True):
        states.append(None if states[above] is None else states[above].after(token))
    return states


@pytest.mark.parametrize("num_forks", [0, 1])
@pytest.mark.parametrize("limit", [None, 0, 2])
def test_masks_and_refusals_are_those_of_a_walk(
    backend: Any, num_forks: int, limit: int | None
) -> None:
    draw = random.Random(num_forks)
    tokens = [*tokens_of(TOKENIZER, TEXT), END]
    num_legal = num_refused = num_deep = 0
    for _ in range(NUM_TREES // 6):
        rooted, rows = [], []
        for _ in range(6):
            place = draw.randrange(len(tokens))
            held = sequence(backend, OBJECT)
            held.automaton.advance(tokens[:place])
            held.automaton.mask_limit.limit = limit
            held.place = place
            rooted.append(held)
            rows.append(random_tree(draw, held, tokens, 12))
            for _ in range(num_forks):
                twin = sequence(backend, None)
                twin.automaton, twin.place = held.automaton.fork(), place
                rooted.append(twin)
                rows.append(
                    rows[-1] if draw.random() < 0.5 else random_tree(draw, twin, tokens, 12)
                )
        sizes = [draw.randint(1, 12) for _ in rows]
        tree = DraftTree(
            torch.tensor([row for row, _ in rows]),
            torch.tensor([parents for _, parents in rows]),
            torch.tensor(sizes),
            False,
        )
        mask_BWK, refusals, stats = filled(tree, rooted, backend)
        assert not stats.num_late
        for b, (held, (row, parents), size) in enumerate(zip(rooted, rows, sizes, strict=True)):
            alone = Automaton(backend.compile(OutputSpec(root=OBJECT)))
            alone.advance(tokens[: held.place])
            depths = depths_of(parents)
            for node, state in enumerate(states_of(alone.root, row[:size], parents[:size])):
                is_seen = limit is None or depths[node] <= limit
                expected_K = mask_of(backend, state if is_seen else None)
                assert (mask_BWK[b, node] == expected_K).all(), (b, node)
                assert (node in refusals.illegal[b]) == (state is None)
                num_legal += state is not None
                num_refused += state is None
                num_deep += not is_seen
            assert not mask_BWK[b, size:].any()
    assert num_legal > 50 and num_refused > 20 and (limit is None or num_deep > 50)


@pytest.mark.parametrize("num_broken", [1, 2])
def test_a_branch_whose_call_breaks_is_filled_by_itself(
    backend: Any, monkeypatch: pytest.MonkeyPatch, num_broken: int
) -> None:
    """The matcher that went through the draft may be anywhere, so another one does."""
    fill = type(backend).fill_drafts
    broken = []

    def breaks(library: Any, asked: Any, mask_RK: np.ndarray) -> None:
        if asked and len(broken) < num_broken:
            for matcher, _, tokens in asked:
                matcher.try_consume_tokens(tokens[:1])
            broken.append(asked)
            raise RuntimeError("in the middle of a draft, on purpose")
        fill(library, asked, mask_RK)

    monkeypatch.setattr(type(backend), "fill_drafts", breaks)
    one, two = tokens_of(TOKENIZER, '{"a'), tokens_of(TOKENIZER, "{ ")
    assert len(one) >= 2 and one[0] != two[0]
    held = sequence(backend, OBJECT)
    tokens, parents = [0, one[0], two[0], one[1], two[-1]], [-1, 0, 0, 1, 2]
    tree = DraftTree(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([5]), False)
    for _ in range(2):
        mask_1WK, refusals, _ = filled(tree, [held], backend)
        assert len(broken) == num_broken and not refusals.num_nodes
        root = Automaton(backend.compile(OutputSpec(root=OBJECT))).root
        for node, state in enumerate(states_of(root, tokens, parents)):
            assert state is not None
            assert (mask_1WK[0, node] == mask_of(backend, state)).all(), node


def test_an_output_goes_on_after_its_trees(backend: Any) -> None:
    draw = random.Random(3)
    tokens = [*tokens_of(TOKENIZER, TEXT), END]
    held = sequence(backend, OBJECT)
    held.place = 0
    while held.place < len(tokens) - 1:
        row, parents = random_tree(draw, held, tokens, 10)
        tree = DraftTree(torch.tensor([row]), torch.tensor([parents]), torch.tensor([10]), False)
        mask_1WK, _, _ = filled(tree, [held], backend)
        alone = Automaton(backend.compile(OutputSpec(root=OBJECT)))
        alone.advance(tokens[: held.place])
        assert (mask_1WK[0, 0] == mask_of(backend, alone.root)).all()
        num = draw.randint(1, 3)
        held.automaton.advance(
            tokens[held.place : held.place + num][: len(tokens) - 1 - held.place]
        )
        held.place = min(held.place + num, len(tokens) - 1)


@pytest.mark.parametrize("is_over", [True, False])
def test_branches_are_left_out_once_the_forward_has_ended(
    backend: Any, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roots and what is behind them on the first way have their masks; other branches have none, no
    neighbour and no later step is the worse for it."""
    tokens = tokens_of(TOKENIZER, TEXT)
    rooted = [sequence(backend, OBJECT) for _ in range(2)]
    row = [0, tokens[0], tokens[0], tokens[1], tokens[1]]
    parents = [-1, 0, 0, 1, 2]
    tree = DraftTree(
        torch.tensor([row] * 2), torch.tensor([parents] * 2), torch.tensor([5, 5]), False
    )
    fill = TreeMasks.begin

    def begin(masks: TreeMasks) -> None:
        masks.fill_until(lambda: is_over)
        fill(masks)

    monkeypatch.setattr(TreeMasks, "begin", begin)
    mask_BWK, refusals, stats = filled(tree, rooted, backend)
    for b, held in enumerate(rooted):
        for node in (0, 1, 3):
            state = held.automaton.root.after_all(tokens[: (0, 1, 0, 2)[node]])
            assert (mask_BWK[b, node] == mask_of(backend, state)).all()
        assert mask_BWK[b, 2].any() == mask_BWK[b, 4].any() == (not is_over)
        assert held.automaton.mask_limit.limit is None
    assert refusals.num_nodes == 0 and stats.num_late == 0
    assert stats.num_left_out == (4 if is_over else 0)
