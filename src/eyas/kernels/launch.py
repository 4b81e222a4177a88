"""Programmatic dependent launch: a kernel that is set up while the one before it ends.

Promises: after `enter`, what the kernel before wrote can be read, and memory can be written.
Does not know: what kernels compute.
"""

from __future__ import annotations

import triton
import triton.language as tl

_EAGER: dict[str, bool] = {}
_EARLY = {"launch_pdl": True}


def launch_options(pdl: bool) -> dict[str, bool]:
    """What a launch is told of programmatic dependent launch; nothing where it is not wanted."""
    return _EARLY if pdl else _EAGER


@triton.jit
def enter(PDL: tl.constexpr):
    """The next kernel may be set up; what the one before wrote can be read from here on."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
