"""Triton kernels and their launchers; imported only where a device can run them.

Promises: importing this module needs no triton. Does not know: the rest of eyas, the torch
references (`eyas.ops` holds them).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _has_gluon() -> bool:
    try:
        return find_spec("triton.experimental.gluon.nvidia.hopper") is not None
    except Exception:  # a package around it is missing, or not what it was
        return False


def usable(device: torch.device) -> bool:
    """Whether kernels run on `device`; where they do not, torch operations do the same work."""
    return device.type == "cuda" and _has_triton()


def has_warpgroups(device: torch.device) -> bool:
    """Whether `device` has the instructions of `gemm_warpgroups`, and Triton the language for them."""
    if not usable(device) or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    return _has_gluon()
