"""What surrounds the capture of a CUDA graph.

Promises: torch's own random generator works after a capture that fails, and no garbage is collected
during one.
Does not know: what is captured.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


@contextmanager
def capturing() -> Iterator[None]:
    """Surround a capture on the current CUDA device.

    Garbage may hold graphs and memory of engines that are gone, and a capture in which these are freed
    fails, so none is collected meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with restoring_generator():
            yield
    finally:
        if collects:
            gc.enable()


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
