"""When exchanges go through symmetric memory: on all ranks or on none, up to a size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from eyas.parallel import symmetric
from eyas.parallel.group import Group
from eyas.parallel.lost import GroupLost
from eyas.parallel.shard import Shard
from eyas.parallel.symmetric import (
    MOST_BYTES,
    CountedStore,
    Symmetric,
    Unavailable,
    open_symmetric,
)

GPU = torch.device("cuda:0")
WAIT_SECONDS = 5.0


class Both:
    """A rank of two, whose other rank can do as much as `other` says at each step."""

    rank, size = 0, 2

    def __init__(self, *other: bool) -> None:
        self._other = iter(other)
        self.num_asked = 0

    def least(self, value: int) -> int:
        self.num_asked += 1
        return min(value, next(self._other))


def opened(group: Both, *, is_local: bool = True) -> Symmetric | None:
    return open_symmetric(
        group,  # pyrefly: ignore[bad-argument-type]
        dist.HashStore(),
        GPU,
        is_local=is_local,
        most_seconds=WAIT_SECONDS,
    )


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, logger="eyas")
    return lambda: caplog.text


def test_ranks_of_several_machines_use_nccl(told: Callable[[], str]) -> None:
    group = Both(False)
    assert opened(group, is_local=False) is None
    assert group.num_asked == 1
    assert "by NCCL: the ranks were not started together on one machine" in told()


def test_a_gpu_that_cannot_reach_another_one_is_named(
    told: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    assert opened(Both(True)) is None
    assert "cuda:0 cannot access the memory of cuda:1" in told()


def test_a_rank_does_without_if_another_one_cannot(
    told: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops at the step at which the other one fails, so that none waits for the other."""
    monkeypatch.setattr(symmetric, "_check", lambda *_, **__: None)
    group = Both(False)
    assert opened(group) is None
    assert group.num_asked == 1
    assert "another rank cannot use symmetric memory" in told()


def test_a_step_that_fails_here_fails_everywhere() -> None:
    def fails() -> None:
        raise RuntimeError("first line\nsecond line")

    with pytest.raises(Unavailable, match=r"^first line$"):
        symmetric._together(Both(True), fails)  # pyrefly: ignore[bad-argument-type]
    assert symmetric._together(Both(True), lambda: 3) == 3  # pyrefly: ignore[bad-argument-type]


def test_keys_count_the_exchanges_of_a_group() -> None:
    """Rank 0 has been in another group before, which torch's keys count, too."""
    common = dist.HashStore()
    counted = [CountedStore(common) for _ in range(2)]  # torch alone does not keep them
    of_ranks = [dist.PrefixStore("torch", store) for store in counted]
    numbers = (7, 0)
    for exchange in range(3):
        for rank, store in enumerate(of_ranks):
            store.set(f"memory/{numbers[rank] + exchange}/{rank}", f"{exchange} of {rank}")
        for rank, store in enumerate(of_ranks):
            keys = [f"memory/{numbers[rank] + exchange}/{other}" for other in range(2)]
            assert store.multi_get(keys) == [b"%d of 0" % exchange, b"%d of 1" % exchange]


class Memory:
    """Symmetric memory, and NCCL, which say what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.reason: str | None = None

    def carries(self, x: torch.Tensor) -> bool:
        return x.numel() <= 4

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self.asked.append("all_gather")
        return torch.stack([x, x + 1])

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        self.asked.append("summed")
        return 2 * x + 1

    def stop(self) -> None:
        self.asked.append("stop")

    def _allgather_base(self, output: torch.Tensor, x: torch.Tensor, _: Any) -> None:
        self.asked.append("nccl")
        output.copy_(torch.cat([x, x + 1]))

    def gather(self, outputs: list[list[torch.Tensor]], *_: Any) -> None:
        self.asked.append("nccl")

    def abort(self) -> None:
        self.asked.append("abort")


def group_with(memory: Memory, rank: int = 0) -> Group:
    group = Group(rank, 2, memory, memory, is_on_gpu=True)  # pyrefly: ignore[bad-argument-type]
    group.symmetric = memory  # pyrefly: ignore[bad-assignment]
    return group


def test_small_tensors_go_through_symmetric_memory_and_large_ones_by_nccl() -> None:
    memory = Memory()
    shard = Shard(0, 2, group=group_with(memory))
    small, large = torch.arange(4.0), torch.arange(5.0)
    assert torch.equal(shard.summed(small), 2 * small + 1)
    assert torch.equal(shard.summed(large), 2 * large + 1)
    assert torch.equal(shard.gathered(small), torch.stack([small, small + 1]))
    assert torch.equal(shard.gathered(large), torch.stack([large, large + 1]))
    assert memory.asked == ["summed", "nccl", "all_gather", "nccl"]


def test_all_ranks_gather_what_only_the_first_one_gets() -> None:
    """Otherwise a rank would send again before the first one has read."""
    for rank in range(2):
        memory = Memory()
        found = group_with(memory, rank).gather(torch.zeros(3))
        assert (found is None) == bool(rank)
        assert memory.asked == ["all_gather"]


def test_numbers_of_another_type_are_gathered_and_then_added() -> None:
    memory = Memory()
    x = torch.arange(4, dtype=torch.float64)
    assert torch.equal(group_with(memory).summed(x), 2 * x + 1)
    assert memory.asked == ["all_gather"]


def test_an_exchange_that_gave_up_is_a_loss() -> None:
    memory = Memory()
    group = group_with(memory)
    group.check()
    memory.reason = "an exchange has not ended in 5 seconds"
    for call in (group.check, lambda: group.all_gather(torch.zeros(1))):
        with pytest.raises(GroupLost, match="has not ended in 5 seconds"):
            call()
    assert not memory.asked


def test_an_abort_ends_waits_before_it_waits_for_nccl() -> None:
    memory = Memory()
    group_with(memory).abort("rank 1 has ended")
    assert memory.asked == ["stop", "abort"]


def test_shape_and_type_alone_decide() -> None:
    """Ranks that chose differently would wait for each other for ever."""
    found = Symmetric(_inbox(), WAIT_SECONDS)
    most = MOST_BYTES // 2 // 4
    assert found.carries(torch.empty(most, device="meta"))
    assert not found.carries(torch.empty(most + 1, device="meta"))
    assert found.carries(torch.empty((1, 2), dtype=torch.bfloat16, device="meta"))
    assert not found.carries(torch.empty((1, 3), dtype=torch.bfloat16, device="meta"))
    assert found.reason is None
    found.stop()
    assert found.reason == "its exchanges have been ended"


def _inbox() -> Any:
    pytest.importorskip("triton")
    from eyas.kernels.exchange import Inbox

    none = torch.empty(0)
    stop = torch.zeros(1, dtype=torch.int32)
    return Inbox(0, 2, none, none, none, none, stop)
