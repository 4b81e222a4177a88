"""The rows of tails by one kernel, against the torch function of draft/catch_up.py."""

from __future__ import annotations

import pytest
import torch

from eyas.draft import catch_up
from eyas.draft.catch_up import CatchUpRows, RowTracker, tail_rows
from tests.kernels.hopper import Job, compile_for_hopper
from tests.kernels.test_rows import assert_same, assert_same_layouts, some_batch


@pytest.fixture(autouse=True)
def all_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fills up a tail is a row too, as on a device."""

    def ragged_rows(real_BP: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.arange(real_BP.numel(), device=real_BP.device).view(real_BP.shape), None

    monkeypatch.setattr(catch_up, "ragged_rows", ragged_rows)


def tails_both_ways(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    seed: int,
    num: int,
    longest: int,
    *,
    reads_features: bool = True,
    num_nobody: int = 2,
    drafts: bool = False,
) -> None:
    """Both say the same, and leave the same in the table and the book."""
    draw = torch.Generator().manual_seed(seed)
    said: list[tuple[CatchUpRows, torch.Tensor]] = []
    missing = torch.randint(-3, longest + 3, (num + 4,), generator=draw)
    drafts_B = (torch.rand(num + num_nobody, generator=draw) < 0.5) if drafts else None
    if drafts_B is not None:
        drafts_B[num:] = True
    for place in (device, torch.device("cpu")):
        batch = some_batch(seed, num, 5, place, num_nobody=num_nobody)
        tracker = RowTracker(int(reads_features), reads_features, 100, 64)
        made_A = tracker.next_rows(batch.table)
        made_A.copy_((batch.table.lengths_A - missing.to(place)).clamp(min=int(reads_features)))
        made_A[-1] = 0
        with monkeypatch.context() as patch:
            if not said:
                patch.setattr(catch_up, "usable", lambda device: True)
            held_B = None if drafts_B is None else drafts_B.to(place)
            said.append((tail_rows(tracker, batch, longest, held_B), made_A))
            if len(said) == 1:
                tails = said[0][0]
                assert_same(tails.sequence_B, torch.arange(num + num_nobody))
                tokens_B = batch.table.tokens_AC[batch.seats_B, batch.roots_B]
                assert_same(tails.root_tokens_B, tokens_B.cpu())
    (got, got_made), (want, want_made) = said
    assert_same(got_made, want_made)
    assert_same(got.previous_slots_T, want.previous_slots_T)
    assert_same(got.root_rows_B, want.root_rows_B)
    for name in ("tokens_T", "positions_T", "write_slots_T", "logits_rows_R"):
        assert_same(getattr(got.rows, name), getattr(want.rows, name))
    assert_same_layouts(got.rows.layout, want.rows.layout)
    assert got.rows.num_leading == want.rows.num_leading


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("reads_features", [False, True])
@pytest.mark.parametrize(("num", "longest"), [(1, 1), (1, 6), (4, 2), (5, 7), (3, 24), (2, 70)])
def test_tails_are_those_of_torch(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    num: int,
    longest: int,
    reads_features: bool,
    drafts: bool,
) -> None:
    for seed in range(5):
        tails_both_ways(
            monkeypatch,
            device,
            seed,
            num,
            longest,
            reads_features=reads_features,
            num_nobody=2 * (seed % 2),
            drafts=drafts,
        )


def test_a_batch_of_nobody(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    tails_both_ways(monkeypatch, device, 1, 0, 6, num_nobody=3)
    tails_both_ways(monkeypatch, device, 1, 0, 6, num_nobody=0)


@pytest.mark.gpu
def test_tails_are_made_in_a_graph(device: torch.device) -> None:
    books = [RowTracker(1, True, 100, 64) for _ in range(2)]
    batches = [some_batch(3, 6, 5, place, num_nobody=2) for place in (device, torch.device("cpu"))]
    tail_rows(books[0], batches[0], 7, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tail_rows(books[0], batches[0], 7, None)
    for tracker, batch in zip(books, batches, strict=True):
        tracker.next_rows(batch.table).copy_((batch.table.lengths_A - 4).clamp(min=1))
        batch.roots_B.copy_((batch.roots_B - 1).clamp(min=0))
    batches[0].table.slots_AC.copy_(batches[1].table.slots_AC)
    for poisoned in (got.rows.tokens_T, got.rows.positions_T, got.rows.write_slots_T):
        poisoned.fill_(-9)
    graph.replay()
    want = tail_rows(books[1], batches[1], 7, None)
    assert_same(got.previous_slots_T, want.previous_slots_T)
    for name in ("tokens_T", "positions_T", "write_slots_T", "logits_rows_R"):
        assert_same(getattr(got.rows, name), getattr(want.rows, name))
    assert_same(batches[0].table.slots_AC, batches[1].table.slots_AC)
    assert_same(books[0].next_rows(batches[0].table), books[1].next_rows(batches[1].table))


def test_it_compiles_for_hopper() -> None:
    pointers = ("seats", "roots", "made", "drafts", "node_slots", "table_tokens", "table_slots")
    numbers = ("longest", "padded_rows", "padded_sequences", "max_position", "null_slot")
    strides = ("node_slots_stride", "table_tokens_stride", "table_slots_stride")
    signature = dict.fromkeys((*pointers, "numbers", "of_sequences"), "*i64")
    signature |= dict.fromkeys((*numbers, *strides), "i32")
    jobs = [
        Job(
            "eyas.kernels.tails:tail_rows_kernel",
            signature | ({"drafts": "*i1"} if has_drafts else {}),
            {"HAS_DRAFTS": has_drafts, "BLOCK_P": block, "PDL": True},
            num_warps=1,
        )
        for has_drafts in (True, False)
        for block in (1, 32, 512)
    ]
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 8 * 1024, compiled
