"""A grown tree against EAGLE-2's definition, written out for one sequence with lists and loops."""

from __future__ import annotations

import math
import random

import pytest
import torch

from eyas.core import SamplingParams
from eyas.draft import TreeShape
from eyas.draft.grow import Frontier, Pool, best_tokens
from eyas.sampling import BatchParams, SequenceParams, gumbel
from eyas.sampling.process import SamplingRows

VOCAB = 24
Tree = tuple[list[int], list[int]]


def table(seed: int, *, ties: bool) -> torch.Tensor:
    """[V, V] logits of what follows each token; with ties, few different values."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    return logits.round() if ties else logits


def defined(logits: torch.Tensor, root: int, steps: int, topk: int, nodes: int) -> Tree:
    """The tree of one sequence: expand the best `topk` of each level, keep the best of all."""
    scores = logits.log_softmax(dim=1)
    pool: list[tuple[float, int, int]] = []  # cumulative score, token, parent in the pool
    frontier = [(0.0, root, -1)]
    for _ in range(steps):
        level = []
        for score, token, place in frontier:
            for value, child in zip(*(x.tolist() for x in scores[token].topk(topk)), strict=True):
                level.append((torch.tensor(score) + value, child, place))
        first = len(pool)
        pool += [(float(score), token, parent) for score, token, parent in level]
        order = sorted(range(len(level)), key=lambda i: (-float(level[i][0]), i))[:topk]
        frontier = [(float(level[i][0]), level[i][1], first + i) for i in order]
    best = sorted(range(len(pool)), key=lambda i: (-pool[i][0], i))[: nodes - 1]
    kept = sorted(best)
    number = {place: i + 1 for i, place in enumerate(kept)} | {-1: 0}
    return [root, *(pool[i][1] for i in kept)], [-1, *(number[pool[i][2]] for i in kept)]


def grown(
    logits: torch.Tensor,
    roots: list[int],
    steps: int,
    topk: int,
    nodes: int,
    source: SequenceParams,
    *others: SequenceParams,
) -> list[Tree]:
    """The trees of a batch by the functions of the engine; `others`: of the later sequences."""
    num = len(roots)
    sources = [source, *others] if others else [source] * num
    params = BatchParams(sources, VOCAB, torch.device("cpu"))
    shape = TreeShape(steps, topk, nodes)
    frontier, pool = Frontier.of_roots(num, torch.device("cpu")), Pool(shape.num_candidates)
    last = torch.tensor(roots).unsqueeze(1)
    for depth in range(steps):
        width = last.shape[1]
        path = frontier.path_BQP.flatten(0, 1)
        rows = SamplingRows(
            sequence_R=torch.arange(num).repeat_interleave(width),
            position_R=torch.full((num * width,), 9 + depth),
            tokens_RD=path if depth else None,
            is_ancestor_RD=torch.ones_like(path, dtype=torch.bool) if depth else None,
            history_BL=torch.tensor(roots).unsqueeze(1).expand(-1, 10),
            length_B=torch.full((num,), 10),
        )
        beta = torch.ones(num) if any(params.noisy) else None
        ids, scores = best_tokens(logits[last.flatten()], None, rows, params, beta, topk)
        frontier, _ = pool.add(
            frontier, ids.view(num, width, -1), scores.view(num, width, -1), topk
        )
        last = frontier.path_BQP[:, :, -1]
    tree = pool.tree(torch.tensor(roots).unsqueeze(1), nodes, is_chain=topk == 1)
    return [
        (tree.tokens_BW[b, :size].tolist(), tree.parents_BW[b, :size].tolist())
        for b, size in enumerate(tree.sizes_B.tolist())
    ]


def source(**params: float) -> SequenceParams:
    return SequenceParams(SamplingParams(**params), 7, 0, 3, frozenset())  # pyrefly: ignore


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("steps", "topk", "nodes"), [(1, 1, 2), (5, 1, 6), (3, 2, 5), (5, 4, 8), (5, 4, 16), (2, 3, 12)]
)
def test_a_tree_is_what_eagle_2_defines(steps: int, topk: int, nodes: int, ties: bool) -> None:
    for seed in range(20):
        logits = table(seed, ties=ties)
        if ties:  # topk itself may order equal logits as it likes: make them differ by id alone
            logits = logits - torch.arange(VOCAB) * 2.0**-12
        roots = random.Random(seed).sample(range(VOCAB), 5)
        trees = grown(logits, roots, steps, topk, nodes, source(temperature=0))
        for root, (tokens, parents) in zip(roots, trees, strict=True):
            assert (tokens, parents) == defined(logits, root, steps, topk, nodes)
            assert all(parent < node for node, parent in enumerate(parents))
            siblings = list(zip(parents, tokens, strict=True))
            assert len(set(siblings)) == len(siblings)


def test_what_may_not_be_chosen_is_not_drafted() -> None:
    """top_k 2 leaves two continuations a node: a tree of four children a node has those alone."""
    logits = table(1, ties=False)
    for tokens, parents in grown(logits, [3, 4], 3, 4, 16, source(temperature=0.8, top_k=2)):
        assert len(tokens) == 1 + 2 + 4 + 8
        for node, parent in enumerate(parents[1:], start=1):
            assert tokens[node] in logits[tokens[parent]].topk(2).indices


def test_candidates_are_ranked_by_the_noise_that_the_target_will_add() -> None:
    """With the target's own logits the first child is the target's choice, whatever beta is."""
    logits = table(2, ties=False)
    seeds, choices = torch.tensor([7]), torch.tensor([0])
    (tree,) = grown(logits, [5], 6, 2, 13, source(temperature=1.2))
    tokens, parents = tree
    at, token = 0, 5
    for depth in range(6):
        noisy = logits[token] / 1.2 + gumbel(seeds, torch.tensor([9 + depth]), choices, VOCAB)[0]
        token = int(noisy.argmax())
        children = [node for node in range(1, len(tokens)) if parents[node] == at]
        if not children:
            break
        assert token in [tokens[node] for node in children]
        at = next(node for node in children if tokens[node] == token)
    assert depth >= 2


def test_a_greedy_tree_is_the_same_beside_a_noisy_one() -> None:
    greedy, noisy = source(temperature=0), source(temperature=0.9)
    for seed in range(20):
        logits = table(seed, ties=False)
        (alone,) = grown(logits, [3], 3, 3, 9, greedy)
        assert grown(logits, [3, 4], 3, 3, 9, greedy, noisy)[0] == alone


def test_penalties_see_the_way_to_a_node() -> None:
    """A presence penalty on what was drafted makes a chain avoid its own tokens."""
    logits = torch.full((VOCAB, VOCAB), 0.0)
    logits[:, 6], logits[:, 7], logits[:, 8] = 3.0, 2.0, 1.0
    params = source(temperature=0, presence_penalty=2.5)
    (tree,) = grown(logits, [5], 3, 1, 4, params)
    assert tree[0] == [5, 6, 7, 8]
    assert math.isclose(float(logits[5, 6]), 3.0), "the network's own logits were changed"
