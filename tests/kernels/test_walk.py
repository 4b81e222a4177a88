"""Walks and advances: the kernels against the torch bodies."""

from __future__ import annotations

import random

import pytest
import torch

from eyas.draft_tree import DraftTree, Verdict
from eyas.kernels import walk as kernels
from eyas.ops.advance import advance
from eyas.ops.table import TableSequences
from eyas.ops.walk import walk
from eyas.runner.table import SequenceTable
from tests.kernels.hopper import Job, compile_for_hopper


def some_tree(draw: random.Random, num: int, width: int, *, is_chain: bool) -> DraftTree:
    """Siblings carry different tokens; nodes at and beyond the sizes are anything."""
    tokens = torch.zeros((num, width), dtype=torch.int64)
    parents = torch.full((num, width), -1, dtype=torch.int64)
    for b in range(num):
        taken: dict[int, int] = {}
        for w in range(width):
            if w:
                parents[b, w] = w - 1 if is_chain else draw.randrange(max(0, w - 9), w)
            above = int(parents[b, w])
            tokens[b, w] = taken.get(above, draw.randrange(3))
            taken[above] = int(tokens[b, w]) + 1
    sizes = torch.tensor([draw.randint(1, width) for _ in range(num)], dtype=torch.int64)
    return DraftTree(tokens, parents, sizes, is_chain)


def some_choices(draw: random.Random, tree: DraftTree, share_of_faults: float) -> torch.Tensor:
    """Mostly the token of some child, padding children among them."""
    num, width = tree.tokens_BW.shape
    chosen = torch.randint(0, 5, (num, width), generator=torch.Generator().manual_seed(width))
    for b in range(num):
        for w in range(1, width):
            if draw.random() < 0.7:
                chosen[b, int(tree.parents_BW[b, w])] = tree.tokens_BW[b, w]
        for w in range(width):
            if draw.random() < share_of_faults:
                chosen[b, w] = -1
    return chosen


def by_torch(chosen: torch.Tensor, tree: DraftTree) -> Verdict:
    return Verdict(walk.by_torch(chosen, tree))


def launch(device: torch.device, chosen: torch.Tensor, tree: DraftTree) -> Verdict:
    parents = None if tree.is_chain else tree.parents_BW.to(device)
    report = kernels.walk(
        chosen.to(device).view(-1), tree.tokens_BW.to(device), parents, tree.sizes_B.to(device)
    )
    assert report.shape == (len(chosen), 2 * tree.width + 1) and report.is_contiguous()
    return Verdict(report.cpu())


@pytest.mark.parametrize("is_chain", [False, True])
@pytest.mark.parametrize("width", [1, 2, 6, 33, 160])
@pytest.mark.parametrize("share_of_faults", [0.0, 0.15])
def test_a_walk_is_the_verifiers(
    device: torch.device, width: int, is_chain: bool, share_of_faults: float
) -> None:
    draw = random.Random(width)
    tree = some_tree(draw, 24, width, is_chain=is_chain)
    chosen = some_choices(draw, tree, share_of_faults)
    want = by_torch(chosen, tree)
    got = launch(device, chosen, tree)
    assert torch.equal(got.counts_B, want.counts_B)
    assert torch.equal(got.tokens_BW, want.tokens_BW)
    for b, count in enumerate(want.counts_B.tolist()):
        walked = max(count, 0)
        assert torch.equal(got.nodes_BW[b, :walked], want.nodes_BW[b, :walked])
    assert int(got.nodes_BW.min()) >= 0 and int(got.nodes_BW.max()) < width
    if width > 2:
        assert int(want.counts_B.max()) > 2 or share_of_faults


def test_a_long_chain_is_walked_to_its_end(device: torch.device) -> None:
    """As a chain and as a tree that happens to be one; and none at all for no sequences."""
    width = 160
    tokens = torch.arange(width).repeat(2, 1)
    parents = torch.arange(-1, width - 1).repeat(2, 1)
    chosen = torch.arange(1, width + 1).repeat(2, 1)
    sizes = torch.tensor([width, 100])
    for is_chain in (True, False):
        got = launch(device, chosen, DraftTree(tokens, parents, sizes, is_chain))
        assert got.counts_B.tolist() == [width, 100]
        assert torch.equal(got.tokens_BW[1, :100], chosen[1, :100])
        assert torch.equal(got.nodes_BW[0], torch.arange(width))
    nothing = kernels.walk(chosen[:0].to(device), tokens[:0].to(device), None, sizes[:0])
    assert nothing.shape == (0, 2 * width + 1)


def test_a_padding_child_is_not_walked_into_and_faults_end_the_walk(device: torch.device) -> None:
    tokens = torch.tensor([[9, 1, 2, 3]] * 4)
    parents = torch.tensor([[-1, 0, 1, 2]] * 4)
    chosen = torch.tensor([[1, 2, 3, 4], [-1, 2, 3, 4], [1, -1, 3, 4], [1, 2, 3, -1]])
    sizes = torch.tensor([3, 4, 4, 4])
    for is_chain in (True, False):
        got = launch(device, chosen, DraftTree(tokens, parents, sizes, is_chain))
        assert got.counts_B.tolist() == [3, -1, 1, 3]


@pytest.mark.parametrize("is_chain", [False, True])
@pytest.mark.parametrize("padding_seat", [-1, 0, 5])
def test_an_advance_is_that_of_torch(
    device: torch.device, is_chain: bool, padding_seat: int
) -> None:
    draw = random.Random(4)
    width, num, num_seats = 7, 5, 6
    tree = some_tree(draw, num, width, is_chain=is_chain)
    chosen = some_choices(draw, tree, 0.1)
    chosen[1, 0] = -1
    want = by_torch(chosen, tree)
    assert -1 in want.counts_B.tolist()
    seats = torch.tensor([5, 2, 0, 3, 1])
    roots = torch.tensor([11, 0, 29, 7, 3])
    slots = torch.randint(1, 1000, (num, width + 3))
    table = SequenceTable(num_seats, 40, width, torch.device("cpu"))
    table.tokens_AC.random_(0, 100)
    table.slots_AC.random_(0, 100)
    table.lengths_A[seats] = roots + 1
    tensors = (table.tokens_AC, table.slots_AC, table.lengths_A)
    mine = [t.clone().to(device) for t in tensors]
    places = (seats, roots, slots)
    sequences = TableSequences(*tensors[:2], *places, table.last_position)
    advance.by_torch(want.report_BX, sequences, table.lengths_A, is_chain, padding_seat)
    moved = [x.to(device) for x in places]
    sequences = TableSequences(*mine[:2], *moved, table.last_position)
    advance.by_kernel(want.report_BX.to(device), sequences, mine[2], is_chain, padding_seat)
    trash = table.num_columns
    assert torch.equal(mine[0].cpu()[:, :trash], table.tokens_AC[:, :trash])
    assert torch.equal(mine[1].cpu()[:, :trash], table.slots_AC[:, :trash])
    assert torch.equal(mine[2].cpu(), table.lengths_A)


def test_kernels_compile_for_hopper() -> None:
    walked = ("chosen", "tokens", "parents", "sizes", "report")
    strides = ("tokens_stride", "parents_stride", "sizes_stride", "report_stride")
    pointers = dict.fromkeys(walked, "*i64") | dict.fromkeys(("width", *strides), "i32")
    told = ("seats", "roots", "report", "node_slots")
    kept = ("table_tokens", "table_slots", "lengths")
    steps = ("report", "node_slots", "table_tokens", "table_slots")
    numbers = ("width", "trash_seat", *(f"{name}_stride" for name in steps))
    advanced = dict.fromkeys((*told, *kept), "*i64") | dict.fromkeys(numbers, "i32")
    jobs = [
        job
        for is_chain in (False, True)
        for job in (
            Job(
                "eyas.kernels.walk:_walk_kernel",
                pointers,
                {"IS_CHAIN": is_chain, "BLOCK_W": 256, "PDL": is_chain},
                num_warps=1,
            ),
            Job(
                "eyas.kernels.advance:_advance_kernel",
                advanced,
                {"IS_CHAIN": is_chain, "HAS_TRASH": True, "BLOCK_W": 256, "PDL": is_chain},
                num_warps=1,
            ),
        )
    ]
    for built in compile_for_hopper(*jobs):
        assert built.num_spilled == 0 and built.shared < 227 * 1024
