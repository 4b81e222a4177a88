"""Work of a library that recurses as deep as what a client sends, on a stack that is deep enough.

A grammar compiler follows a chain of rules or references by calling itself, and a stack overflow ends
the process without an exception. Sources are bounded in length, and so are chains in them.

Promises: what the work returns or raises comes back to the caller, who waits.
Does not know: grammar libraries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from eyas.constraint.threads import started

T = TypeVar("T")

STACK_BYTES = 512 * 2**20
"""Address space, not memory. llguidance 1.9.1 takes under 256 MiB for a chain of 25,000 rules, which is
longer than a source of 256 KiB can spell."""
_BEGINNING = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """Return `work()`, called in a thread of its own. GrammarsUnavailable where the system has no
    thread left."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # a library's panic is no Exception
            done.set_exception(error)

    with _BEGINNING:  # the size is that of every thread which begins meanwhile
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread = started(run, "eyas-deep")
        finally:
            threading.stack_size(usual)
    thread.join()
    return done.result()
