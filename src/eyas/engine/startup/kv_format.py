"""The number format of the cache: what the setting means for a model on a device.

Promises: a format that cannot be used raises a ValueError that names the setting and the remedy.
Does not know: how numbers are stored and read.
"""

from __future__ import annotations

import torch

from eyas.config import CacheDtypeName
from eyas.kernels import usable

FP8 = torch.float8_e4m3fn
FIRST_WITH_FP8 = (8, 9)
"""The first compute capability whose conversions to and from FP8 are instructions."""


def resolve_kv_dtype(name: CacheDtypeName, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which keys and values are stored. dtype: in which the model computes."""
    own = str(dtype).removeprefix("torch.")
    if name == "fp8_e4m3":
        if usable(device) and torch.cuda.get_device_capability(device) < FIRST_WITH_FP8:
            raise ValueError(
                f"cache.dtype: {device} has no instructions for FP8 (e4m3); pass --kv-cache-dtype auto"
            )
        return FP8
    if name not in ("auto", own):
        raise ValueError(
            f"cache.dtype: {name} is not the format in which the model computes ({own}); pass "
            f"--kv-cache-dtype auto or fp8_e4m3, or --dtype {name}"
        )
    return dtype


def kv_dtype_name(dtype: torch.dtype) -> str:
    """Return the setting's name of a type of the cache."""
    return "fp8_e4m3" if dtype == FP8 else str(dtype).removeprefix("torch.")
