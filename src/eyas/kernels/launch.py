"""How kernels are launched: while the kernel before ends, or not at all, being compiled only.

Promises: after `enter`, the results of the kernel before can be read, and memory can be written. Within
`compiling` nothing is launched or loaded, so that several threads can compile at once: Triton keeps
all launchers under one module's name, and a thread that loads one can be given another's.
Does not know: what kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import triton
import triton.language as tl

_EAGER: dict[str, bool] = {}
_EARLY = {"launch_pdl": True}
_COMPILES_ONLY: ContextVar[bool] = ContextVar("compiles_only", default=False)


@contextmanager
def compiling() -> Iterator[None]:
    """Let this thread's launches through `launcher` compile their kernels, and do nothing else."""
    token = _COMPILES_ONLY.set(True)
    try:
        yield
    finally:
        _COMPILES_ONLY.reset(token)


def launcher(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return the function that launches a kernel; within `compiling`, the one that compiles it."""
    if _COMPILES_ONLY.get():
        return partial(kernel.warmup, grid=grid)
    return kernel[grid]


def launch_options(pdl: bool) -> dict[str, bool]:
    """Return the options of a launch with or without programmatic dependent launch."""
    return _EARLY if pdl else _EAGER


@triton.jit
def enter(PDL: tl.constexpr):
    """Let the next kernel start, and wait for the results of the kernel before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
