"""What launches share: programmatic dependent launch, where a kernel starts while the kernel before it
ends, and blocks that are never smaller than a warp.

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


def block_of(num: int) -> int:
    """Return the size of a block for `num` elements: a power of two, and at least a warp's 32 lanes, so
    that one compiled kernel serves all smaller numbers."""
    return max(32, triton.next_power_of_2(num))


@triton.jit
def enter(PDL: tl.constexpr):
    """Let the next kernel start, and wait for the results of the kernel before."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
