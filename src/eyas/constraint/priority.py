"""Threads that give way to the engine's own."""

from __future__ import annotations

import contextlib
import os
import threading

NICENESS = 10


def give_way() -> None:
    """Lower the calling thread's priority where the system knows such a thing."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
