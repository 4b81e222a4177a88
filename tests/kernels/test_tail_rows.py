"""The rows of tails: the kernel against the torch body."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eyas.cache.slots import NULL_SLOT
from eyas.ops.tail_rows import TailRows, tail_rows
from eyas.runner.batch import Batch
from tests.kernels.hopper import Job, compile_for_hopper
from tests.kernels.test_node_rows import assert_same, some_batch


def scene(
    device: torch.device, seed: int, num: int, longest: int, *, num_nobody: int, drafts: bool
) -> tuple[Batch, torch.Tensor, torch.Tensor | None]:
    """A batch, by seat how many rows are made, and which sequences draft."""
    draw = torch.Generator().manual_seed(seed)
    drafts_B = (torch.rand(num + num_nobody, generator=draw) < 0.5).to(device) if drafts else None
    if drafts_B is not None:
        drafts_B[num:] = True
    batch = some_batch(seed, num, 5, device, num_nobody=num_nobody)
    table = batch.table
    missing_A = torch.randint(-3, longest + 3, table.lengths_A.shape, generator=draw).to(device)
    made_A = (table.lengths_A - missing_A).clamp(min=1)
    made_A[table.padding_seat] = 0
    return batch, made_A, drafts_B


def arguments(
    batch: Batch, made_A: torch.Tensor, drafts_B: torch.Tensor | None, longest: int
) -> tuple[Any, ...]:
    return (made_A, drafts_B, batch.in_table, longest, NULL_SLOT)


def assert_same_tails(got: TailRows, want: TailRows) -> None:
    """Of the kernel and of torch, which gives no rows to what lies past a root."""
    shape = want.grid_BP.shape
    is_real_BP = want.grid_BP >= 0
    for name in ("tokens_T", "positions_T", "write_slots_T", "previous_slots_T"):
        assert_same(getattr(got, name).cpu().view(shape)[is_real_BP], getattr(want, name))
    assert not got.positions_T.cpu().view(shape)[~is_real_BP].any()
    assert (got.write_slots_T.cpu().view(shape)[~is_real_BP] == NULL_SLOT).all()
    assert_same(got.grid_BP, torch.arange(is_real_BP.numel()).view(shape))
    assert_same(want.grid_BP.view(-1)[got.root_rows_B.cpu()], want.root_rows_B)
    for name in ("slots_BP", "starts_B", "root_tokens_B", "sequence_B"):
        assert_same(getattr(got, name), getattr(want, name))


def tails_both_ways(
    device: torch.device,
    seed: int,
    num: int,
    longest: int,
    *,
    num_nobody: int = 2,
    drafts: bool = False,
) -> None:
    """Both bodies return the same rows, and leave the same in the table and in `made_A`."""
    made = [
        scene(place, seed, num, longest, num_nobody=num_nobody, drafts=drafts)
        for place in (device, torch.device("cpu"))
    ]
    got = tail_rows.by_kernel(*arguments(*made[0], longest))
    want = tail_rows.by_torch(*arguments(*made[1], longest))
    assert_same_tails(got, want)
    (batch, made_A, _), (same_batch, want_made_A, _) = made
    assert_same(made_A, want_made_A)
    assert_same(batch.table.slots_AC, same_batch.table.slots_AC)
    assert_same(batch.table.tokens_AC, same_batch.table.tokens_AC)


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize(("num", "longest"), [(1, 1), (1, 6), (4, 2), (5, 7), (3, 24), (2, 70)])
def test_tails_are_those_of_torch(
    device: torch.device, num: int, longest: int, drafts: bool
) -> None:
    for seed in range(5):
        nobody = 2 * (seed % 2)
        tails_both_ways(device, seed, num, longest, num_nobody=nobody, drafts=drafts)


def test_a_batch_of_nobody(device: torch.device) -> None:
    tails_both_ways(device, 1, 0, 6, num_nobody=3)
    tails_both_ways(device, 1, 0, 6, num_nobody=0)


@pytest.mark.gpu
def test_tails_are_made_in_a_graph(device: torch.device) -> None:
    made = [
        scene(place, 3, 6, 7, num_nobody=2, drafts=False) for place in (device, torch.device("cpu"))
    ]
    given, same = (arguments(*each, 7) for each in made)
    tail_rows.by_kernel(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tail_rows.by_kernel(*given)
    for batch, made_A, _ in made:
        made_A.copy_((batch.table.lengths_A - 4).clamp(min=1))
        batch.roots_B.copy_((batch.roots_B - 1).clamp(min=0))
    batch, same_batch = made[0][0], made[1][0]
    batch.table.slots_AC.copy_(same_batch.table.slots_AC)
    for poisoned in (got.tokens_T, got.positions_T, got.write_slots_T):
        poisoned.fill_(-9)
    graph.replay()
    assert_same_tails(got, tail_rows.by_torch(*same))
    assert_same(batch.table.slots_AC, same_batch.table.slots_AC)
    assert_same(made[0][1], made[1][1])


def test_it_compiles_for_hopper() -> None:
    pointers = ("seats", "roots", "made", "drafts", "node_slots", "table_tokens", "table_slots")
    numbers = ("longest", "padded_rows", "padded_sequences", "max_position", "null_slot")
    strides = ("node_slots_stride", "table_tokens_stride", "table_slots_stride")
    signature = dict.fromkeys((*pointers, "numbers", "of_sequences"), "*i64")
    signature |= dict.fromkeys((*numbers, *strides), "i32")
    jobs = [
        Job(
            "eyas.kernels.tail_rows:tail_rows_kernel",
            signature | ({"drafts": "*i1"} if has_drafts else {}),
            {"HAS_DRAFTS": has_drafts, "BLOCK_P": block, "PDL": True},
            num_warps=1,
        )
        for has_drafts in (True, False)
        for block in (1, 32, 512)
    ]
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 8 * 1024, compiled
