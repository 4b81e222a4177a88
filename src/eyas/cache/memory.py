"""Tensors of zeros that use memory only where they are written to.

Does not know: what the tensors hold.
"""

from __future__ import annotations

import math

import numpy as np
import torch

ALIGNMENT = 64
"""Bytes; the alignment of torch's own allocations."""


def zeros_on_demand(
    shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor of zeros. On a CPU memory is only used for pages that are written to: numpy gets
    zeroed pages from the operating system, where torch would write the zeros."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -pages.ctypes.data % ALIGNMENT
    return torch.from_numpy(pages[start : start + num_bytes]).view(dtype).view(shape)
