"""Forms of drafted trees, and the paths that texts take through trees of any form."""

from __future__ import annotations

import random

import pytest
import torch

from eyas.draft_tree import DraftTree
from eyas_bench.tree_forms import depths, form_of, path

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("width", "steps", "topk"), [(32, 5, 8), (60, 7, 10), (16, 4, 3), (9, 2, 8)]
)
def test_a_form_is_a_tree_of_its_shape_that_goes_all_the_way_down(
    width: int, steps: int, topk: int
) -> None:
    form = form_of(width, steps, topk, CPU)
    parents, ranks = form.parents_W.tolist(), form.ranks_W.tolist()
    assert len(parents) == width and parents[0] == -1
    siblings: dict[int, list[int]] = {}
    for node in range(1, width):
        assert 0 <= parents[node] < node
        assert form.depths_W[node] == form.depths_W[parents[node]] + 1
        siblings.setdefault(parents[node], []).append(ranks[node])
    assert all(found == list(range(len(found))) for found in siblings.values())
    assert max(map(len, siblings.values())) <= topk
    assert form.depths_W.max() == steps
    main, leads = {0}, form.follows_main_W.tolist()
    for node in range(1, width):
        assert leads[node] == (parents[node] in main)
        if leads[node] and ranks[node] == 0:
            main.add(node)
    assert len(main) == steps + 1, "the likeliest path is there as a whole"


def test_one_child_a_node_is_a_chain() -> None:
    form = form_of(6, 5, 1, CPU)
    assert form.parents_W.tolist() == [-1, 0, 1, 2, 3, 4] and form.follows_main_W[1:].all()
    wide = form_of(8, 5, 1, CPU)
    assert wide.parents_W.tolist() == [-1, 0, 1, 2, 3, 4, 0, 0], (
        "what fills it up hangs on the root"
    )


def walked(tokens: list[int], parents: list[int], size: int, chosen: list[int]) -> list[int]:
    nodes = [0]
    while True:
        at = nodes[-1]
        found = [w for w in range(1, size) if parents[w] == at and tokens[w] == chosen[at]]
        if not found:
            return nodes
        nodes += found


@pytest.mark.parametrize("is_chain", [False, True])
def test_paths_are_those_of_a_walk(is_chain: bool) -> None:
    draw = random.Random(0)
    num_longer = 0
    for _ in range(200):
        width, steps = draw.randint(2, 12), 4
        if is_chain:
            width = min(width, steps + 1)
        size = draw.randint(1, width)
        parents, tokens, depth = [-1], [7], [0]
        for node in range(1, width):
            fit = [w for w in range(node) if depth[w] < steps]
            parent = node - 1 if is_chain else draw.choice(fit)
            beside = {tokens[w] for w in range(1, node) if parents[w] == parent}
            parents.append(parent)
            depth.append(depth[parent] + 1)
            tokens.append(draw.choice([t for t in range(13) if t not in beside]))
        # After each node one of its children's tokens, another one, or none.
        chosen = [
            draw.choice(
                [tokens[w] for w in range(1, width) if parents[w] == node]
                + [draw.randrange(-1, 13)]
            )
            for node in range(width)
        ]
        tree = DraftTree(
            torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([size]), is_chain
        )
        assert depths(tree, steps).tolist() == [depth]
        nodes_BD, accepted_B = path(tree, torch.tensor([chosen]), steps)
        expected = walked(tokens, parents, size, chosen)
        found = nodes_BD[0].tolist()
        assert accepted_B.tolist() == [len(expected) - 1]
        assert found == expected + [0] * (len(found) - len(expected))
        num_longer += len(expected) > 2
    assert num_longer > 20
