"""The ranks as a group: messages of rank 0 to all others, and exchanges of tensors.

Promises: an explicit object; torch's default group is not used. A call that fails, because a rank has
ended or does not answer in time, raises GroupLost, and so does every later call: ranks that are not
at the same call never exchange numbers. The same holds after any other exception, such as Ctrl-C.
Nothing is pickled. Sockets listen at one address of this machine: that of rank 0, or the one that
reaches it. Does not know: what is sent, how ranks are started.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from eyas.ops.tree_sum import tree_sum
from eyas.parallel.addresses import Address, listen, own_address
from eyas.parallel.lost import GroupLost
from eyas.parallel.symmetric import Symmetric, open_symmetric

FRAME = 1024
"""Bytes of the first part of a message; longer ones have a second part."""
LENGTH_BYTES = 4
DAYS_WITHOUT_MESSAGES = 365
MEET_SECONDS = 600
"""How long ranks wait for each other at the start."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the ranks of a group connect.

    rank, size: of the group. place: "host:port", where rank 0 listens, or the path of a file in a
    private directory, if all ranks are on one machine. timeout_seconds: how long an exchange may
    take. terms: names and values of settings that must be equal on all ranks.
    """

    rank: int
    size: int
    place: str
    timeout_seconds: float
    terms: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on one machine."""
        return self.place.startswith("/")

    @property
    def address(self) -> Address:
        """Host and port of the place. An IPv6 address is in brackets there."""
        host, _, port = self.place.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


class Exchanges(Protocol):
    """The methods of torch's backends that this module calls; each returns work to wait for, or None
    if later work on the device waits by itself."""

    def _allgather_base(
        self, output: torch.Tensor, x: torch.Tensor, options: Any, /
    ) -> dist.Work | None: ...
    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], /
    ) -> dist.Work: ...
    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any, /
    ) -> dist.Work | None: ...
    def broadcast(self, x: list[torch.Tensor], options: Any, /) -> dist.Work | None: ...
    def alltoall_base(
        self,
        output: torch.Tensor,
        x: torch.Tensor,
        outputs: list[int],
        inputs: list[int],
        options: Any,
        /,
    ) -> dist.Work | None: ...
    def abort(self) -> None: ...


class Group:
    """The ranks of one engine.

    messages: carries messages, between hosts. exchanges: carries tensors, of the devices on which the
    ranks compute. is_on_gpu: these are GPUs. symmetric: carries the smaller tensors of GPUs, if it is
    not None.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        messages: Exchanges,
        exchanges: Exchanges,
        *,
        is_on_gpu: bool = False,
    ) -> None:
        self.rank = rank
        self.size = size
        self._messages = messages
        self._exchanges = exchanges
        self.is_on_gpu = is_on_gpu
        self.symmetric: Symmetric | None = None
        self._reason: str | None = None

    @property
    def is_lost(self) -> bool:
        return self._reason is not None

    def give_up(self, reason: str) -> None:
        """Make every later call fail. reason: for its message."""
        if self._reason is None:
            self._reason = reason

    def abort(self, reason: str) -> None:
        """Give up, and end the exchanges of GPUs that wait for another rank; their results are
        invalid.

        Can run in any thread. A CPU's exchanges end by themselves.
        """
        self.give_up(reason)
        if self.symmetric is not None:
            self.symmetric.stop()
        if self.is_on_gpu:
            self._exchanges.abort()

    def check(self) -> None:
        """Raise GroupLost if the group is lost."""
        if self.symmetric is not None and (reason := self.symmetric.reason) is not None:
            self.give_up(reason)
        if self._reason is not None:
            raise GroupLost(f"the group of {self.size} ranks is lost: {self._reason}")

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks [N, ...], which have one shape and type."""
        if (symmetric := self._through(x)) is not None:
            return symmetric.all_gather(x)
        x = x.contiguous()
        gathered = x.new_empty((self.size, *x.shape))
        options = _options(AllgatherOptions)
        self._run(lambda: self._exchanges._allgather_base(gathered.flatten(), x.flatten(), options))
        return gathered

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all ranks, which have one shape and type, in the order of
        `ops.tree_sum`."""
        if x.dtype == torch.float32 and (symmetric := self._through(x)) is not None:
            return symmetric.summed(x)
        return tree_sum(self.all_gather(x))

    def all_to_all(
        self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """Send each rank some rows of `x`, in order of rank; return those of the ranks for this one.

        x: [sum(sent), ...]. sent: how many for each rank. received: how many from each rank.
        """
        x = x.contiguous()
        found = x.new_empty((sum(received), *x.shape[1:]))
        options = _options(dist.AllToAllOptions)
        self._run(
            lambda: self._exchanges.alltoall_base(found, x, list(received), list(sent), options)
        )
        return found

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the tensors of all ranks [N, ...] on rank 0, and None elsewhere."""
        if (symmetric := self._through(x)) is not None:
            gathered = symmetric.all_gather(x)
            return None if self.rank else gathered
        x = x.contiguous()
        options = _options(dist.GatherOptions)
        if self.rank:
            self._run(lambda: self._exchanges.gather([], [x], options))
            return None
        gathered = x.new_empty((self.size, *x.shape))
        self._run(lambda: self._exchanges.gather([list(gathered.unbind(0))], [x], options))
        return gathered

    def broadcast(self, x: torch.Tensor) -> None:
        """Fill `x` with the contiguous tensor of rank 0."""
        self._run(lambda: self._exchanges.broadcast([x], _options(dist.BroadcastOptions)))

    def least(self, value: int) -> int:
        """Return the minimum of the ranks' numbers."""
        mine = torch.tensor([value], dtype=torch.int64)
        all_N1 = [torch.empty_like(mine) for _ in range(self.size)]
        self._run(lambda: self._messages.allgather([all_N1], [mine]))
        return int(torch.cat(all_N1).min())

    def send(self, message: bytes) -> None:
        """Send a message of rank 0 to all other ranks."""
        frame = torch.zeros(FRAME, dtype=torch.uint8)
        length = len(message).to_bytes(LENGTH_BYTES, "little")
        room = FRAME - LENGTH_BYTES
        first = length + message[:room]
        frame[: len(first)] = torch.frombuffer(bytearray(first), dtype=torch.uint8)
        parts = [frame]
        if len(message) > room:
            parts.append(torch.frombuffer(bytearray(message[room:]), dtype=torch.uint8))
        self._run(lambda: self._send(parts))

    def receive(self) -> bytes:
        """Wait for the next message of rank 0 without a time limit, and return it."""
        frame = torch.empty(FRAME, dtype=torch.uint8)
        self._run(lambda: self._messages.broadcast([frame], _options(dist.BroadcastOptions)))
        first = frame.numpy().tobytes()
        length = int.from_bytes(first[:LENGTH_BYTES], "little")
        message = first[LENGTH_BYTES:][:length]
        if missing := length - len(message):
            rest = torch.empty(missing, dtype=torch.uint8)
            self._run(lambda: self._messages.broadcast([rest], _options(dist.BroadcastOptions)))
            message += rest.numpy().tobytes()
        return message

    def _send(self, parts: list[torch.Tensor]) -> None:
        for part in parts:
            work = self._messages.broadcast([part], _options(dist.BroadcastOptions))
            assert work is not None, "messages are exchanged between hosts"
            work.wait()

    def _through(self, x: torch.Tensor) -> Symmetric | None:
        """Return the symmetric memory, if a tensor of this shape and type is exchanged through it."""
        if self.symmetric is None or not self.symmetric.carries(x):
            return None
        self.check()
        return self.symmetric

    def _run(self, begin: Callable[[], dist.Work | None]) -> None:
        self.check()
        try:
            if (work := begin()) is not None:
                work.wait()
        except RuntimeError as error:  # torch's: a peer is gone, or time is up
            self.give_up(_first_sentence(error))
            self.check()
        except BaseException as error:  # of a user who does not wait for the end
            self.give_up(f"an exchange was interrupted ({type(error).__name__})")
            raise


def _options(kind: type[Any]) -> Any:
    """Return options of an exchange, from or to rank 0, which runs in the order of the work that the
    device has: it needs no stream of its own, and is captured in CUDA graphs like a kernel."""
    options = kind()
    options.asyncOp = False
    if hasattr(options, "rootRank"):
        options.rootRank = 0
    return options


def meet(meeting: Meeting, device: torch.device) -> Group:
    """Return the group, once all ranks are connected. Raises GroupLost if one does not connect in
    time, and ValueError if ranks differ in the terms."""
    rank, size = meeting.rank, meeting.size
    limit = timedelta(seconds=meeting.timeout_seconds)
    try:
        store = _store(meeting)
        _agree(dist.PrefixStore("terms", store), meeting, device)
        # That a rank has ended is noticed; messages themselves may be days apart.
        forever = timedelta(days=DAYS_WITHOUT_MESSAGES)
        messages = _gloo(dist.PrefixStore("messages", store), meeting, forever)
        if device.type == "cpu":
            exchanges = _gloo(dist.PrefixStore("exchanges", store), meeting, limit)
        else:
            exchanges = _nccl(dist.PrefixStore("exchanges", store), meeting, limit)
    except (RuntimeError, OSError) as error:
        raise GroupLost(
            f"rank {rank} of {size} did not meet the others at {meeting.place}: "
            f"{_first_sentence(error)}"
        ) from error
    group = Group(rank, size, messages, exchanges, is_on_gpu=device.type != "cpu")
    if group.is_on_gpu:
        group.symmetric = open_symmetric(
            group,
            dist.PrefixStore("symmetric", store),
            device,
            is_local=meeting.is_local,
            most_seconds=meeting.timeout_seconds,
        )
    return group


def _agree(store: dist.Store, meeting: Meeting, device: torch.device) -> None:
    """Wait for all ranks. Raises ValueError if one has other terms than rank 0, which it names."""
    rank, size = meeting.rank, meeting.size
    mine = {"the number of ranks": f"{size}", "the device": device.type, **meeting.terms}
    store.set(f"{rank}", msgspec.json.encode(mine).decode())
    for other in range(1, size) if rank == 0 else (0,):
        theirs = msgspec.json.decode(store.get(f"{other}"), type=dict[str, str])
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise ValueError(
                    f"parallel: rank {rank} has {mine.get(name)} as {name}, rank {other} has "
                    f"{theirs.get(name)}; start all ranks with the same versions and settings"
                )


def _first_sentence(error: Exception) -> str:
    """Return the first sentence of torch's error, without the source location and advice."""
    text = re.sub(r"^\[[^]]*\]\s*", "", str(error).partition("\n")[0])
    return re.split(r"\. (?=[A-Z])", text)[0]


def _store(meeting: Meeting) -> dist.Store:
    limit = timedelta(seconds=MEET_SECONDS)
    if meeting.is_local:
        store: dist.Store = dist.FileStore(meeting.place, meeting.size)
        store.set_timeout(limit)
        return store
    address, listener = meeting.address, None
    if meeting.rank == 0:  # torch would listen at every address of the machine
        listener = listen(address).detach()
    return dist.TCPStore(
        *address,
        meeting.size,
        is_master=listener is not None,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def _gloo(store: dist.Store, meeting: Meeting, limit: timedelta) -> Exchanges:
    """Return the exchanges of host tensors, once all ranks are connected."""
    gloo: Any = dist.ProcessGroupGloo
    own = LOOPBACK if meeting.is_local else own_address(meeting.address)
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=own)]
    options._timeout = timedelta(seconds=MEET_SECONDS)
    exchanges = gloo(store, meeting.rank, meeting.size, options)
    exchanges._set_default_timeout(limit)
    return exchanges


def _nccl(store: dist.Store, meeting: Meeting, limit: timedelta) -> Exchanges:
    """Return the exchanges of GPU tensors."""
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = limit
    return nccl(store, meeting.rank, meeting.size, options)
