"""When a process that ended is started again: the engine of a server, and the ranks of a machine.

Promises: a limited number of starts in a row, with growing pauses. Does not know: processes.
"""

from __future__ import annotations

import logging

log = logging.getLogger("eyas.server")

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
HEALTHY_SECONDS = 3.0
"""What ran for so long resets the count of starts. A longer time would stop engines that load slowly
and are killed from time to time."""


class RestartPolicy:
    """Says whether and when a process is started again.

    max_restarts: limit of starts in a row, without a process that ran for `healthy_seconds` between
    them. first_pause_seconds: before the first of them; each further pause is twice as long, up to
    `MAX_PAUSE_SECONDS`.
    """

    def __init__(
        self,
        max_restarts: int,
        *,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        healthy_seconds: float = HEALTHY_SECONDS,
    ) -> None:
        self._max_restarts = max_restarts
        self._first_pause_seconds = first_pause_seconds
        self._healthy_seconds = healthy_seconds
        self._num_tries = 0

    def next_pause(self, ran_seconds: float, reason: str) -> float | None:
        """Log why a process ended, after it ran for `ran_seconds`. Return the seconds until it is to be
        started again; None if it is not."""
        if ran_seconds >= self._healthy_seconds:
            self._num_tries = 0
        if self._num_tries >= self._max_restarts:
            return None
        pause = min(self._first_pause_seconds * 2**self._num_tries, MAX_PAUSE_SECONDS)
        self._num_tries += 1
        log.error(
            "%s; restarting in %.1f s (attempt %d of %d)",
            *(reason, pause, self._num_tries, self._max_restarts),
        )
        return pause

    def stop(self) -> None:
        """Start nothing again from now on."""
        self._max_restarts = 0
