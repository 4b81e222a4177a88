"""The processes of other ranks than the first, started on this machine.

Promises: a rank's process ends when the process that started it ends, because a pipe is closed.
Imports no torch. Does not know: what a rank does.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eyas import logs, wire
from eyas.children import python_command
from eyas.config import EngineConfig
from eyas.parallel.lost import GroupLost

MODULE = "eyas.engine.rank_main"
END_SECONDS = 5.0


class RankProcesses:
    """The ranks of one machine, rank 0 excepted.

    process_ids: of ranks in order.
    """

    def __init__(self, config: EngineConfig, place: str, command: Sequence[str] = ()) -> None:
        """Start the processes. place: of their meeting. command: run instead of a rank's own; reads a
        `wire.RankSetup` from its standard input. OSError: one cannot be started."""
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        parallel = config.parallel
        level, log_format = logs.configured()
        first = parallel.node_rank * parallel.ranks_of_node
        try:
            for local_rank in range(parallel.ranks_of_node):
                rank = first + local_rank
                if rank:
                    setup = wire.RankSetup(
                        config=config,
                        rank=rank,
                        local_rank=local_rank,
                        place=place,
                        log_level=level,
                        log_format=log_format,
                    )
                    self._ranks[rank] = self._start(setup, command or python_command(MODULE))
        except BaseException:
            self.close()
            raise

    def _start(self, setup: wire.RankSetup, command: Sequence[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `check` reports
            process.stdin.write(wire.encode_setup(setup) + b"\n")
            process.stdin.flush()
        return process

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._ranks.values()]

    def have_ended(self) -> bool:
        """Whether all ranks have ended after they were told to."""
        return all(process.poll() == 0 for process in self._ranks.values())

    def check(self) -> None:
        """Raise GroupLost if a rank has ended without having been told to."""
        for rank, process in self._ranks.items():
            status = process.poll()
            if status:
                raise GroupLost(f"rank {rank} has ended (status {status})")

    def close(self) -> None:
        """Wait until the ranks have ended, which have been told to; kill those that do not end."""
        for process in self._ranks.values():
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._ranks.values():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class PrivatePlace:
    """A file for the connection of the ranks of one machine, in a private directory."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="eyas-ranks-")
        self.path = str(Path(self._folder.name) / "store")

    def remove(self) -> None:
        self._folder.cleanup()
