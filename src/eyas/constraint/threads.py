"""Threads for work on grammars: starting one where the system may have none left, and its priority.

Promises: the error says so in words for the client; nothing is lowered where the system has no
priorities of threads. Does not know: what threads do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from eyas.core import GrammarsUnavailable

NO_THREAD = (
    "output grammars cannot be compiled now: the system has no thread left for it; try again later"
)
NICENESS = 5
"""Of threads other than the engine's."""


def started(work: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that does some work. GrammarsUnavailable where the system has none left."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise GrammarsUnavailable(NO_THREAD, "timeout") from error
    return thread


def give_way() -> None:
    """Lower the calling thread's priority where the system knows such a thing."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
