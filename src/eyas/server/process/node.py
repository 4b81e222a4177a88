"""Runs the ranks of a machine that does not serve: the machines of an engine after the first.

Promises: ranks that are lost are started again, since the server starts its engine again; a limited
number of times in a row. The command ends when the server does.
Does not know: torch, what ranks do.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

from eyas import logs
from eyas.config import EngineConfig
from eyas.logs import LogFormat
from eyas.parallel.lost import GroupLost
from eyas.parallel.processes import RankProcesses
from eyas.server.options import MAX_RESTARTS
from eyas.server.process.restarts import RestartPolicy

log = logging.getLogger("eyas.server")

POLL_SECONDS = 0.2


class _Ended(Exception):
    """The process was told to end."""


def run_node(
    config: EngineConfig,
    *,
    log_level: str = "info",
    log_format: LogFormat = "text",
    max_restarts: int = MAX_RESTARTS,
    command: Sequence[str] = (),
) -> int:
    """Run this machine's ranks until the first machine ends them. Return the exit status.

    max_restarts: limit of restarts in a row. command: as `RankProcesses`.
    """
    logs.configure(log_level, log_format)
    parallel = config.parallel
    assert parallel.address is not None and parallel.node_rank > 0
    log.info(
        "machine %d: %d ranks meet at %s",
        parallel.node_rank,
        parallel.ranks_of_node,
        parallel.address,
    )

    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, end) for number in numbers]
    try:
        address, policy = str(parallel.address), RestartPolicy(max_restarts)
        return _run(lambda: RankProcesses(config, address, command), policy)
    except _Ended:
        return 0
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _run(start: Callable[[], RankProcesses], policy: RestartPolicy) -> int:
    while True:
        ranks, started = start(), time.monotonic()
        try:
            while not ranks.have_ended():
                ranks.check()
                time.sleep(POLL_SECONDS)
            return 0
        except GroupLost as error:
            reason = str(error)
        finally:
            ranks.close()
        pause = policy.next_pause(time.monotonic() - started, reason)
        if pause is None:
            log.error("%s; not restarted", reason)
            return 1
        time.sleep(pause)
