"""Choose the number format that a model runs in on a device.

Promises: "auto" is bfloat16 where the device multiplies bfloat16 in hardware, else float32.
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
"""oneDNN's names of instruction sets without bfloat16 products."""


def cpu_has_bfloat16(
    cpu_info: Path = CPU_INFO, environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether the processor multiplies bfloat16 in hardware: AVX-512 BF16 or AMX BF16, on Linux on x86.

    False too where the environment forbids these instructions to oneDNN (ONEDNN_MAX_CPU_ISA) or torch
    (ATEN_CPU_CAPABILITY).
    """
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
    """Return the torch type for a configured name on a device.

    "auto" is bfloat16 on a GPU and on a CPU with bfloat16 instructions, else float32.
    ValueError: the name is unknown.
    """
    return name if isinstance(name, torch.dtype) else choose_dtype(name, device)[0]


def choose_dtype(name: DtypeName, device: torch.device | str) -> tuple[torch.dtype, str]:
    """Return the torch type for a configured name on a device, as `resolve_dtype`, and the reason."""
    if name == "auto" and torch.device(device).type != "cpu":
        return torch.bfloat16, "auto: on a GPU"
    if name == "auto" and cpu_has_bfloat16():
        return torch.bfloat16, "auto: the processor has bfloat16 instructions"
    if name == "auto":
        return torch.float32, "auto: the processor has no bfloat16 instructions"
    named = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if name not in named:
        raise ValueError(f"dtype {name!r} is unknown; use auto, {', '.join(named)}")
    return named[name], "--dtype"
