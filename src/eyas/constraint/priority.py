"""Lower priority for threads other than the engine's.

Promises: does nothing where the system has no priorities of threads. Does not know: what the threads
do.
"""

from __future__ import annotations

import contextlib
import os
import threading

NICENESS = 5


def give_way() -> None:
    """Lower the calling thread's priority where the system knows such a thing."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
