"""Compile kernels for Hopper without a device, to see that they do and what they take.

Runs in a process of its own, because one in which kernels are interpreted cannot compile them. All
tests of a session share it, so that torch and triton are imported once.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """kernel: "module:function". signature: type of each argument by name ("*bf16", "*fp32", "*i64",
    "i32", "fp32"); pointers are taken as divisible by 16. constants: of the constexpr arguments.
    aligned: numbers divisible by 16. most_registers: of a thread; None leaves it to the compiler."""

    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    aligned: tuple[str, ...] = field(default=())
    most_registers: int | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """shared: bytes of shared memory. num_registers: of a thread. num_spilled: bytes of registers that
    did not fit. uses_wgmma: Hopper's matrix instructions are used. arrives_together: before a thread
    arrives at a barrier in shared memory, its warps have met since they read that memory."""

    shared: int
    num_registers: int
    num_spilled: int
    uses_wgmma: bool
    arrives_together: bool


def without_interpreter() -> dict[str, str]:
    """Return the environment of a process that compiles kernels."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


class Compiler:
    """The process that compiles: a line of jobs in, a line of results or of an error out."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.hopper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=without_interpreter(),
        )
        atexit.register(self.close)

    def run(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raises AssertionError with the compiler's words."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the compiler ended: {self._said()}"
        told = json.loads(line)
        assert "error" not in told, told["error"][-4000:] + self._said()
        return told["compiled"]

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()


_compiler = cache(Compiler)


def compile_for_hopper(*jobs: Job) -> list[Compiled]:
    """Raises AssertionError with the compiler's words when one does not compile."""
    return [Compiled(**each) for each in _compiler().run([asdict(job) for job in jobs])]


def _compile(job: dict[str, Any]) -> dict[str, Any]:
    import re

    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.cache import get_cache_manager

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
    if job["most_registers"] is not None:
        options["maxnreg"] = job["most_registers"]
    knobs.nvidia.dump_ptxas_log = True
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    said = printed.getvalue()
    cache = get_cache_manager(built.hash)  # beside the kernel, which is not compiled again either
    log = cache.get_file("ptxas.log")
    if log is None:
        if "Used" not in said:
            said = _assemble(built.asm["ptx"], knobs.nvidia.ptxas.path)
        log = cache.put(said, "ptxas.log", binary=False)
    said = Path(log).read_text(encoding="utf-8")
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores", said)
    return {
        "shared": built.metadata.shared,
        "num_registers": int(registers[1]) if registers else 0,
        "num_spilled": int(spilled[1]) if spilled else 0,
        "uses_wgmma": "wgmma." in built.asm["ptx"],
        "arrives_together": _arrives_together(built.asm["ptx"]),
    }


def _arrives_together(ptx: str) -> bool:
    import re

    latest = ""
    for kind in re.findall(r"bar\.sync|wgmma\.wait|ld\.shared|mbarrier\.arrive\.shared", ptx):
        if kind.startswith("mbarrier") and latest != "bar.sync":
            return False
        latest = kind
    return True


def _assemble(ptx: str, ptxas: str) -> str:
    """Return what the assembler tells about a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        ptx_file = os.path.join(folder, "kernel.ptx")
        with open(ptx_file, "w", encoding="utf-8") as file:
            file.write(ptx)
        command = [ptxas, "-v", "-arch=sm_90a", ptx_file, "-o", os.devnull]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def _answer(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"compiled": [_compile(job) for job in jobs]}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # what compilers print is not an answer
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)
