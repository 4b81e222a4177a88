"""Exchanges of two ranks on one GPU: each has a stream and an inbox of its own there."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from eyas.kernels.exchange import Inbox, exchange, num_channels, num_words
from eyas.runner.graphs import recorded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = (1, 3, 64, 100, 1000, 4096, 5 * 4096, 40_000)
"""Of which both ranks' programs are resident at the same time."""
LIMIT_NS = 20 * 10**9


def make_inboxes(device: torch.device) -> list[Inbox]:
    channels = num_channels(max(SIZES))
    words = [
        torch.zeros(num_words(channels, 2), dtype=torch.int64, device=device) for _ in range(2)
    ]
    addresses_N = torch.tensor([each.data_ptr() for each in words], device=device)
    return [
        Inbox(
            rank,
            2,
            words[rank],
            addresses_N,
            torch.zeros(channels, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, pin_memory=True),
        )
        for rank in range(2)
    ]


def numbers(size: int, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn((2, size), generator=generator, device=device) * 100


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_what_is_exchanged_has_the_bits_of_what_was_sent() -> None:
    """Sums and gathers of any size in any order, from graphs and without them, where either rank is
    late."""
    device, draw = torch.device("cuda"), random.Random(0)
    inboxes, streams = make_inboxes(device), [torch.cuda.Stream() for _ in range(2)]

    def run(rank: int, parts_N: torch.Tensor, adds: bool) -> torch.Tensor:
        return exchange(inboxes[rank], parts_N[rank], adds=adds, most_ns=LIMIT_NS, pdl=True)

    # A kernel cannot be loaded while another one waits on the device, so all are loaded before.
    for inbox in make_inboxes(device):
        for size, adds in product(SIZES, (False, True)):
            own = numbers(size, 0, device)[inbox.rank]
            exchange(inbox, own, adds=adds, most_ns=0, pdl=True)
            torch.cuda.synchronize()
    for stream in streams:  # nor memory be allocated
        with torch.cuda.stream(stream):
            torch.empty(1 << 26, dtype=torch.uint8, device=device)
    held = [numbers(draw.choice(SIZES), i, device) for i in range(24)]
    kinds = [draw.random() < 0.5 for _ in held]
    graphs = [
        recorded(
            lambda rank=rank: [run(rank, *each) for each in zip(held, kinds, strict=True)],
            torch.cuda.graph_pool_handle(),
        )
        for rank in range(2)
    ]
    for i in range(400):
        replays, adds = draw.random() < 0.3, draw.random() < 0.5
        parts_N = numbers(draw.choice(SIZES), i, device)
        torch.cuda.synchronize()
        found = []
        for rank, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(draw.choice((0, 1_000, 20_000, 100_000)))
                if replays:
                    graph, results = graphs[rank]
                    graph.replay()
                    found.append(results)
                else:
                    found.append([run(rank, parts_N, adds) for _ in range(3)])
        torch.cuda.synchronize()
        sent = zip(held, kinds, strict=True) if replays else [(parts_N, adds)] * 3
        for number, (sent_N, is_sum) in enumerate(sent):
            expected = sent_N[0] + sent_N[1] if is_sum else sent_N
            assert all(same(of_rank[number], expected) for of_rank in found), (i, number)
    assert not any(int(inbox.stop[0]) for inbox in inboxes)
