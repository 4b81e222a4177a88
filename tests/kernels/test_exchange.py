"""Exchanges through symmetric memory: one rank's launches, with what the others send put there by the
test."""

from __future__ import annotations

from itertools import count as counting

import pytest
import torch
import triton.language as tl

from eyas.kernels import exchange as kernel
from eyas.kernels.exchange import BLOCK, LATE, STOPPED, Inbox, exchange, num_channels, num_words
from eyas.ops.tree_sum import tree_sum
from tests.kernels.hopper import Job, compile_for_hopper

CHANNELS = num_channels(300)
LIMIT_NS = 10**11


class World:
    """Several ranks on one device, of which one exchanges. count: of exchanges that were before."""

    def __init__(self, size: int, rank: int, device: torch.device, count: int = 0) -> None:
        self.size, self.rank = size, rank
        length = num_words(CHANNELS, size)
        self.inboxes = [torch.zeros(length, dtype=torch.int64, device=device) for _ in range(size)]
        for inbox in self.inboxes:
            for before in (count - 1, count):  # what was sent before stays there
                self.halves(inbox)[:, before % 2] = before << 32
        stop = torch.zeros(1, dtype=torch.int32)
        self.inbox = Inbox(
            rank,
            size,
            self.inboxes[rank],
            torch.tensor([inbox.data_ptr() for inbox in self.inboxes], device=device),
            torch.full((CHANNELS,), count, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            stop.pin_memory() if device.type == "cuda" else stop,
        )

    def halves(self, inbox: torch.Tensor) -> torch.Tensor:
        """The words of an inbox: [channel, half, sender, number]."""
        return inbox.view(CHANNELS, 2, self.size, BLOCK)

    def exchange(self, parts_N: torch.Tensor, *, adds: bool) -> torch.Tensor:
        """Let the others send their parts, and exchange."""
        halves, counts = self.halves(self.inbox.words), self.inbox.counts_P.tolist()
        for sender in range(self.size):
            if sender != self.rank:
                for channel, numbers in enumerate(blocks(parts_N[sender])):
                    count = counts[channel] + 1
                    halves[channel, count % 2, sender] = words(numbers, count)
        return exchange(self.inbox, parts_N[self.rank], adds=adds, most_ns=LIMIT_NS)


def blocks(part: torch.Tensor) -> torch.Tensor:
    """The numbers of each channel, with padding."""
    bits = torch.zeros(num_channels(part.numel()) * BLOCK, dtype=torch.int32, device=part.device)
    bits[: part.numel()] = part.flatten().view(torch.int32)
    return bits.view(-1, BLOCK)


def words(bits: torch.Tensor, count: int) -> torch.Tensor:
    """What a rank sends: the bits of numbers below the count of the exchange."""
    return (bits.long() & 0xFFFFFFFF) | (count << 32)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("count", [0, 6, -2])
def test_parts_are_added_in_the_order_of_a_tree(
    device: torch.device, size: int, count: int
) -> None:
    """Also where the count starts again from zero: of 32 bits, -1 is the last one."""
    for rank in range(size):
        world = World(size, rank, device, count)
        for shape in ((3, 70), (1,), (2, 64), (300,)):
            parts_N = torch.randn(size, *shape, device=device) * 1000
            assert torch.equal(world.exchange(parts_N, adds=True), tree_sum.by_torch(parts_N))
            assert torch.equal(world.exchange(parts_N, adds=False), parts_N)
        assert not world.inbox.stop.item()


def test_every_rank_is_sent_the_part_and_padding(device: torch.device) -> None:
    world = World(4, 2, device, count=4)
    parts_N = torch.randn(4, 70, device=device)
    world.exchange(parts_N, adds=True)
    expected = words(blocks(parts_N[2]), count=5)
    for inbox in world.inboxes:
        sent = world.halves(inbox)[:, 5 % 2, 2]
        assert torch.equal(sent[: len(expected)], expected)
        assert (sent[len(expected) :] >> 32 == 3).all(), "other channels are not used"


def test_channels_count_their_own_exchanges(device: torch.device) -> None:
    world = World(2, 1, device)
    large, small = torch.randn(2, 300, device=device), torch.randn(2, 5, device=device)
    world.exchange(large, adds=True)
    for _ in range(4):
        assert torch.equal(world.exchange(small, adds=True), small[0] + small[1])
    assert world.inbox.counts_P.tolist() == [5] + [1] * (CHANNELS - 1)


def test_bits_of_any_number_are_gathered(device: torch.device) -> None:
    bits = torch.tensor([[0, -1, -(2**31), 2**31 - 1, 1], [5, -7, 0x7FC00001, -0x400000, 2]])
    parts_N = bits.to(torch.int32).to(device)
    assert torch.equal(World(2, 0, device).exchange(parts_N, adds=False), parts_N)


@pytest.mark.parametrize("asked", [True, False])
def test_a_wait_for_a_lost_rank_ends(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """By the host's word, or by the clock; later launches then end without waiting for the clock."""
    if device.type != "cuda":
        times = counting(10**6, 10**6)
        monkeypatch.setattr(kernel, "globaltimer", lambda: tl.full((), next(times), tl.int64))
        monkeypatch.setattr(kernel, "NUM_POLLS", 2)
    world = World(2, 0, device)
    if asked:
        world.inbox.stop[0] = STOPPED
    part = torch.randn(70, device=device)
    exchange(world.inbox, part, adds=True, most_ns=LIMIT_NS if asked else 10**7)
    exchange(world.inbox, part, adds=True, most_ns=LIMIT_NS)
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert world.inbox.stop.item() == (STOPPED if asked else LATE)
    assert world.inbox.over.item() == (STOPPED if asked else LATE)


def test_it_compiles_for_hopper_without_spilling() -> None:
    pointers = {
        "own_X": "*i32",
        "inboxes_N": "*i64",
        "inbox": "*i64",
        "counts_P": "*i32",
        "over": "*i32",
        "stop": "*i32",
    }
    numbers = {"size": "i32", "rank": "i32", "most_ns": "i64"}
    compiled = compile_for_hopper(
        *(
            Job(
                "eyas.kernels.exchange:exchange_kernel",
                {**pointers, "out": "*fp32" if adds else "*i32", **numbers},
                {
                    "NUM_RANKS": num_ranks,
                    "ADDS": adds,
                    "BLOCK": BLOCK,
                    "NUM_POLLS": kernel.NUM_POLLS,
                    "LATE": LATE,
                    "PDL": True,
                },
                num_warps=kernel.NUM_WARPS,
                aligned=("size",),
            )
            for num_ranks in (2, 8)
            for adds in (True, False)
        )
    )
    assert all(each.num_spilled == 0 for each in compiled)
    assert compiled[0].num_registers <= 32, "all programs of a launch may be resident"
