"""The rows of a step's nodes: the kernel against the torch body, as steps are packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eyas.attention.base import AttentionLayout
from eyas.core import SamplingParams
from eyas.draft.base import chain
from eyas.draft_tree import DraftTree
from eyas.ops.node_rows import node_rows
from eyas.ops.table import TableSequences
from eyas.runner.batch import Batch, PlannedBatch, Span
from eyas.runner.rows import PackedRows, pack
from eyas.runner.table import SequenceTable
from eyas.sampling.params import BatchParams, SequenceParams
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper

MAX_LENGTH = 90
VOCAB = 50


def some_table(seed: int, num_seats: int, max_width: int, device: torch.device) -> SequenceTable:
    """Sequences of all lengths, up to the longest that there may be."""
    draw = torch.Generator().manual_seed(seed)
    table = SequenceTable(num_seats, MAX_LENGTH, max_width, device)
    shape = table.tokens_AC.shape
    table.tokens_AC.copy_(torch.randint(0, VOCAB, shape, generator=draw))
    table.slots_AC.copy_(torch.randint(1, 9999, shape, generator=draw))
    lengths = torch.randint(1, MAX_LENGTH + 1, (len(table.lengths_A),), generator=draw)
    lengths[0], lengths[num_seats - 1], lengths[num_seats:] = 1, MAX_LENGTH, 1
    table.lengths_A.copy_(lengths)
    return table


def some_batch(
    seed: int,
    num: int,
    width: int,
    device: torch.device,
    *,
    num_nobody: int = 0,
    contexts: bool = False,
    **params: float,
) -> Batch:
    """`num` sequences in seats of any order, then rows that are nobody's."""
    draw = np.random.default_rng(seed)
    table = some_table(seed, num + 3, width, device)
    seats = draw.permutation(num + 3)
    spans = []
    for seat in seats[:num]:
        slots = draw.integers(1, 9999, width)
        root = int(table.lengths_A[seat]) - 1
        spans.append(Span(int(seat), 0, 0, slots[:0], slots, root_low=root, root_high=root))
    nothing = np.zeros(width, dtype=np.int64)
    for _ in range(num_nobody):
        spans.append(Span(table.padding_seat, 0, 0, nothing[:0], nothing, root_low=0, root_high=0))
    if contexts:
        for seat, wants in zip(seats[num:], (False, True), strict=False):
            chunk = Span(int(seat), 5, 7, draw.integers(1, 9999, 7), None, wants)
            spans.insert(int(draw.integers(0, len(spans) + 1)), chunk)
    source = SequenceParams(SamplingParams(**params), 7, 0, 3, frozenset())  # pyrefly: ignore
    sources = BatchParams([source] * (num + num_nobody), VOCAB, device)
    return PlannedBatch(table, spans, sources, width, MAX_LENGTH + width).begin()


def some_tree(
    seed: int, num: int, width: int, device: torch.device, *, is_chain: bool
) -> DraftTree:
    """Parents before their children, deep and flat; padding hangs below the root. Views of wider
    grids, as a drafter may give them. All nodes count, so padding has rows too, as on a device."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (num, width + 3), generator=draw)[:, 1 : width + 1]
    parents = torch.full((num, width + 5), -1)
    sizes = torch.randint(1, width + 1, (num,), generator=draw)
    for w in range(1, width):
        reach = 1 + int(torch.randint(0, 9, (1,), generator=draw))
        above = w - 1 - torch.randint(0, reach, (num,), generator=draw)
        parents[:, w] = torch.where(w < sizes, above.clamp(min=0), 0)
    parents = parents[:, :width]
    if is_chain:
        parents = torch.arange(-1, width - 1).expand(num, -1)
    wide = torch.zeros((num, width + 4), dtype=torch.int64, device=device)
    wide[:, 2 : width + 2] = tokens.to(device)
    whole = torch.full_like(sizes, width)
    return DraftTree(wide[:, 2 : width + 2], parents.to(device), whole.to(device), is_chain)


def assert_same(got: torch.Tensor | None, want: torch.Tensor | None) -> None:
    if want is None or got is None:
        assert got is want
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.cpu(), want)


def assert_same_layouts(got: AttentionLayout, want: AttentionLayout) -> None:
    assert_same(got.seats_B, want.seats_B)
    assert_same(got.slots_AC, want.slots_AC)
    assert got.contexts == want.contexts and got.max_position == want.max_position
    assert (got.nodes is None) == (want.nodes is None)
    for name in ("rows_BW", "slots_BW", "roots_B", "parents_BW") if want.nodes else ():
        assert_same(getattr(got.nodes, name), getattr(want.nodes, name))


def assert_same_rows(got: PackedRows, want: PackedRows) -> None:
    for name in ("tokens_T", "positions_T", "write_slots_T", "logits_rows_R", "node_R"):
        assert_same(getattr(got, name), getattr(want, name))
    for name in (
        "sequence_R",
        "position_R",
        "tokens_RD",
        "is_ancestor_RD",
        "history_BL",
        "length_B",
    ):
        assert_same(getattr(got.sampling, name), getattr(want.sampling, name))
    assert_same_layouts(got.layout, want.layout)
    assert (got.num_leading, got.num_node_rows) == (want.num_leading, want.num_node_rows)
    assert [count for _, count in got.context_runs] == [count for _, count in want.context_runs]


def packed_both_ways(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    seed: int,
    sizes: tuple[int, int, int],
    *,
    is_chain: bool,
    contexts: bool = False,
    **params: float,
) -> tuple[PackedRows, PackedRows]:
    num, width, of_batch = sizes
    num_nobody = 2 if num > 2 else 0
    both = []
    for place in (device, torch.device("cpu")):
        batch = some_batch(
            seed, num, of_batch, place, num_nobody=num_nobody, contexts=contexts, **params
        )
        tree = some_tree(seed, num + num_nobody, width, place, is_chain=is_chain)
        with monkeypatch.context() as patch:
            if not both:
                take_kernels(patch, node_rows)
            both.append(pack(batch, tree))
    return both[0], both[1]


SIZES = [(1, 1, 1), (1, 6, 6), (3, 4, 7), (5, 33, 33), (2, 160, 161), (4, 1, 6)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_chain", [True, False])
def test_rows_are_those_of_torch(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, int, int],
    is_chain: bool,
) -> None:
    for seed in range(4):
        got, want = packed_both_ways(monkeypatch, device, seed, sizes, is_chain=is_chain)
        assert_same_rows(got, want)
        assert got.tokens_T.is_contiguous() and got.write_slots_T.data_ptr() % 16 == 0


@pytest.mark.parametrize("is_chain", [True, False])
def test_prompt_chunks_follow_the_nodes(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, is_chain: bool
) -> None:
    for sizes in ((3, 5, 6), (0, 4, 4)):
        got, want = packed_both_ways(
            monkeypatch, device, 3, sizes, is_chain=is_chain, contexts=True
        )
        assert_same_rows(got, want)


@pytest.mark.parametrize("is_chain", [True, False])
def test_penalties_find_their_history(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, is_chain: bool
) -> None:
    params = {"repetition_penalty": 1.2}
    got, want = packed_both_ways(
        monkeypatch, device, 5, (3, 5, 5), is_chain=is_chain, contexts=False, **params
    )
    assert got.sampling.tokens_RD is not None and len(got.sampling.length_B) == 5
    assert_same_rows(got, want)


def test_a_ring_of_parents_ends(device: torch.device) -> None:
    """No drafter may say so, but a device must not hang."""
    two = torch.zeros((1, 2), dtype=torch.int64, device=device)
    parents = torch.tensor([[-1, 1]], device=device)
    seat = torch.zeros(1, dtype=torch.int64, device=device)
    tree = DraftTree(two, parents, seat + 2, is_chain=False)
    sequences = TableSequences(two, two.clone(), seat, seat + 5, two, 99)
    made = node_rows.by_kernel(tree, sequences)
    assert made.rows_R.tolist() == [0, 1] and int(made.position_R[0]) == 5


def test_positions_stop_at_the_last_of_the_table(device: torch.device) -> None:
    slots = torch.zeros((1, 40), dtype=torch.int64, device=device)
    nodes = torch.arange(4, device=device).view(1, 4)
    seat = torch.zeros(1, dtype=torch.int64, device=device)
    sequences = TableSequences(slots.clone(), slots, seat, seat + 18, nodes + 70, 19)
    made = node_rows.by_kernel(chain(nodes, seat + 4), sequences)
    assert made.model_position_R.tolist() == [18, 19, 19, 19]
    assert made.position_R.tolist() == [18, 19, 20, 21]
    assert slots[0].nonzero().flatten().tolist() == [18, 19, 20, 21]


@pytest.mark.gpu
@pytest.mark.parametrize("is_chain", [True, False])
def test_packing_runs_in_a_graph(device: torch.device, is_chain: bool) -> None:
    def scene(place: torch.device) -> tuple[Batch, DraftTree]:
        batch = some_batch(1, 6, 33, place, num_nobody=2)
        return batch, some_tree(1, 8, 33, place, is_chain=is_chain)

    batch, tree = scene(device)
    pack(batch, tree)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = pack(batch, tree)
    same_batch, same_tree = scene(torch.device("cpu"))
    fresh = some_tree(2, 8, 33, torch.device("cpu"), is_chain=is_chain)
    for each_batch, each_tree in ((batch, tree), (same_batch, same_tree)):
        each_batch.roots_B.copy_((each_batch.roots_B - 3).clamp(min=0))
        each_tree.tokens_BW.copy_(fresh.tokens_BW)
        if not is_chain:
            each_tree.parents_BW.copy_(fresh.parents_BW)
    for poisoned in (rows.tokens_T, rows.positions_T, rows.write_slots_T, rows.node_R):
        poisoned.fill_(-9)
    batch.table.slots_AC.copy_(same_batch.table.slots_AC)
    graph.replay()
    assert_same_rows(rows, pack(same_batch, same_tree))


def test_it_compiles_for_hopper() -> None:
    pointers = ("seats", "roots", "node_slots", "tokens", "parents", "table_slots", "numbers")
    numbers = ("width", "padded_rows", "max_position")
    strides = ("node_slots_stride", "tokens_stride", "parents_stride", "table_slots_stride")
    signature = dict.fromkeys(pointers, "*i64") | dict.fromkeys((*numbers, *strides), "i32")
    jobs = [
        Job(
            "eyas.kernels.node_rows:node_rows_kernel",
            signature,
            {"IS_CHAIN": is_chain, "BLOCK_W": block, "PDL": True},
            num_warps=1 if block <= 64 else 4,
        )
        for is_chain in (True, False)
        for block in (1, 8, 64, 256)
    ]
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 8 * 1024, compiled
