"""What ranks with rows of their own send to the ranks of the experts: rows, and no padding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from eyas.layers import exchanged_experts
from eyas.layers.exchanged_experts import ExchangedExperts
from eyas.parallel.group import Group, Meeting, meet
from eyas.parallel.shard import Shard

RANKS, EXPERTS, CHOSEN, SIZE = 2, 6, 3, 5
ROWS, RUN = (7, 2), (8, 4)
"""Rows of each rank, and rows that it runs, of which the last are padding."""


class Held:
    """Experts that multiply by their number, and note how many rows they get."""

    def __init__(self) -> None:
        self.num_rows: list[int] = []

    def __call__(
        self, x_TD: torch.Tensor, experts_TK: torch.Tensor, weights_TK: torch.Tensor
    ) -> torch.Tensor:
        self.num_rows.append(len(x_TD))
        return x_TD * (weights_TK * experts_TK).t().unsqueeze(2)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    place = str(tmp_path_factory.mktemp("ranks") / "store")
    with ThreadPoolExecutor(RANKS) as pool:
        coming = [
            pool.submit(meet, Meeting(rank, RANKS, place, 120), torch.device("cpu"))
            for rank in range(RANKS)
        ]
        return [each.result() for each in coming]


@pytest.mark.parametrize(("rank_rows", "at_once"), [(ROWS, 256), (ROWS, 3), ((0, 4), 256)])
def test_padding_is_neither_sent_nor_computed(
    groups: list[Group],
    rank_rows: tuple[int, int],
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchanged_experts, "EXCHANGED_ROWS", at_once)
    generator = torch.Generator().manual_seed(1)

    def run(rank: int) -> tuple[Held, torch.Tensor, torch.Tensor]:
        num_rows, num_run = rank_rows[rank], RUN[rank]
        x_TD = torch.rand(num_run, SIZE, generator=generator)
        experts_TK = torch.rand(num_run, EXPERTS, generator=generator).topk(CHOSEN).indices.int()
        weights_TK = torch.rand(num_run, CHOSEN, generator=generator)
        expected_KTD = Held()(x_TD, experts_TK, weights_TK)
        expected_KTD[:, num_rows:] = 0
        held, shard = Held(), Shard(rank, RANKS, by_sequence=True, group=groups[rank])
        exchanged = ExchangedExperts(held, EXPERTS, shard)
        return held, exchanged(x_TD, experts_TK, weights_TK, rank_rows), expected_KTD

    with ThreadPoolExecutor(RANKS) as pool:
        for held, found_KTD, expected_KTD in pool.map(run, range(RANKS)):
            assert torch.equal(found_KTD, expected_KTD)
            assert sum(held.num_rows) == sum(rank_rows)
