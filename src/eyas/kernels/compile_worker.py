"""Compiles kernels for another process: a line of JSON with a kernel in, a line of text out.

Runs as `python -m eyas.kernels.compile_worker`, and needs no device. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver

from eyas.kernels.ahead import DONE, KernelSpec, settle_cache_keys


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what compilers print is no answer
    settle_cache_keys()
    for line in sys.stdin:
        try:
            compile_kernel(KernelSpec(**json.loads(line)))
            answer = DONE
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
        print(answer, file=answers, flush=True)


def compile_kernel(spec: KernelSpec) -> None:
    """Compile a kernel, and the C code by which it is launched, into Triton's cache."""
    if not spec.module.startswith("eyas.kernels."):
        raise ValueError(f"{spec.module} has no kernels")
    target = GPUTarget(spec.backend, spec.arch, spec.warp_size)
    driver.set_active(
        SimpleNamespace(get_current_device=lambda: 0, get_current_target=lambda: target)
    )
    kernel = getattr(import_module(spec.module), spec.name).preload(spec.data)
    with suppress(Exception):  # without a C compiler the launch fails, and says so
        CudaLauncher(kernel.src, kernel.metadata)


if __name__ == "__main__":
    main()
