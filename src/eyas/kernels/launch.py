"""Programmatic dependent launch: a kernel starts while the kernel before it ends.

Promises: after `enter`, the results of the kernel before can be read, and memory can be written.
Does not know: what kernels compute.
"""

from __future__ import annotations

import triton
import triton.language as tl

_EAGER: dict[str, bool] = {}
_EARLY = {"launch_pdl": True}


def launch_options(pdl: bool) -> dict[str, bool]:
    """Return the options of a launch with or without programmatic dependent launch."""
    return _EARLY if pdl else _EAGER


@triton.jit
def enter(PDL: tl.constexpr):
    """Let the next kernel start, and wait for the results of the kernel before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
