"""Starting threads where the system may have none left.

Promises: the error says so in words for the client. Does not know: what threads do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eyas.core import GrammarsUnavailable

NO_THREAD = (
    "output grammars cannot be compiled now: the system has no thread left for it; try again later"
)


def started(work: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that does some work. GrammarsUnavailable where the system has none left."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise GrammarsUnavailable(NO_THREAD, "timeout") from error
    return thread
