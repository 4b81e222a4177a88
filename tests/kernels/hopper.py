"""Compile kernels for Hopper without a device, to see that they do and what they take.

Runs in a process of its own: one in which kernels are interpreted cannot compile them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """kernel: "module:function". signature: type of each argument by name ("*bf16", "*fp32", "*i64",
    "i32", "fp32"); pointers are taken as divisible by 16. constants: of the constexpr arguments.
    aligned: numbers divisible by 16."""

    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    aligned: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Compiled:
    """shared: bytes of shared memory. num_registers: of a thread. num_spilled: bytes of registers that
    did not fit. uses_wgmma: Hopper's matrix instructions are used."""

    shared: int
    num_registers: int
    num_spilled: int
    uses_wgmma: bool


def compile_for_hopper(*jobs: Job) -> list[Compiled]:
    """Raises AssertionError with the compiler's words when one does not compile."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.hopper"],
        input=json.dumps([asdict(job) for job in jobs]),
        capture_output=True,
        text=True,
        env=environment,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Compiled(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def _compile(job: dict[str, Any]) -> dict[str, Any]:
    import re
    import tempfile

    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name = job["kernel"].split(":")
    function = getattr(import_module(module), name)
    types = job["signature"] | dict.fromkeys(job["constants"], "constexpr")
    divisible = [["tt.divisibility", 16]]
    attributes = {
        (i,): divisible
        for i, argument in enumerate(function.arg_names)
        if argument in job["aligned"] or types[argument].startswith("*")
    }
    source_of = ASTSource
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source_of = GluonASTSource
    source = source_of(
        fn=function,
        signature={argument: types[argument] for argument in function.arg_names},
        constexprs=job["constants"],
        attrs=attributes,
    )
    options = {"num_warps": job["num_warps"], "num_stages": job["num_stages"]}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        ptx_file = os.path.join(folder, "kernel.ptx")
        with open(ptx_file, "w", encoding="utf-8") as file:
            file.write(built.asm["ptx"])
        said = subprocess.run(
            [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", ptx_file, "-o", os.devnull],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores", said)
    return {
        "shared": built.metadata.shared,
        "num_registers": int(registers[1]) if registers else 0,
        "num_spilled": int(spilled[1]) if spilled else 0,
        "uses_wgmma": "wgmma." in built.asm["ptx"],
    }


if __name__ == "__main__":
    print(json.dumps([_compile(job) for job in json.load(sys.stdin)]))
