"""The rows of a tree's levels: the kernel against the torch body, as the drafter calls them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eyas.draft import tree as trees
from eyas.draft.base import TreeShape
from eyas.draft.grow import Frontier
from eyas.draft.tree import TreeDrafter, num_scratch
from eyas.ops.level_rows import level_rows
from eyas.ops.table import TableSequences
from eyas.runner.rows import ForwardRows
from eyas.sampling.process import SamplingRows
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper
from tests.kernels.test_node_rows import assert_same, assert_same_layouts, some_batch

FIRST_SCRATCH = 70001
Level = tuple[ForwardRows, torch.Tensor | None, SamplingRows | None]


class NoNetwork:
    """What a drafter asks of a network before it runs it."""

    first_position = 1
    taps = (0,)


def levels(
    device: torch.device,
    seed: int,
    num: int,
    shape: TreeShape,
    size: int,
    dtype: torch.dtype,
    **params: float,
) -> tuple[list[Level], torch.Tensor]:
    """What each level's forward gets while random trees grow, and the table of slots after that."""
    draw = torch.Generator().manual_seed(seed)
    network: Any = NoNetwork()
    drafter = TreeDrafter(network, shape, first_scratch=FIRST_SCRATCH, max_rows=64, trust=None)
    batch = some_batch(seed, num, 6, device, num_nobody=2, **params)
    num += 2
    sequence_B = torch.arange(num, device=device)
    growth = trees._Growth(batch, shape, None, (sequence_B, batch.roots_B), sequence_B)
    states_RF = torch.randn(num, size + 8, generator=draw).to(device, dtype)[:, :size]
    states_RF = states_RF if size else None
    made: list[Level] = []
    no_tokens = torch.empty((num, 1, 0), dtype=torch.int64, device=device)
    places = torch.zeros((num, 1), device=device)
    roots = Frontier(places.long(), places, no_tokens)
    made.append((None, None, drafter._sampling_rows(growth, roots)))  # pyrefly: ignore
    for depth in range(1, shape.steps):
        grid = (num, shape.topk)
        path_BKD = torch.randint(0, 999, (*grid, depth), generator=draw).to(device)
        above = shape.topk if depth > 1 else 1
        above_BK = torch.randint(0, above, grid, generator=draw).to(device)
        frontier = Frontier(above_BK, torch.zeros(grid, device=device), path_BKD)
        rows, states_RF = drafter._below(growth, frontier, above_BK, states_RF)
        made.append((rows, states_RF, drafter._sampling_rows(growth, frontier)))
        if states_RF is not None:
            fresh = torch.randn(states_RF.shape, generator=draw).to(device, dtype)
            made[-1] = (rows, states_RF.clone(), made[-1][2])
            states_RF = fresh
    return made, batch.table.slots_AC


SHAPES = [
    (1, TreeShape(2, 1, 3), 40),
    (3, TreeShape(5, 1, 6), 0),
    (1, TreeShape(5, 8, 32), 100),
    (4, TreeShape(4, 3, 13), 3000),
    (2, TreeShape(4, 10, 30), 0),
    (1, TreeShape(3, 32, 60), 4096),
    (0, TreeShape(3, 2, 5), 16),
    (2, TreeShape(1, 4, 5), 16),
]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9}])
@pytest.mark.parametrize(("num", "shape", "size"), SHAPES)
def test_levels_are_those_of_torch(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    num: int,
    shape: TreeShape,
    size: int,
    params: dict[str, float],
) -> None:
    for seed, dtype in enumerate((torch.float32, torch.float16)):
        given = (seed, num, shape, size, dtype)
        with monkeypatch.context() as patch:
            take_kernels(patch, level_rows)
            got, got_slots = levels(device, *given, **params)
        want, want_slots = levels(torch.device("cpu"), *given, **params)
        assert_same(got_slots, want_slots)
        for (rows, states, sampling), (rows_, states_, sampling_) in zip(got, want, strict=True):
            assert (sampling is None) == (sampling_ is None) == (params["temperature"] == 0)
            if sampling is not None and sampling_ is not None:
                assert_same(sampling.sequence_R, sampling_.sequence_R)
                assert_same(sampling.position_R, sampling_.position_R)
            if rows is None:
                continue
            assert_same(states, states_)
            for name in ("tokens_T", "positions_T", "write_slots_T", "logits_rows_R"):
                assert_same(getattr(rows, name), getattr(rows_, name))
            assert_same_layouts(rows.layout, rows_.layout)
            assert rows.num_leading == rows_.num_leading == len(rows.tokens_T)
            assert rows.layout.nodes is not None and rows.layout.nodes.slots_BW.is_contiguous()


def test_penalties_get_the_way_to_each_node(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (3, 2, TreeShape(3, 2, 5), 0, torch.float32)
    with monkeypatch.context() as patch:
        take_kernels(patch, level_rows)
        got, _ = levels(device, *given, presence_penalty=0.5)
    want, _ = levels(torch.device("cpu"), *given, presence_penalty=0.5)
    names = ("sequence_R", "position_R", "tokens_RD", "is_ancestor_RD", "history_BL", "length_B")
    for (_, _, sampling), (_, _, sampling_) in zip(got, want, strict=True):
        for name in names:
            assert_same(getattr(sampling, name), getattr(sampling_, name))


def test_scratch_slots_are_a_seats_own(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = TreeShape(4, 3, 12)
    take_kernels(monkeypatch, level_rows)
    made, _ = levels(device, 0, 5, shape, 0, torch.float32)
    batch = some_batch(0, 5, 6, device, num_nobody=2)
    for rows, _, _ in made[1:]:
        seats = (rows.write_slots_T - FIRST_SCRATCH) // num_scratch(shape)
        assert torch.equal(seats, batch.seats_B.repeat_interleave(3))
    slots = torch.stack([rows.write_slots_T.view(7, 3)[:5] for rows, _, _ in made[1:]])
    assert len(slots.unique()) == slots.numel()


def test_a_level_of_nobody(device: torch.device) -> None:
    nothing_B = torch.empty(0, dtype=torch.int64, device=device)
    grid_BK = nothing_B.view(0, 1).expand(0, 3)
    table = torch.zeros((2, 9), dtype=torch.int64, device=device)
    paths_BKD = grid_BK.unsqueeze(2)
    states_RF = torch.empty((0, 8), device=device)
    sequences = TableSequences(table, table, nothing_B, nothing_B, grid_BK, 8)
    given = (paths_BKD, grid_BK, None, states_RF, sequences, 5, 6)
    rows, inner, below_RF = level_rows.by_kernel(*given)
    assert len(rows.tokens_R) == 0 and inner is not None and inner.parents_BW.shape == (0, 4)
    assert below_RF is not None and below_RF.shape == (0, 8)


def test_it_compiles_for_hopper() -> None:
    pointers = ("seats", "roots", "node_slots", "paths", "above", "parents_above", "table_slots")
    numbers = ("depth", "first_scratch", "per_seat", "padded_rows", "max_position")
    strides = ("node_slots_stride", "table_slots_stride", "states_stride")
    signature = dict.fromkeys((*pointers, "numbers", "grids"), "*i64")
    signature |= dict.fromkeys(("states_above", "states"), "*bf16")
    signature |= dict.fromkeys((*numbers, *strides), "i32")
    jobs = []
    for topk, width, size in [
        (1, 2, 0),
        (8, 64, 4096),
        (10, 64, 7168),
        (32, 128, 4096),
        (3, 16, 0),
    ]:
        constants = {"TOPK": topk, "IS_CHAIN": topk == 1, "BLOCK_W": width, "SIZE": size}
        constants |= {"BLOCK": 2048 if size else 1, "PDL": True}
        job = Job(
            "eyas.kernels.level_rows:level_kernel",
            signature,
            constants,
            num_warps=4 if size else 1,
            aligned=("states_stride",),
        )
        jobs.append(job)
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 8 * 1024, compiled
