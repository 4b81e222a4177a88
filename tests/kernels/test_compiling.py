"""Kernels compiled on threads are those that are launched later, and threads launch none.

Runs in a process of its own, because one in which kernels are interpreted cannot compile them. A driver
that is none stands for the device.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kernels.hopper import without_interpreter

pytest.importorskip("triton")

SCRIPT = """
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from eyas.kernels import gemm
from eyas.kernels.launch import compiling
from eyas.kernels.tiles import Tile

compiled, loaded, launched = [], [], []


class Launcher:
    def __init__(self, src, metadata):
        loaded.append(metadata.hash)

    def __call__(self, x, y, z, stream, function, *rest):
        launched.append(function)


def load_binary(name, kernel, shared, device):
    return "module", name, 0, 0, 1024


driver.set_active(
    SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=Launcher,
        utils=SimpleNamespace(
            load_binary=load_binary,
            get_device_properties=lambda device: {"max_shared_mem": 232448},
        ),
    )
)
knobs.runtime.jit_post_compile_hook = lambda **options: compiled.append(options["key"])
x_TI = torch.randn(5, 512).bfloat16()
weight_OI = torch.randn(128, 512).bfloat16()
tiles = [Tile(64, 16, 128, 4, 3), Tile(64, 16, 128, 4, 4, by_copy_engine=True)]


def run(tile):
    gemm.product(x_TI, weight_OI, tile=tile, pdl=True)


def compile_it(tile):
    with compiling():
        run(tile)


with ThreadPoolExecutor(2) as pool:
    list(pool.map(compile_it, tiles))
assert len(set(compiled)) == 2, compiled
assert not loaded and not launched
for _ in range(2):
    for tile in tiles:
        run(tile)
assert len(set(compiled)) == 2, compiled
assert len(loaded) == 2 and launched == ["product_kernel"] * 4, (loaded, launched)
print("as compiled")
"""


def test_threads_compile_what_is_launched_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=False,
        capture_output=True,
        text=True,
        env=without_interpreter(),
        timeout=300,
    )
    assert done.stdout.strip() == "as compiled", done.stderr
