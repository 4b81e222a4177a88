"""The self-check says yes where rows agree, finds what does not, and keeps to the slots it is given."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from eyas.attention import open_attention
from eyas.cache import KVStore
from eyas.engine.startup import exactness, exactness_probe
from eyas.engine.startup.exactness import check_exactness
from eyas.engine.startup.exactness_probe import random_tree
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrderReport
from eyas.layers.row_probe import find_row_order
from eyas.runner.graphs import Stages, StepGraphs
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import ModelRunner, Output
from eyas_bench.shapes import dummy_decoder, find_shape

CPU = torch.device("cpu")
SPEC = replace(
    find_shape("tiny").model,
    num_layers=2,
    windows=(None, 150),
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_query_heads=2,
    num_kv_heads=1,
    head_dim=32,
    rope=replace(find_shape("tiny").model.rope, head_dim=32),
)


class EagerStages(Stages):
    """Runs stages as they are; buckets, held trees and static inputs are those of graphs."""

    def run(self, name: Hashable, key: Hashable, stage: Callable[[], Any]) -> Any:
        self.graphs.num_replays += 1
        return stage()


class EagerGraphs(StepGraphs):
    def new_stages(self, read: Stages | None = None) -> Stages:
        return EagerStages(self, read)


class Spoiled(ModelRunner):
    """Changes the last bit of something where `is_spoiled` says so."""

    is_spoiled: Callable[[ForwardRows], bool] = staticmethod(lambda rows: False)
    most_rows = 0
    most_slot = 0
    num_forwards = 0

    def forward(self, rows: ForwardRows, taps: tuple[int, ...] = ()) -> Output:
        output = super().forward(rows, taps)
        self.num_forwards += 1
        self.most_rows = max(self.most_rows, len(rows.tokens_T))
        self.most_slot = max(self.most_slot, int(rows.write_slots_T.max()))
        if self.is_spoiled(rows) and output.logits_RV is not None:
            spoiled_RV = output.logits_RV.clone()
            spoiled_RV[:, -1] = torch.nextafter(spoiled_RV[:, -1], torch.tensor(torch.inf))
            output.logits_RV = spoiled_RV
        return output


@pytest.fixture(autouse=True)
def _eager_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness_probe, "StepGraphs", EagerGraphs)


@cache
def order_of(dtype: torch.dtype) -> RowOrderReport:
    """Measured for the row counts of a device; fewer are among them."""
    return find_row_order(SPEC.linear_shapes, dtype, 1024, heads=(SPEC.head_shape,))


def make(
    num_slots: int = 3000, max_rows: int | None = 1024, dtype: torch.dtype = torch.float32
) -> tuple[Spoiled, RowOrderReport]:
    """max_rows: as on a device with kernels; None is a CPU."""
    report = order_of(dtype)
    assert report.exact
    order = report.order
    model = dummy_decoder(SPEC, dtype=dtype, device=CPU, max_model_len=2048, order=order)
    kv = KVStore(SPEC.stores, num_slots, dtype=dtype, device=CPU)
    if max_rows is not None:
        report = replace(report, order=replace(order, products=Products(True, CPU, max_rows)))
    return Spoiled(model, open_attention(kv)), report


@pytest.mark.parametrize("max_rows", [None, 64, 512, 1024])
def test_rows_agree_on_this_machine(dtype: torch.dtype, max_rows: int | None) -> None:
    runner, report = make(max_rows=max_rows, dtype=dtype)
    claim = check_exactness(runner, report, 2048, 3000, width=16)
    assert claim.exact, claim.reason
    assert runner.most_slot <= 3000
    if max_rows is not None:
        assert f"up to {max_rows} rows" in claim.reason
        assert runner.most_rows == max_rows
        assert "trees of 16" in claim.reason


def test_a_cpu_is_checked_with_few_rows() -> None:
    runner, report = make(max_rows=None)
    assert check_exactness(runner, report, 2048, 3000, width=128).exact
    assert runner.most_rows <= 72 and runner.num_forwards < 25


@pytest.mark.parametrize(
    ("num_slots", "max_rows", "max_length"),
    [
        *[(40, None, 12), (40, 16, 2048), (40, 80, 100), (64, None, 100), (64, 4096, 12)],
        *[(300, 16, 100), (300, 80, 12), (300, 4096, 2048)],
        *[(1000, None, 2048), (1000, 16, 12), (1000, 80, 2048), (1000, 4096, 100)],
    ],
)
def test_small_caches_and_small_steps_are_checked_as_far_as_they_go(
    num_slots: int, max_rows: int | None, max_length: int
) -> None:
    runner, report = make(num_slots, max_rows)
    claim = check_exactness(runner, report, max_length, num_slots, width=24)
    assert claim.exact, claim.reason
    assert runner.most_slot <= num_slots
    assert max_rows is None or runner.most_rows <= max_rows


def test_a_cache_without_room_is_no_proof() -> None:
    runner, report = make(20)
    claim = check_exactness(runner, report, 2048, 20)
    assert not claim.exact and "too small" in claim.reason


def test_products_that_depend_on_the_rows_are_not_tried_further() -> None:
    runner, report = make()
    claim = check_exactness(runner, replace(report, exact=False, reason="why"), 2048, 3000)
    assert claim == exactness.Exactness(False, "why")
    assert runner.num_forwards == 0


def is_tree(rows: ForwardRows) -> bool:
    return rows.layout.nodes is not None and rows.layout.nodes.parents_BW is not None


def is_nodes(rows: ForwardRows, num: int) -> bool:
    return rows.layout.nodes is not None and len(rows.tokens_T) == num


def is_mixed(rows: ForwardRows) -> bool:
    return bool(rows.layout.contexts) and rows.layout.nodes is not None


SPOILED = {
    "a single row": (lambda rows: len(rows.tokens_T) == 1, "a chunk of 1"),
    "a full step": (lambda rows: len(rows.tokens_T) == 1024, "1024 rows"),
    "small chunks": (lambda rows: len(rows.tokens_T) == 20, "a chunk of 20"),
    "wide batches": (lambda rows: len(rows.tokens_T) == 64, "a batch of 64"),
    "a single root": (lambda rows: is_nodes(rows, 1), "a single token"),
    "chains": (
        lambda rows: is_nodes(rows, 24) and not is_tree(rows), "chains 3 x 8"
    ),
    "trees": (is_tree, "trees"),
    "the widest trees": (
        lambda rows: is_tree(rows) and rows.layout.nodes.parents_BW.shape[1] == 16, "x 16"
    ),
    "chunks beside nodes": (is_mixed, "a chunk in a batch"),
    "a bucket that is filled up": (
        lambda rows: is_nodes(rows, 6) and rows.layout.nodes.slots_BW.shape[1] == 1, "a graph"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_a_last_bit_is_found_and_named(name: str) -> None:
    is_spoiled, says = SPOILED[name]
    runner, report = make()
    runner.is_spoiled = is_spoiled  # type: ignore[assignment]
    claim = check_exactness(runner, report, 2048, 3000, width=16)
    assert not claim.exact
    assert says in claim.reason and "differs" in claim.reason


def test_keys_that_are_stored_differently_are_found() -> None:
    """Another way to store a row shows in the rows that read it."""
    runner, report = make()
    layers = runner.backend.kv.layers  # type: ignore[attr-defined]

    def spoil(rows: ForwardRows) -> bool:
        if len(rows.tokens_T) == 100:  # one chunk of the second copy
            layers[0][rows.write_slots_T[0]] *= 1.01
        return False

    runner.is_spoiled = spoil  # type: ignore[assignment]
    claim = check_exactness(runner, report, 2048, 3000, width=16)
    assert not claim.exact and "a chunk of 200" in claim.reason


def test_random_trees_have_their_parents_first_and_a_path_of_two() -> None:
    import numpy as np

    draw = np.random.default_rng(1)
    for width in (2, 3, 8, 64):
        for _ in range(20):
            parents, path = random_tree(draw, width)
            assert parents[0] == -1 and all(0 <= p < i for i, p in enumerate(parents) if i)
            assert len(path) >= 2
            assert [parents[node] for node in path] == [-1, *path[:-1]]
