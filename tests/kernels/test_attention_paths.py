"""Paths of tree nodes against walking up by hand; that the attention kernels compile for Hopper.

Legend: B sequences, W nodes, T rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from eyas.kernels.attention_prefill import cut
from eyas.kernels.paths import node_paths
from tests.attention.scenes import random_parents
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose rows do not depend on their place in the tile, which BLAS does not promise and the
    device does."""

    def dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + d.data
        return interpreter.TensorHandle(product.astype(np.float32), d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory holds what is no number."""
    with pytest.MonkeyPatch.context() as patch:
        empty = torch.empty

        def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
            fresh = empty(*args, **kwargs)
            return fresh.fill_(float("nan")) if fresh.is_floating_point() else fresh

        patch.setattr(torch, "empty", filled)
        yield


def up(parents: list[int], node: int) -> list[int]:
    """The node, and those above it up to the root."""
    return [node] if parents[node] < 0 else [node, *up(parents, parents[node])]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("width", [1, 2, 7, 32, 61])
def test_paths_lead_from_each_node_to_its_root(width: int, device: torch.device) -> None:
    draw = random.Random(width)
    trees = [random_parents(draw, width), [-1, *range(width - 1)], [-1] + [0] * (width - 1)]
    parents_BW = torch.tensor(trees, device=device)
    slots_BW = torch.randint(1, 10**12, (3, width), device=device)
    rows_BW = torch.arange(3 * width, device=device).view(3, width)
    if width > 2:
        rows_BW[1, 2] = -1
    roots_B = torch.tensor([5, 0, 127], device=device)
    positions_BW, nodes_T, paths_BWD = node_paths(
        rows_BW, roots_B, parents_BW, slots_BW, 3 * width + 4
    )
    assert paths_BWD is not None
    for b, parents in enumerate(trees):
        for w in range(width):
            path = up(parents, w)
            assert paths_BWD[b, w, : len(path)].tolist() == slots_BW[b, path].tolist()
            is_row = int(rows_BW[b, w]) >= 0
            assert positions_BW[b, w] == (int(roots_B[b]) + len(path) - 1 if is_row else -1)
            assert nodes_T[b * width + w] == (b * width + w if is_row else -1)
    assert nodes_T[3 * width :].tolist() == [-1] * 4
    chain_positions_BW, _, nothing = node_paths(rows_BW, roots_B, None, slots_BW, 3 * width)
    assert nothing is None
    expected_BW = roots_B.unsqueeze(1) + torch.arange(width, device=device)
    assert torch.equal(chain_positions_BW, torch.where(rows_BW >= 0, expected_BW, -1))


def test_tiles_cover_every_row_once_and_the_longest_come_first() -> None:
    runs = [(2, 10, 0, 33), (3, 43, 500, 1), (4, 44, 96, 64)]
    tiles_X4 = cut(runs, 32)
    assert (tiles_X4[:-1, 2] >= tiles_X4[1:, 2]).all()
    rows = sorted(
        (sequence, row + i, position + i)
        for sequence, row, position, count in tiles_X4.tolist()
        for i in range(count)
    )
    assert rows == [(s, row + i, at + i) for s, row, at, count in runs for i in range(count)]


TILES = {"tiles_X4": "*i64", "seats_B": "*i64", "slots_AC": "*i64", "sinks_N": "*fp32"}
PROMPTS = {
    **dict.fromkeys(("q_TNH", "kv_S2GH", "out_TNH"), "*bf16"),
    **TILES,
    **dict.fromkeys(("q_stride", "num_columns", "window", "first_position"), "i32"),
    "scale": "fp32",
    "value_scale": "fp32",
}
LAYER = {"NUM_KV_HEADS": 8, "PER_KV": 4, "HEAD_DIM": 128, "INNER": 128, "PDL": True}
REST = {"REST": 0, "REST_INNER": 0}
SEEN = {"HAS_WINDOW": False, "HAS_FIRST": False}
STATES = {"states_TNZ2": "*fp32", "values_TNZH": "*fp32"}
PLACES = {"positions_BW": "*i64", "roots_B": "*i64"}


def splits(
    height: int, unit: int, tails: int, tail_nodes: int = 4, stages: int = 2, is_whole: bool = False
) -> Job:
    numbers = "q_stride num_nodes num_columns num_tiles num_stripes num_shared num_units limit"
    return Job(
        "eyas.kernels.attention:attend_splits_kernel",
        {
            **dict.fromkeys(("q_TNH", "kv_S2GH", "out_TNH"), "*bf16"),
            "sinks_N": "*fp32",
            **STATES,
            **PLACES,
            **dict.fromkeys(("rows_BW", "seats_B", "slots_AC", "paths_BWP"), "*i64"),
            **dict.fromkeys((*numbers.split(), "window", "first_position"), "i32"),
            "scale": "fp32",
            "value_scale": "fp32",
        },
        {
            **LAYER,
            **REST,
            **SEEN,
            "HEIGHT": height,
            "TAIL_HEIGHT": 16,
            "KEYS": 128,
            "SPLIT": 128,
            "STAGES": stages,
            "UNIT": unit,
            "TAILS": tails,
            "TAIL_NODES": tail_nodes,
            "IS_WHOLE": is_whole,
            "HAS_SINKS": False,
            "window_slots": None,
        },
        num_warps=4 if height <= 32 else 8,
        num_stages=stages,
        aligned=("q_stride",),
    )


def prompts(height: int, stages: int) -> Job:
    constants = {"HEIGHT": height, "KEYS": 128, "SPLIT": 128, "GROUP": 4, "STAGES": stages}
    return Job(
        "eyas.kernels.attention_prefill:prompts_kernel",
        PROMPTS,
        {**LAYER, **REST, **SEEN, **constants, "HAS_SINKS": False, "window_slots": None},
        num_warps=8,
        num_stages=stages,
        aligned=("q_stride",),
    )


def test_kernels_of_a_row_that_all_heads_read_compile_for_hopper() -> None:
    jobs = [splits(16, 4, 2, 1, 1), prompts(16, 1), *drawn([], [splits(16, 1, 0, 1, 1)])]
    for each in compile_for_hopper(*map(of_shared_row, jobs)):
        assert each.shared < 100 * 1024 and each.num_spilled == 0, each


def of_shared_row(job: Job) -> Job:
    """The job for DeepSeek's latent attention: 128 heads in tiles of 16, rows of 512 + 64 numbers."""
    sizes = {"NUM_KV_HEADS": 8, "PER_KV": 16, "HEAD_DIM": 512, "INNER": 512, "KEYS": 32}
    constants = {**job.constants, **sizes, "REST": 64, "REST_INNER": 64}
    return replace(job, constants=constants, num_warps=8)


MERGING = Job(
    "eyas.kernels.attention_merge:merge_splits_kernel",
    {
        "out_TNH": "*bf16",
        **STATES,
        **PLACES,
        "nodes_T": "*i64",
        "sinks_N": "*fp32",
        **dict.fromkeys(("num_nodes", "num_units", "limit"), "i32"),
        **dict.fromkeys(("window", "first_position"), "i32"),
        "value_scale": "fp32",
    },
    {
        **LAYER,
        "HEADS": 4,
        "SPLIT": 128,
        "GROUP": 4,
        "UNIT": 1,
        "TAILS": 2,
        "HAS_WINDOW": False,
        "HAS_SINKS": False,
    },
)


def of_gpt_oss(job: Job) -> Job:
    """The job with gpt-oss's heads and sinks, and windows that have slots of their own."""
    shape = {"PER_KV": 8, "HEAD_DIM": 64, "INNER": 64, "HAS_WINDOW": True, "HAS_SINKS": True}
    heads = {"HEADS": 8} if "HEADS" in job.constants else {}
    constants = {**job.constants, **shape, **heads}
    if constants.pop("window_slots", job) is not None:
        return replace(job, constants=constants)
    signature = {**job.signature, "window_slots": "*i64"}
    return replace(job, signature=signature, constants=constants)


def test_the_kernels_compile_for_hopper() -> None:
    walking = Job(
        "eyas.kernels.paths:node_paths_kernel",
        {
            **PLACES,
            **dict.fromkeys(
                ("rows_BW", "parents_BW", "node_slots_BW", "nodes_T", "paths_BWP"), "*i64"
            ),
            "num_nodes": "i32",
            "num_rows": "i32",
        },
        {"WIDTH": 32, "IS_TREE": True, "PDL": True},
        num_warps=1,
    )
    # Trees have two blocks of keys at once, prompts three sums; one of them is looked at now and then.
    jobs = [
        (splits(16, 4, 0, is_whole=True), 0),
        (MERGING, 0),
        (walking, 0),
    ]
    more = [(splits(16, 1, 0), 0), (splits(32, 1, 2), 128), (splits(32, 4, 2), 128)]
    more += [(prompts(32, 1), 0)]
    high = [(splits(64, 4, 2), 0), (prompts(128, 2), 300)]
    jobs += drawn([], more)
    compiled = compile_for_hopper(*(job for job, _ in (*jobs, *high)))
    for each, (_, most) in zip(compiled, (*jobs, *high), strict=True):
        assert each.shared < 227 * 1024 and each.num_spilled <= most, each
    assert [each.uses_wgmma for each in compiled] == [False] * len(jobs) + [True] * len(high)


def test_the_kernels_compile_for_hopper_over_bytes() -> None:
    jobs = [splits(16, 1, 0), prompts(128, 2), of_shared_row(splits(16, 4, 2, 1, 1))]
    jobs += drawn([], [splits(16, 4, 0, is_whole=True), splits(32, 1, 2)])
    for each in compile_for_hopper(*map(over_bytes, jobs)):
        assert each.shared < 227 * 1024 and each.num_spilled <= 512, each


def over_bytes(job: Job) -> Job:
    """The job over a cache of FP8."""
    return replace(job, signature={**job.signature, "kv_S2GH": "*fp8e4nv"})


def test_the_kernels_compile_for_hopper_with_sinks() -> None:
    jobs = [splits(32, 1, 2), MERGING, prompts(128, 2)]
    jobs += drawn([], [splits(16, 1, 0), splits(16, 4, 0, is_whole=True)])
    for each in compile_for_hopper(*map(of_gpt_oss, jobs)):
        assert each.shared < 227 * 1024 and each.num_spilled == 0, each
