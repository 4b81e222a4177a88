"""Merged trees: the kernel against the torch body, as drafters call them."""

from __future__ import annotations

import random

import pytest
import torch

from eyas.draft import blend
from eyas.draft.base import chain
from eyas.draft_tree import DraftTree
from eyas.ops.merge_trees import merge_trees
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper

GPU = pytest.mark.gpu


def random_tree(draw: random.Random, num: int, width: int, vocab: int) -> DraftTree:
    """Trees with different children below each node and rubbish in their padding."""
    tokens, parents, sizes = [], [], []
    for _ in range(num):
        own, above, taken = [9], [-1], set()
        for _ in range(draw.randint(0, width - 1)):
            node = (draw.randint(max(0, len(own) - 4), len(own) - 1), draw.randint(1, vocab))
            if node not in taken:
                taken.add(node)
                above.append(node[0])
                own.append(node[1])
        sizes.append(len(own))
        rest = width - len(own)
        tokens.append(own + [draw.randint(0, vocab) for _ in range(rest)])
        parents.append(above + [draw.randint(0, width - 1) for _ in range(rest)])
    shape = (num, width)
    tree = DraftTree(
        torch.tensor(tokens, dtype=torch.int64).view(shape),
        torch.tensor(parents, dtype=torch.int64).view(shape),
        torch.tensor(sizes, dtype=torch.int64),
        is_chain=False,
    )
    tree.source_BW = torch.zeros_like(tree.tokens_BW)
    return tree


def on(device: torch.device, tree: DraftTree) -> DraftTree:
    source_BW = None if tree.source_BW is None else tree.source_BW.to(device)
    return DraftTree(
        tree.tokens_BW.to(device),
        tree.parents_BW.to(device),
        tree.sizes_B.to(device),
        tree.is_chain,
        source_BW,
    )


def assert_same(got: DraftTree, want: DraftTree, width: int) -> None:
    assert got.width == width and got.is_chain == (width == 1)
    assert got.sizes_B.tolist() == want.sizes_B.tolist()
    assert got.source_BW is not None and want.source_BW is not None
    for b, size in enumerate(want.sizes_B.tolist()):
        assert got.tokens_BW[b, :size].tolist() == want.tokens_BW[b, :size].tolist()
        assert got.parents_BW[b, :size].tolist() == want.parents_BW[b, :size].tolist()
        assert got.source_BW[b, :size].tolist() == want.source_BW[b, :size].tolist()


@pytest.mark.parametrize(
    ("num", "most", "rounds"),
    [
        (3, 7, 40),
        (1, 24, 6),
        pytest.param(1, 33, 20, marks=GPU),
        pytest.param(8, 128, 10, marks=GPU),
        pytest.param(64, 60, 10, marks=GPU),
    ],
)
def test_merged_trees_are_those_of_the_loop(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, num: int, most: int, rounds: int
) -> None:
    draw = random.Random(num + most)
    for _ in range(rounds):
        first = random_tree(draw, num, draw.randint(1, most), 4)
        second = random_tree(draw, num, draw.randint(1, most), 4)
        width = draw.randint(1, first.width + second.width + 2)
        grown = max(first.width, min(width, first.width + second.width - 1))
        want = blend.merge(first, second, 3, width)
        with monkeypatch.context() as patch:
            take_kernels(patch, merge_trees)
            got = blend.merge(on(device, first), on(device, second), 3, width)
        assert_same(got, want, grown)
        assert bool((got.parents_BW < got.width).all())


def test_chains_whose_parents_are_one_row(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(1)
    first = chain(torch.randint(0, 2, (5, 6), generator=draw), torch.tensor([6, 1, 4, 3, 6]))
    second = chain(torch.randint(0, 2, (5, 4), generator=draw), torch.tensor([4, 4, 1, 2, 3]))
    second.tokens_BW[:, 0] = first.tokens_BW[:, 0]
    first.source_BW = torch.zeros_like(first.tokens_BW)
    want = blend.merge(first, second, 1, 8)
    take_kernels(monkeypatch, merge_trees)
    moved = on(device, second)
    moved.tokens_BW = moved.tokens_BW.t().contiguous().t()
    assert_same(blend.merge(on(device, first), moved, 1, 8), want, 8)


def test_trees_of_nobody_and_roots_alone(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_kernels(monkeypatch, merge_trees)
    nobody = on(device, random_tree(random.Random(1), 0, 3, 4))
    assert blend.merge(nobody, nobody, 1, 4).tokens_BW.shape == (0, 4)
    alone = on(device, random_tree(random.Random(1), 2, 1, 4))
    merged = blend.merge(alone, alone, 1, 4)
    assert merged.is_chain and merged.parents_BW.tolist() == [[-1], [-1]]
    assert merged.sizes_B.tolist() == [1, 1]


@pytest.mark.gpu
def test_merging_runs_in_a_graph(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    trees = [on(device, random_tree(draw, 4, 20, 3)) for _ in range(2)]
    blend.merge(*trees, 1, 30)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        merged = blend.merge(*trees, 1, 30)
    fresh = [random_tree(draw, 4, 20, 3) for _ in range(2)]
    for tree, new in zip(trees, fresh, strict=True):
        tree.tokens_BW.copy_(new.tokens_BW)
        tree.parents_BW.copy_(new.parents_BW)
        tree.sizes_B.copy_(new.sizes_B)
    merged.tokens_BW.fill_(-7)
    graph.replay()
    assert_same(merged, blend.merge(*fresh, 1, 30), 30)


def test_it_compiles_for_hopper() -> None:
    pointers = (
        "old_tokens old_parents old_sources old_sizes new_tokens new_parents new_sizes"
        " tokens parents sources sizes"
    )
    numbers = (
        "old_tokens_stride old_parents_stride old_sources_stride new_tokens_stride"
        " new_parents_stride source old_width width"
    )
    signature = dict.fromkeys(pointers.split(), "*i64") | dict.fromkeys(numbers.split(), "i32")
    jobs = []
    for new, padded in [(6, 8), (32, 64), (128, 256)]:
        constants = {"NEW_WIDTH": new, "NEW_PADDED": 1 << (new - 1).bit_length()}
        constants |= {"PADDED": padded, "PDL": True}
        jobs.append(Job("eyas.kernels.merge_trees:add_tree", {**signature}, constants, num_warps=1))
    for name in ("source", "old_width"):
        del signature[name]
    constants = {"NEW_WIDTH": 32, "NEW_PADDED": 32, "PADDED": 32, "PDL": False}
    constants |= {"source": 1, "old_width": 1}
    jobs.append(Job("eyas.kernels.merge_trees:add_tree", signature, constants, num_warps=1))
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 64 * 1024, compiled
