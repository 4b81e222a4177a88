"""What surrounds the capture of a CUDA graph.

Promises: torch's own random generator works after a capture that fails, and no garbage is collected
during one.
Does not know: what is captured.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


class _NotCollecting:
    """A context in which no garbage is collected, whichever threads are in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._collected = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_inside:
                self._collected = gc.isenabled()
                gc.disable()
            self._num_inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside and self._collected:
                gc.enable()


_not_collecting = _NotCollecting()


@contextmanager
def capturing() -> Iterator[None]:
    """Surround a capture on the current CUDA device.

    Garbage may hold graphs and memory of engines that are gone, and a capture in which these are freed
    fails, so none is collected meanwhile.
    """
    with _not_collecting, restoring_generator():
        yield


@contextmanager
def restoring_generator() -> Iterator[None]:
    """Keep the random generator of the current CUDA device usable if a capture in this block fails.

    torch has the generator take part in every capture, and ends that only where the capture ends well;
    `torch.randn` and the like raise otherwise ("Offset increment outside graph capture"). So an empty
    graph is captured after the failure.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is the one to see
            zero = torch.zeros(1, device="cuda")
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                zero.zero_()
        raise
