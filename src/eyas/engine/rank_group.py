"""The ranks of an engine, as rank 0 sees them: started, met, watched, ended.

Promises: a rank that ends is noticed by `check`, and by every exchange. `close` leaves no process; it
is called when nothing refers to the ranks any more, and when the interpreter exits, if nobody has.
Does not know: models, what is exchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from weakref import finalize

import msgspec
import torch

from eyas.config import EngineConfig
from eyas.layers.exchanged_experts import exchange_bytes
from eyas.models import ModelSpec
from eyas.models.digest import model_digest
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


def located(config: EngineConfig, directory: Path | str) -> EngineConfig:
    """Return a configuration whose model is in this directory, so that it is not looked for again."""
    here = msgspec.structs.replace(config.model, path=str(directory), offline=True)
    return msgspec.structs.replace(config, model=here)


def meeting_of(config: EngineConfig, rank: int, place: str) -> Meeting:
    """Return where a rank meets the others, and what it must have in common with them. config: as
    `located` returns it."""
    parallel, model = config.parallel, config.model
    terms = {
        "the model's files": model_digest(Path(model.path))[:16],
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
        closing = contextlib.ExitStack()
        self._close = finalize(self, _close_in, os.getpid(), closing)
        try:
            where = config.parallel.address
            if config.parallel.num_nodes == 1:
                place = PrivatePlace()
                closing.callback(place.remove)
                where = place.path
            assert where is not None
            found = located(config, directory)
            self._processes = RankProcesses(found, where, command)
            closing.callback(self._processes.close)
            self.group = _met(meeting_of(found, 0, where), hardware.device, self._processes)
            closing.callback(self.group.abort, "the engine was shut down")
            self.leader = Leader(self.group)
            closing.callback(self.leader.end)
        except BaseException:
            self.close()
            raise
        log.info("%d ranks have met", config.parallel.num_ranks)
        if self.group.is_on_gpu:
            ending = threading.Event()
            closing.callback(ending.set)
            seconds = config.parallel.timeout_seconds
            watched = (ending, self._processes, self.leader, self.group, seconds)
            threading.Thread(target=_watch, args=watched, daemon=True).start()
        self.shard = replace(shard_of(config, hardware.device), group=self.group)

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes on this machine."""
        return self._processes.process_ids

    def check(self) -> None:
        """Raise GroupLost if a rank of this machine has ended, if one of another machine is not there,
        or if an exchange has failed."""
        try:
            self._processes.check()
        except GroupLost as error:
            self.group.give_up(str(error))
        self.group.check()
        self.leader.send_heartbeat()

    def close(self) -> None:
        """End the ranks, and the exchanges with them."""
        self._close()


def _close_in(process: int, closing: contextlib.ExitStack) -> None:
    """Close what a process has opened, in it alone: a forked one lacks the threads of the exchanges."""
    if os.getpid() == process:
        closing.close()


def _met(meeting: Meeting, device: torch.device, processes: RankProcesses) -> Group:
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
            processes.check()


def _watch(
    ending: threading.Event,
    processes: RankProcesses,
    leader: Leader,
    group: Group,
    most_seconds: float,
) -> None:
    """End the exchanges of GPUs if another rank is lost: the thread that runs steps may be waiting for
    them, and does not check then."""
    while not ending.wait(POLL_SECONDS):
        try:
            processes.check()
            leader.check_replays(most_seconds)
        except GroupLost as error:
            group.abort(str(error))
            return
