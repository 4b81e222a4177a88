"""Levels into the pool and trees out of it: the kernels against the torch bodies."""

from __future__ import annotations

import pytest
import torch

from eyas.draft import TreeShape
from eyas.draft.grow import Frontier, Pool
from eyas.draft_tree import DraftTree
from eyas.kernels.add_level import add_level as launch_add_level
from eyas.kernels.keep_best import keep_best as launch_keep_best
from eyas.ops.add_level import add_level
from eyas.ops.keep_best import keep_best
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn

NEVER = float("-inf")
Level = tuple[torch.Tensor, torch.Tensor]


def levels_of(
    seed: int, num: int, steps: int, topk: int, *, ties: bool, legal: float
) -> list[Level]:
    """Random children of every level: descending log-probabilities, some of them impossible."""
    draw = torch.Generator().manual_seed(seed)
    levels = []
    for depth in range(steps):
        width = topk if depth else 1
        scores = -torch.rand(num, width, topk, generator=draw) * 3
        if ties:
            scores = scores.round()
        scores[torch.rand(scores.shape, generator=draw) > legal] = NEVER
        scores = scores.sort(dim=2, descending=True).values
        tokens = torch.randint(0, 2**17, scores.shape, generator=draw)
        levels.append((tokens, scores))
    return levels


def grown(
    levels: list[Level], nodes: int, device: torch.device
) -> tuple[list[torch.Tensor], DraftTree]:
    """Everything the engine's functions say on the way to a tree."""
    num, _, topk = levels[0][0].shape
    said = []
    capacity = TreeShape(len(levels), topk, nodes).num_candidates
    frontier, pool = Frontier.of_roots(num, device), Pool(capacity)
    for tokens, scores in levels:
        frontier, parents = pool.add(frontier, tokens.to(device), scores.to(device), topk)
        said += [frontier.pool_BQ, frontier.score_BQ, frontier.path_BQP, parents]
    roots = torch.arange(7, 7 + num, device=device).unsqueeze(1)
    return said, pool.tree(roots, nodes, is_chain=topk == 1)


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.cpu(), want.cpu())


SHAPES = [
    (1, 5, 1, 6),
    (3, 1, 1, 2),
    (2, 7, 1, 4),
    (2, 2, 3, 12),
    (3, 4, 4, 1),
    (2, 5, 8, 32),
    (1, 3, 10, 60),
    (2, 2, 2, 50),
    (1, 2, 32, 128),
    (1, 18, 2, 33),
    (2, 21, 2, 40),
]
GPU_SHAPES = [
    (num, *shape)
    for num in (1, 8, 64)
    for shape in ((5, 8, 32), (7, 10, 60), (5, 1, 6), (4, 32, 128), (20, 1, 21))
]
SIZES = [*SHAPES, *(pytest.param(*each, marks=pytest.mark.gpu) for each in GPU_SHAPES)]


@pytest.mark.parametrize(("ties", "legal"), [(False, 1.0), (True, 0.6), (True, 0.1), (False, 0.0)])
@pytest.mark.parametrize(("num", "steps", "topk", "nodes"), SIZES)
def test_a_tree_is_the_one_of_torch(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    num: int,
    steps: int,
    topk: int,
    nodes: int,
    ties: bool,
    legal: float,
) -> None:
    levels = levels_of(steps * nodes + topk, num, steps, topk, ties=ties, legal=legal)
    want_said, want = grown(levels, nodes, torch.device("cpu"))
    take_kernels(monkeypatch, add_level, keep_best)
    said, tree = grown(levels, nodes, device)
    for got, wanted in zip(said, want_said, strict=True):
        assert_same(got, wanted)
    assert tree.is_chain == want.is_chain and tree.source_BW is None
    assert_same(tree.sizes_B, want.sizes_B)
    assert_same(tree.tokens_BW, want.tokens_BW)
    assert_same(tree.parents_BW, want.parents_BW)
    assert tree.score_BW is not None and want.score_BW is not None
    assert_same(tree.score_BW, want.score_BW)


def test_nothing_is_written_beside_the_level(device: torch.device) -> None:
    ((_, _), (tokens, scores)) = levels_of(5, 3, 2, 3, ties=True, legal=0.8)
    pool = (
        torch.full((3, 20), -77, device=device),
        torch.full((3, 20), float("nan"), device=device),
        torch.full((3, 20), -77, device=device),
    )
    frontier = (
        torch.tensor([[0, 1, 2]] * 3, device=device),
        torch.zeros(3, 3, device=device),
        torch.ones(3, 3, 1, dtype=torch.int64, device=device),
    )
    launch_add_level(tokens.to(device), scores.to(device), frontier, pool, 4, 3)
    for stored in pool:
        untouched = stored.cpu().nan_to_num(nan=-77.0)
        assert bool((untouched[:, :4] == -77).all() and (untouched[:, 13:] == -77).all())
    assert_same(pool[0][:, 4:13], tokens.flatten(1))
    assert_same(pool[1][:, 4:13], scores.flatten(1))
    assert_same(pool[2][:, 4:13], torch.arange(3).repeat_interleave(3).expand(3, -1))


def test_scores_that_are_no_numbers_break_nothing(device: torch.device) -> None:
    pool = (
        torch.arange(12, device=device).view(2, 6),
        torch.full((2, 6), float("nan"), device=device),
        torch.full((2, 6), -1, device=device),
    )
    pool[1][1, 2] = -0.5
    roots = torch.tensor([[50], [60]], device=device)
    tokens, parents, sizes, _ = launch_keep_best(pool, 6, roots, 4, is_chain=False)
    assert sizes.tolist() == [1, 2]
    assert tokens[:, 0].tolist() == [50, 60] and tokens[1, 1] == 8
    assert parents.tolist() == [[-1, 0, 0, 0], [-1, 0, 0, 0]]


def test_a_batch_of_nobody(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    take_kernels(monkeypatch, add_level, keep_best)
    said, tree = grown(levels_of(1, 0, 2, 3, ties=False, legal=1.0), 5, device)
    assert said[-2].shape == (0, 3, 2) and tree.tokens_BW.shape == (0, 5)


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "topk", "nodes"), [(5, 8, 32), (7, 10, 60), (5, 1, 6)])
def test_growing_runs_in_a_graph(device: torch.device, steps: int, topk: int, nodes: int) -> None:
    levels = [
        (tokens.to(device), scores.to(device))
        for tokens, scores in levels_of(1, 4, steps, topk, ties=False, legal=0.9)
    ]
    grown(levels, nodes, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, tree = grown(levels, nodes, device)
    fresh = levels_of(2, 4, steps, topk, ties=False, legal=0.7)
    for (tokens, scores), (new_tokens, new_scores) in zip(levels, fresh, strict=True):
        tokens.copy_(new_tokens)
        scores.copy_(new_scores)
    tree.tokens_BW.fill_(-5)
    graph.replay()
    _, want = grown(fresh, nodes, torch.device("cpu"))
    assert_same(tree.tokens_BW, want.tokens_BW)
    assert_same(tree.parents_BW, want.parents_BW)
    assert_same(tree.sizes_B, want.sizes_B)


def test_it_compiles_for_hopper() -> None:
    level = {
        "tokens": "*i64",
        "scores": "*fp32",
        "above_scores": "*fp32",
        "above_places": "*i64",
        "above_paths": "*i64",
        "pool_tokens": "*i64",
        "pool_scores": "*fp32",
        "pool_parents": "*i64",
        "places": "*i64",
        "next_scores": "*fp32",
        "parents": "*i64",
        "paths": "*i64",
        "start": "i32",
        "capacity": "i32",
        "depth": "i32",
    }
    jobs = []
    levels = [(1, 8), (32, 32)]
    for width, children in drawn(levels, [*levels, (1, 1), (8, 8), (10, 10)]):
        constants = {"WIDTH": width, "CHILDREN": children, "KEEP": children, "PDL": True}
        constants |= {"PADDED": 1 << (width * children - 1).bit_length()}
        constants |= {"KEEP_PADDED": 1 << (children - 1).bit_length(), "IS_SORTED": width == 1}
        constants |= {"PATH_BLOCKS": 1, "PATH_BLOCK": 16}
        warps = 1 if width * children <= 256 else 4
        jobs.append(
            Job("eyas.kernels.add_level:add_level_kernel", level, constants, num_warps=warps)
        )
    best = {
        "pool_tokens": "*i64",
        "pool_scores": "*fp32",
        "pool_parents": "*i64",
        "roots": "*i64",
        "tokens": "*i64",
        "parents": "*i64",
        "sizes": "*i64",
        "node_scores": "*fp32",
        "size": "i32",
        "capacity": "i32",
        "width": "i32",
    }
    pools = [(8, 8, True, 1), (8192, 128, False, 8)]
    more = [(512, 32, False, 4), (1024, 64, False, 4)]
    for padded, width, is_chain, warps in drawn(pools, [*pools, *more]):
        constants = {"PADDED": padded, "WIDTH_PADDED": width, "IS_CHAIN": is_chain, "PDL": True}
        jobs.append(
            Job("eyas.kernels.keep_best:keep_best_kernel", best, constants, num_warps=warps)
        )
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 64 * 1024, compiled
