"""Exchanges of small tensors between GPUs of one machine, through memory that all of them can write.

Promises: used by all ranks or by none, which are told why in the log. Gathers and sums have the bits of
those through NCCL: a trial compares them before the first use. NVLink's multicast is not used.
Does not know: what is exchanged.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from eyas.kernels import usable
from eyas.ops.tree_sum import tree_sum

if TYPE_CHECKING:
    from eyas.kernels.exchange import Inbox

log = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
"""Bytes of an exchange, of all ranks' tensors together, up to which it goes through symmetric memory:
for two ranks 128 rows of 4096 float32. It sends twice as many bytes as NCCL, but in less time."""
NUMBER_BYTES = 4
TRIAL_ROUNDS, TRIAL_EXCHANGES = 12, 16
TRIAL_SIZES = (1, 64, 100, 1000, 4096, 5 * 4096, 40_000)
"""Numbers of a rank in an exchange of the trial."""
NAME: Any = "eyas"
"""Of the process group under which torch looks for the ranks while they exchange addresses."""
NEVER_NS = 1 << 62

Result = TypeVar("Result")


class Ranks(Protocol):
    """The ranks that meet (`parallel.group.Group`)."""

    rank: int
    size: int

    def all_gather(self, x: torch.Tensor) -> torch.Tensor: ...
    def least(self, value: int) -> int: ...


class Symmetric:
    """The exchanges of one rank. All ranks make the same ones in the same order.

    most_seconds: how long an exchange waits for another rank; None is without limit.
    """

    def __init__(self, inbox: Inbox, most_seconds: float | None) -> None:
        self._inbox = inbox
        self.most_seconds = most_seconds
        self._stop = inbox.stop.numpy()

    def carries(self, x: torch.Tensor) -> bool:
        """Whether a tensor is exchanged here; depends on its shape and type alone."""
        size = x.numel() * x.element_size()
        return size % NUMBER_BYTES == 0 and 0 < size * self._inbox.size <= MOST_BYTES

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks [N, ...], which have one shape and type."""
        x = x.contiguous()
        if x.data_ptr() % NUMBER_BYTES:
            x = x.clone()
        found = self._exchange(x.flatten().view(torch.int32), adds=False)
        return found.view(x.dtype).view(self._inbox.size, *x.shape)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' float32 tensors in the order of `ops.tree_sum`."""
        return self._exchange(x.contiguous(), adds=True)

    def _exchange(self, own: torch.Tensor, *, adds: bool) -> torch.Tensor:
        from eyas.kernels.exchange import exchange

        seconds = self.most_seconds
        most_ns = NEVER_NS if seconds is None else int(seconds * 1e9)
        return exchange(self._inbox, own, adds=adds, most_ns=most_ns, pdl=own.is_cuda)

    def stop(self) -> None:
        """End the exchanges that wait, on this rank; their results and all later ones are invalid.
        Can run in any thread."""
        from eyas.kernels.exchange import STOPPED

        self._stop[0] = STOPPED

    @property
    def reason(self) -> str | None:
        """Why results that have been read may be invalid; None if they are not."""
        if not (stop := int(self._stop[0])):
            return None
        from eyas.kernels.exchange import LATE

        late = f"an exchange has not ended in {self.most_seconds:g} seconds"
        return late if stop == LATE else "its exchanges have been ended"


class Unavailable(Exception):
    """Ranks cannot use symmetric memory; says why."""


def open_symmetric(
    group: Ranks, store: dist.Store, device: torch.device, *, is_local: bool, most_seconds: float
) -> Symmetric | None:
    """Return the exchanges of this rank, or None, on all ranks, if one of them cannot have them.

    store: of this rank, for addresses. is_local: all ranks are on one machine. most_seconds: how long
    rank 0 waits for another rank. The others wait for as long as rank 0 does: if they gave up before,
    rank 0 would get what they have not finished; they end when rank 0 ends.
    """
    try:
        _together(group, lambda: _check(group.size, device, is_local=is_local))
        with torch.cuda.device(device):
            words = _together(group, lambda: _allocated(group.size, device))
            addresses = _together(group, lambda: _met(group, store, words))
            _together(group, lambda: _launched(group.size, device))
            inbox = _inbox(group.rank, group.size, words, addresses)
            found = _together(group, lambda: _tried(group, inbox, most_seconds))
    except Unavailable as error:
        log.info("rank %d exchanges everything by NCCL: %s", group.rank, error)
        return None
    if group.rank:
        found.most_seconds = None
    log.info(
        "rank %d exchanges up to %d KiB through symmetric memory",
        group.rank,
        MOST_BYTES // group.size // 1024,
    )
    return found


def _together(group: Ranks, step: Callable[[], Result]) -> Result:
    """Return what a step returns on this rank. Raises Unavailable if it fails on one of the ranks."""
    try:
        found, why = step(), None
    except Exception as error:
        found, why = None, f"{error}".partition("\n")[0] or type(error).__name__
    if not group.least(int(why is None)):
        raise Unavailable(why or "another rank cannot use symmetric memory; its log says why")
    return found  # pyrefly: ignore[bad-return]


def _check(num_ranks: int, device: torch.device, *, is_local: bool) -> None:
    """Raises Unavailable if it is known that the ranks cannot write each other's memory."""
    if not is_local:
        raise Unavailable("the ranks were not started together on one machine")
    if not usable(device):
        raise Unavailable("kernels do not run here")
    for other in range(min(num_ranks, torch.cuda.device_count())):
        if other != device.index and not torch.cuda.can_device_access_peer(device, other):
            raise Unavailable(f"{device} cannot access the memory of cuda:{other}")


def _num_channels(num_ranks: int) -> int:
    from eyas.kernels.exchange import num_channels

    return num_channels(MOST_BYTES // num_ranks // NUMBER_BYTES)


def _allocated(num_ranks: int, device: torch.device) -> torch.Tensor:
    """Return an empty inbox."""
    from eyas.kernels.exchange import num_words

    length = num_words(_num_channels(num_ranks), num_ranks)
    words = c10d._SymmetricMemory.empty_strided_p2p((length,), (1,), torch.int64, device)
    words.zero_()
    torch.cuda.synchronize(device)  # before another rank writes
    return words


def _met(group: Ranks, store: dist.Store, words: torch.Tensor) -> list[int]:
    """Return the addresses of all ranks' inboxes."""
    counted = CountedStore(store)
    ranks = dist.ProcessGroup(counted, group.rank, group.size)
    c10d._register_process_group(NAME, ranks)
    try:
        handle = c10d._SymmetricMemory.rendezvous(words, NAME)
    finally:
        c10d._unregister_process_group(NAME)
    addresses = list(handle.buffer_ptrs)
    if addresses[group.rank] != words.data_ptr():
        raise Unavailable("torch does not return the addresses of tensors")
    return addresses


def _inbox(rank: int, size: int, words: torch.Tensor, addresses: list[int]) -> Inbox:
    from eyas.kernels.exchange import Inbox

    device = words.device
    return Inbox(
        rank,
        size,
        words,
        torch.tensor(addresses, dtype=torch.int64, device=device),
        torch.zeros(_num_channels(size), dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, pin_memory=True),
    )


def _launched(num_ranks: int, device: torch.device) -> None:
    """Launch the kernel once without other ranks, which do not come in time: if it cannot be compiled
    or launched on this rank, no other one waits for it."""
    from eyas.kernels.exchange import exchange, num_words

    length = num_words(_num_channels(num_ranks), num_ranks)
    words = torch.zeros(length, dtype=torch.int64, device=device)
    inbox = _inbox(0, num_ranks, words, [words.data_ptr()] * num_ranks)
    for adds in (False, True):
        own = torch.zeros(TRIAL_SIZES[-1], device=device)
        exchange(inbox, own, adds=adds, most_ns=0, pdl=own.is_cuda)
    torch.cuda.synchronize(device)


def _tried(group: Ranks, inbox: Inbox, most_seconds: float) -> Symmetric:
    """Return exchanges whose results are those of NCCL, of many sizes one after the other, while ranks
    are late at random. Raises Unavailable if they are not."""
    found = Symmetric(inbox, most_seconds)
    device = inbox.words.device
    generator = torch.Generator(device).manual_seed(group.rank)
    common, own = random.Random(0), random.Random(1 + group.rank)
    most = MOST_BYTES // group.size // NUMBER_BYTES
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(TRIAL_ROUNDS):
        sizes = [common.choice(TRIAL_SIZES) for _ in range(TRIAL_EXCHANGES)] + [most]
        parts = [torch.randn(size, generator=generator, device=device) for size in sizes]
        expected = [group.all_gather(x) for x in parts]
        if device.type == "cuda":
            torch.cuda._sleep(own.choice((0, 10_000, 200_000)))
        results = [(found.all_gather(x), found.summed(x)) for x in parts]
        for (gathered, summed), all_N in zip(results, expected, strict=True):
            wrong += (_bits(gathered) != _bits(all_N)).sum()
            wrong += (_bits(summed) != _bits(tree_sum(all_N))).sum()
    if int(wrong) or found.reason is not None:
        raise Unavailable(found.reason or "a trial has found other numbers than NCCL")
    return found


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


class CountedStore(dist.Store):
    """A store whose keys count the exchanges that it was used for.

    Torch puts the number of exchanges of the process into its keys, which ranks do not have in common
    if one of them was in another group before.
    """

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self._numbers: dict[str, int] = {}

    def _key(self, key: str) -> str:
        number = re.search(r"/(\d+)", key)
        if number is None:
            return key
        own = self._numbers.setdefault(number[1], len(self._numbers))
        return f"{key[: number.start()]}/{own}{key[number.end() :]}"

    def set(self, key: str, value: Any) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def add(self, key: str, value: int) -> int:
        return self._store.add(self._key(key), value)

    def wait(  # pyrefly: ignore[bad-override]
        self, keys: list[str], *timeout: timedelta
    ) -> None:
        self._store.wait([self._key(key) for key in keys], *timeout)
