"""Which number format a model runs in on a device.

Promises: "auto" is bfloat16 where the device multiplies it in hardware, else float32.
Does not know: models.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from eyas.config import DtypeName

CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
ISAS_WITHOUT_BFLOAT16 = frozenset(
    ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
)
"""oneDNN's names of what a processor can do."""


def cpu_has_bfloat16(
    cpu_info: Path = CPU_INFO, environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether bfloat16 is multiplied by instructions of its own: AVX-512 BF16 or AMX BF16 (Linux on
    x86), which the libraries that do it have not been told to leave alone (oneDNN's
    ONEDNN_MAX_CPU_ISA, torch's ATEN_CPU_CAPABILITY)."""
    if platform.machine() not in ("x86_64", "AMD64") or _is_capped(environment):
        return False
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return not BFLOAT16_FLAGS.isdisjoint(flags.split())


def _is_capped(environment: Mapping[str, str]) -> bool:
    onednn = environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA") or "ALL"
    aten = environment.get("ATEN_CPU_CAPABILITY", "")
    return onednn.upper() in ISAS_WITHOUT_BFLOAT16 or aten.lower() in ("default", "avx2")


def resolve_dtype(name: DtypeName | torch.dtype, device: torch.device | str) -> torch.dtype:
    """The torch type for a configured name on a device."""
    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        fast = torch.device(device).type != "cpu" or cpu_has_bfloat16()
        return torch.bfloat16 if fast else torch.float32
    named = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if name not in named:
        raise ValueError(f"dtype {name!r} is unknown; use auto, {', '.join(named)}")
    return named[name]
