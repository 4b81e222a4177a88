"""The ranks of an engine, as rank 0 sees them: started, met, watched, ended.

Promises: a rank that ends is noticed by `check`, and by every exchange. `close` leaves no process.
Does not know: models, what is exchanged.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import msgspec
import torch

from eyas.config import EngineConfig
from eyas.layers.exchanged_experts import exchange_bytes
from eyas.models import ModelSpec
from eyas.parallel.group import Group, Meeting, meet
from eyas.parallel.lost import GroupLost
from eyas.parallel.processes import PrivatePlace, RankProcesses
from eyas.parallel.shard import Shard
from eyas.runner.device import Device
from eyas.runner.leader import Leader

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2


def shard_of(config: EngineConfig, device: torch.device, rank: int = 0) -> Shard:
    """Return a rank's part of the model, without a group."""
    parallel = config.parallel
    divides_sums = parallel.num_ranks > 1 and not parallel.divides_sequences
    return Shard(
        rank,
        parallel.num_ranks,
        by_tree=parallel.exact_across_tp or (divides_sums and device.type == "cpu"),
        by_expert=parallel.divides_by_expert,
        by_sequence=parallel.divides_sequences,
    )


def exchanged_bytes(config: EngineConfig, spec: ModelSpec) -> int:
    """Return the bytes that ranks with sequences of their own need to exchange rows; else 0."""
    if not config.parallel.divides_sequences or spec.experts is None:
        return 0
    experts = spec.experts
    return exchange_bytes(
        config.parallel.num_ranks,
        experts.routing.num_chosen,
        spec.hidden_size,
        experts.intermediate_size,
    )


def meeting_of(config: EngineConfig, rank: int, place: str) -> Meeting:
    """Return where a rank meets the others, and what it must have in common with them."""
    parallel, model = config.parallel, config.model
    terms = {
        "the version of eyas": _installed_version(),
        "the version of torch": torch.__version__.partition("+")[0],
        "parallel.dp": parallel.dp,
        "parallel.ep": parallel.divides_by_expert,
        "parallel.exact_across_tp": parallel.exact_across_tp,
        "model.dtype": model.dtype,
        "model.max_model_len": model.max_model_len,
        "cache.dtype": config.cache.dtype,
        "device.exact": config.device.exact,
    }
    return Meeting(
        rank,
        parallel.num_ranks,
        place,
        parallel.timeout_seconds,
        {name: str(value) for name, value in terms.items()},
    )


def _installed_version() -> str:
    try:
        return version("eyas")
    except PackageNotFoundError:
        return "a source tree"


class Ranks:
    """The other ranks of an engine.

    leader: announces forward passes to them. shard: of this rank, with the group.
    """

    def __init__(
        self,
        config: EngineConfig,
        directory: str,
        hardware: Device,
        command: Sequence[str] = (),
    ) -> None:
        """Start the other ranks of this machine, and meet all of them.

        directory: of the model. command: as `RankProcesses`. Raises GroupLost if a rank does not come,
        and ValueError if one was started with other settings.
        """
        self._place = None if config.parallel.num_nodes > 1 else PrivatePlace()
        self._processes: RankProcesses | None = None
        self._group: Group | None = None
        self._has_ended = False
        self._ending = threading.Event()
        where = config.parallel.address if self._place is None else self._place.path
        assert where is not None
        try:
            here = msgspec.structs.replace(config.model, path=directory, offline=True)
            found = msgspec.structs.replace(config, model=here)
            self._processes = RankProcesses(found, where, command)
            self._group = self._meet(meeting_of(config, 0, where), hardware.device)
        except BaseException:
            self.close()
            raise
        log.info("%d ranks have met", config.parallel.num_ranks)
        self.leader = Leader(self._group)
        if self._group.is_on_gpu:
            seconds = config.parallel.timeout_seconds
            threading.Thread(target=self._watch, args=(seconds,), daemon=True).start()
        self.shard = replace(shard_of(config, hardware.device), group=self._group)

    @property
    def group(self) -> Group:
        assert self._group is not None
        return self._group

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes on this machine."""
        assert self._processes is not None
        return self._processes.process_ids

    def check(self) -> None:
        """Raise GroupLost if a rank of this machine has ended, if one of another machine is not there,
        or if an exchange has failed."""
        assert self._processes is not None
        try:
            self._processes.check()
        except GroupLost as error:
            self.group.give_up(str(error))
        self.group.check()
        self.leader.send_heartbeat()

    def close(self) -> None:
        """End the ranks."""
        if self._group is not None and not self._group.is_lost and not self._has_ended:
            with contextlib.suppress(GroupLost):
                self.leader.end()
        self._has_ended = True
        self._ending.set()
        if self._processes is not None:
            self._processes.close()
        if self._place is not None:
            self._place.remove()

    def _watch(self, most_seconds: float) -> None:
        """End the exchanges of GPUs if another rank is lost: the thread that runs steps may be waiting
        for them, and does not check then."""
        assert self._processes is not None
        while not self._ending.wait(POLL_SECONDS):
            try:
                self._processes.check()
                self.leader.check_replays(most_seconds)
            except GroupLost as error:
                self.group.abort(str(error))
                return

    def _meet(self, meeting: Meeting, device: torch.device) -> Group:
        """Meet the other ranks; stop waiting if one of them ends."""
        met: Future[Group] = Future()

        def wait() -> None:
            try:
                met.set_result(meet(meeting, device))
            except BaseException as error:
                met.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        while True:
            try:
                return met.result(POLL_SECONDS)
            except FutureTimeout:
                assert self._processes is not None
                self._processes.check()
