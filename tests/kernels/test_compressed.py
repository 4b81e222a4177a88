"""Compressed attention by kernels, in the interpreter: against torch, and bit for bit in any pass.

Legend: T rows, N query heads, H head dim, X numbers of a row, J index heads, I index width.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eyas.attention.base import AttentionBackend, AttentionLayout, ContextRun, NodeGrid
from eyas.attention.reference import ReferenceAttention
from eyas.attention.triton import TritonAttention
from eyas.attention.triton_compressed import entry_shapes
from eyas.cache.kv import KVStore
from eyas.cache.store import CompressedStore, LayerStore
from eyas.kernels import attention_entries, indexer
from eyas.layers.compute import Compute
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.ops.add_norm import new_weight
from eyas.ops.compress import Compression, Pooling, chosen_entries
from tests.kernels.test_attention_paths import interpreted, poisoned

__all__ = ["interpreted"]

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="these scenes live on the CPU"),
]
NUM_SLOTS = 240
NUM_HEADS, HEAD_DIM, NUM_INDEX_HEADS, INDEX_DIM = 3, 16, 4, 16
CPU = torch.device("cpu")
PLAIN = CompressedStore(NUM_HEADS, 1, HEAD_DIM, local_window=6, rate=16)
STORES = {
    "sparse": replace(PLAIN, rate=4, overlaps=True, index_dim=INDEX_DIM, num_chosen=5),
    "heavy": PLAIN,
    "window": LayerStore(NUM_HEADS, 1, HEAD_DIM, 6, value_dim=HEAD_DIM),
    "draft": LayerStore(NUM_HEADS, 1, HEAD_DIM, 6, value_dim=HEAD_DIM, first_position=1),
}


def rope_table(num_positions: int) -> RopeTable:
    spec = RopeSpec("default", 10000.0, 8, is_interleaved=True)
    return RopeTable(spec, num_positions, Compute(torch.float32, CPU))


class Rows:
    """What a layer computes for the rows of two texts, and what the backend makes of it."""

    def __init__(self, kind: str, backend: type[AttentionBackend]) -> None:
        self.store = STORES[kind]
        generator = torch.Generator().manual_seed(5)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.slots = torch.randperm(NUM_SLOTS, generator=generator).view(2, -1) + 1
        kv = KVStore([self.store], NUM_SLOTS, dtype=torch.float32, device=CPU)
        kv.layers[0][1:] = torch.nan  # what was never written must never be read
        self.kv = kv
        self.backend = backend(kv)  # type: ignore[call-arg]
        self.sinks_N = noise(NUM_HEADS)
        self.table = rope_table(200)
        self.noise, self.pooling = noise, {}
        self.num_inputs = HEAD_DIM
        if isinstance(self.store, CompressedStore):
            self.num_inputs = sum(self.store.widths[:5])
            for width in (HEAD_DIM, self.store.index_dim):
                if width:
                    bias = noise(self.store.rate, width * (1 + self.store.overlaps))
                    weight = new_weight(width, torch.float32, CPU)
                    weight *= 1.2
                    self.pooling[len(self.pooling)] = Pooling(bias, weight, 1e-6)
        self.content = [noise(2, 100, size) for size in (self.num_inputs, NUM_HEADS * HEAD_DIM)]
        index = NUM_INDEX_HEADS * (INDEX_DIM + 1)
        self.content.append(noise(2, 100, index).mul(2).round().div(2))  # scores that tie

    def run(
        self, texts: list[int], positions: list[int], slots: torch.Tensor, layout: AttentionLayout
    ) -> torch.Tensor:
        """The outputs of rows that stand at these positions of these texts."""
        inputs_TX, q_TX, index_TX = (content[texts, positions] for content in self.content)
        q_TNH = q_TX.unflatten(1, (NUM_HEADS, HEAD_DIM))
        with poisoned():
            plan = self.backend.plan(layout, slots)
            if not isinstance(self.store, CompressedStore):
                plan.destination(0).store_keys(inputs_TX.unsqueeze(1))
                return plan(0, q_TNH, self.sinks_N)
            angles = self.table.at(torch.tensor(positions))
            queries_TX, weights_TJ = index_TX.split(
                [NUM_INDEX_HEADS * INDEX_DIM, NUM_INDEX_HEADS], 1
            )
            compression = Compression(self.pooling[0], angles)
            if self.store.index_dim:
                compression = Compression(
                    self.pooling[0],
                    angles,
                    self.pooling[1],
                    queries_TX.unflatten(1, (NUM_INDEX_HEADS, INDEX_DIM)),
                    weights_TJ,
                )
            return plan.compress(0, inputs_TX, q_TNH, self.sinks_N, compression)

    def chunk(self, text: int, start: int, stop: int, padding: int = 0) -> torch.Tensor:
        run = ContextRun(0, 0, start, stop - start)
        slots = torch.cat([self.slots[text, start:stop], torch.zeros(padding, dtype=torch.int64)])
        layout = AttentionLayout(self.slots, torch.tensor([text]), stop - 1, contexts=(run,))
        positions = list(range(start, stop)) + [0] * padding
        return self.run([text] * len(positions), positions, slots, layout)

    def nodes(self, roots: list[int], parents: list[int] | None, width: int) -> torch.Tensor:
        """Trees of both texts, whose nodes have the content of their positions."""
        depths = list(range(width))
        if parents is not None:
            depths = []
            for parent in parents:
                depths.append(0 if parent < 0 else depths[parent] + 1)
        slots_BW = torch.stack([self.slots[b, root : root + width] for b, root in enumerate(roots)])
        grid = NodeGrid(
            torch.arange(2 * width).view(2, width),
            slots_BW,
            torch.tensor(roots),
            None if parents is None else torch.tensor([parents] * 2),
        )
        layout = AttentionLayout(self.slots, torch.arange(2), max(roots) + max(depths), nodes=grid)
        positions = [root + depth for root in roots for depth in depths]
        return self.run([0] * width + [1] * width, positions, slots_BW.flatten(), layout)


@pytest.mark.parametrize("kind", STORES)
def test_a_row_is_what_torch_computes_with_the_same_bits_in_any_pass(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "BLOCK_SCORES", 16)
    assert list(entry_shapes([STORES[kind]])) == [STORES[kind]], "these kernels attend"
    ours, other = Rows(kind, TritonAttention), Rows(kind, ReferenceAttention)
    whole = [ours.chunk(text, 0, 36) for text in range(2)]
    for text in range(2):
        torch.testing.assert_close(whole[text], other.chunk(text, 0, 36), rtol=0, atol=3e-6)
    again = Rows(kind, TritonAttention)
    pieces = [again.chunk(0, start, stop) for start, stop in ((0, 1), (1, 15), (15, 27))]
    assert torch.equal(torch.cat(pieces), whole[0][:27])
    again.chunk(1, 0, 22)
    with monkeypatch.context() as patch:
        patch.setattr(attention_entries, "MANY_PROGRAMS", 1)
        padded = again.chunk(1, 22, 25, padding=5)
    assert torch.equal(padded[:3], whole[1][22:25]) and not padded[3:].any()
    chain = again.nodes([27, 25], None, 6)
    assert torch.equal(chain, torch.cat([whole[0][27:33], whole[1][25:31]]))
    # Nodes 1, 3, 5 and 7 are one path, each with a sibling that completes groups of its own.
    parents = [-1, 0, 0, 1, 1, 3, 3, 5]
    tree = again.nodes([27, 25], parents, 8).unflatten(0, (2, 8))
    for text, start in ((0, 27), (1, 25)):
        assert torch.equal(tree[text, [0, 1, 3, 5, 7]], whole[text][start : start + 5])


@pytest.mark.parametrize("kind", ["sparse", "heavy"])
def test_groups_beyond_the_last_position_have_its_angles(kind: str) -> None:
    results = []
    for backend in (TritonAttention, ReferenceAttention):
        rows = Rows(kind, backend)
        for text in range(2):
            rows.chunk(text, 0, 33)
        rows.table = rope_table(33)
        results.append(rows.nodes([33, 33], None, 16))
    torch.testing.assert_close(*results, rtol=0, atol=3e-6)


@pytest.mark.parametrize("block", [8, 1024])
def test_of_equal_scores_the_lowest_entries_are_chosen(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "BLOCK_SCORES", block)
    num_entries, count, width = 21, 6, 16
    generator = torch.Generator().manual_seed(0)
    queries_TJI = torch.randint(-1, 2, (4, 3, width), generator=generator).float()
    weights_TJ = torch.randint(-1, 2, (4, 3), generator=generator).float()
    weights_TJ[3] = -0.0
    slots_SD = torch.randint(-1, 2, (101, 24), generator=generator).float()
    numbers = [21, 3, 8, 21]  # of a row's entries, each of 4 positions
    places_4T = torch.tensor([[4 * n - 1 + t % 3 for t, n in enumerate(numbers)]] * 4)
    places_4T[1], places_4T[2], places_4T[3] = 1 << 40, 0, 0
    slots_1C = torch.randperm(100, generator=generator)[None] + 1
    chosen_TK = torch.full((4, count), -1, dtype=torch.int32)
    scores_TE = torch.full((4, num_entries), torch.nan)
    indexer.choose_entries(
        queries_TJI, weights_TJ, places_4T, slots_1C, slots_1C, slots_SD, scores_TE, chosen_TK,
        key=8, rate=4,
    )  # fmt: skip
    keys_EI = slots_SD[slots_1C[0, 3::4][:num_entries], 8:]
    for row, number in enumerate(numbers):
        expected = torch.full((1, count), -1)
        if number > count:
            own = slice(row, row + 1)
            expected = chosen_entries(
                queries_TJI[own], weights_TJ[own], keys_EI[None, :number], count
            )
        assert torch.equal(chosen_TK[row], expected[0].int())
