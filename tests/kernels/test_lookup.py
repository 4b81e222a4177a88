"""Prompt lookup: the kernels against the torch body, as the drafter calls them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from eyas.draft import NgramDrafter
from eyas.draft_tree import DraftTree
from eyas.kernels.lookup import propose
from eyas.ops.lookup import lookup
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper

GPU = pytest.mark.gpu


@dataclass
class Table:
    """As much of a sequence table as the drafter reads."""

    tokens_AC: torch.Tensor
    device: torch.device


@dataclass
class Texts:
    """As much of a batch as the drafter reads."""

    table: Table
    seats_B: torch.Tensor
    roots_B: torch.Tensor
    max_length: int
    width: int
    rooted: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rooted = self.seats_B.tolist()

    def on(self, device: torch.device) -> Texts:
        table = Table(self.table.tokens_AC.to(device), device)
        seats_B, roots_B = self.seats_B.to(device), self.roots_B.to(device)
        return Texts(table, seats_B, roots_B, self.max_length, self.width)


def random_texts(
    seed: int, roots: list[int], num_columns: int, max_length: int, vocab: int, width: int
) -> Texts:
    draw = torch.Generator().manual_seed(seed)
    num = len(roots)
    tokens = torch.randint(0, vocab, (num + 2, num_columns), generator=draw)
    seats = torch.randperm(num + 2, generator=draw)[:num]
    table = Table(tokens, torch.device("cpu"))
    return Texts(table, seats, torch.tensor(roots, dtype=torch.int64), max_length, width)


def drafted(drafter: NgramDrafter, texts: Texts) -> DraftTree:
    return drafter.propose(texts, drafter.shape.within(texts.width))  # pyrefly: ignore


LONG = [131071, 100000, 5, 4096, 65536, 0, 131071, 4095]
CASES = [
    ([0, 1, 2, 60, 61, 62], 80, 63, 2, 5),
    ([0, 0], 80, 63, 3, 1),
    ([7, 2999, 1023, 1024, 1025, 2047], 3010, 3000, 3, 2),
    ([2000, 40], 2100, 2001, 200, 8),
    pytest.param([8000], 9000, 8192, 20, 4, marks=GPU),
    pytest.param([*LONG], 131080, 131072, 3, 9, marks=GPU),
    pytest.param([*LONG], 131080, 131072, 500, 9, marks=GPU),
    pytest.param([31999] * 64, 32010, 32000, 12, 5, marks=GPU),
]


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 5), (2, 5), (4, 4)])
@pytest.mark.parametrize(("roots", "num_columns", "max_length", "vocab", "width"), CASES)
def test_it_proposes_what_torch_finds(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    roots: list[int],
    num_columns: int,
    max_length: int,
    vocab: int,
    width: int,
    least: int,
    most: int,
) -> None:
    drafter = NgramDrafter(8, min_match=least, max_match=most)
    texts = random_texts(least + most, roots, num_columns, max_length, vocab, width)
    want = drafted(drafter, texts)
    take_kernels(monkeypatch, lookup)
    got = drafted(drafter, texts.on(device))
    wide = min(width, 9)
    assert got.is_chain and got.tokens_BW.shape == (len(roots), wide)
    assert got.parents_BW.tolist() == [list(range(-1, wide - 1))] * len(roots)
    assert got.sizes_B.tolist() == want.sizes_B.tolist()
    assert got.tokens_BW[:, : want.width].tolist() == want.tokens_BW.tolist()


def test_a_text_that_repeats_goes_on_repeating(device: torch.device) -> None:
    text = torch.tensor([[5, 1, 2, 3, 1, 2, 3, 1, 2, 77, 77, 77]], device=device)
    tokens, _, sizes = propose(text, text[:, 0] * 0, text[:, 0] * 0 + 8, 12, 8, 2, 5)
    assert tokens.tolist() == [[2, 3, 1, 2, 3, 1, 2, 3]] and sizes.tolist() == [8]


def test_nobody_asks(device: torch.device) -> None:
    nobody = torch.zeros(0, dtype=torch.int64, device=device)
    tokens, parents, sizes = propose(
        torch.zeros(3, 9, dtype=torch.int64, device=device), nobody, nobody, 9, 4, 2, 5
    )
    assert tokens.shape == parents.shape == (0, 4) and sizes.shape == (0,)


@pytest.mark.gpu
def test_looking_up_runs_in_a_graph(device: torch.device) -> None:
    texts = random_texts(1, [30, 500, 900], 1100, 1000, 3, 6).on(device)
    drafter = NgramDrafter(5)
    drafted(drafter, texts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tree = drafted(drafter, texts)
    texts.table.tokens_AC.copy_(random_texts(2, [30, 500, 900], 1100, 1000, 3, 6).table.tokens_AC)
    texts.roots_B.add_(3)
    tree.tokens_BW.fill_(-1)
    graph.replay()
    want = drafted(drafter, texts.on(torch.device("cpu")))
    assert tree.tokens_BW.tolist() == want.tokens_BW.tolist()
    assert tree.sizes_B.tolist() == want.sizes_B.tolist()


def test_it_compiles_for_hopper() -> None:
    texts = {"history": "*i64", "seats": "*i64", "roots": "*i64", "keys": "*i64"}
    numbers = {"stride": "i32", "num_columns": "i32", "num_chunks": "i32"}
    jobs = [
        Job(
            "eyas.kernels.lookup:find",
            texts | numbers,
            {"MAX_MATCH": most, "BLOCK": 1024, "PDL": True},
        )
        for most in (1, 5)
    ]
    outputs = {"tokens": "*i64", "parents": "*i64", "sizes": "*i64"}
    settings = {"min_match": "i32", "width": "i32"}
    constants = {"CHUNKS_PADDED": 32, "WIDTH_PADDED": 16, "PDL": True}
    jobs.append(
        Job(
            "eyas.kernels.lookup:follow",
            texts | outputs | numbers | settings,
            constants,
            num_warps=1,
        )
    )
    for name in ("num_chunks", "min_match"):
        numbers.pop(name, None)
        settings.pop(name, None)
    constants = constants | {"num_chunks": 1, "min_match": 1, "CHUNKS_PADDED": 1, "PDL": False}
    jobs.append(
        Job(
            "eyas.kernels.lookup:follow",
            texts | outputs | numbers | settings,
            constants,
            num_warps=1,
        )
    )
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 64 * 1024, compiled
