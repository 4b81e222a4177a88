"""Child processes compile the kernels that are launched later, and find their keys.

Runs in processes of their own, because one in which kernels are interpreted cannot compile them. A
driver that is none stands for the device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.kernels.hopper import without_interpreter

pytest.importorskip("triton")

SCRIPT = """
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from eyas.kernels import ahead, gemm, norm
from eyas.kernels.ahead import CompiledMark, CompileProcesses, collecting, settle_cache_keys
from eyas.kernels.tiles import Tile

launched, was_cached = [], []


class Launcher:
    def __init__(self, src, metadata):
        pass

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
knobs.compilation.listener = lambda **told: was_cached.append(told["cache_hit"])
x_TI = torch.randn(5, 512).bfloat16()
weight_OI = torch.randn(128, 512).bfloat16()
settle_cache_keys()


def run():
    gemm.product(x_TI, weight_OI, tile=Tile(64, 16, 128, 4, 3), pdl=True)
    gemm.product(x_TI, weight_OI, tile=Tile(64, 16, 128, 4, 4, by_copy_engine=True), pdl=True)
    norm.norm(x_TI, None, 1e-5, pdl=True)


def listed():
    specs = []
    with collecting(specs.append):
        run()
        run()
        filled = [torch.empty(3), torch.empty_like(x_TI), x_TI.new_empty(2)]
        assert not any(each.any() for each in filled)
    return specs

"""

STEPS = """
ahead.IDLE_SECONDS = 0.05
specs = listed()
processes = CompileProcesses(1)
for spec in specs[1:]:
    processes.add(spec)
told = {"names": [spec.name for spec in specs], "num_compiled": processes.wait()}
told["left"] = [spec == specs[0] for spec in listed()]
while processes._children:
    time.sleep(0.01)  # it has nothing to do, and is ended
for spec in (replace(specs[0], module="os", name="system"), replace(specs[0], data="{}"), specs[0]):
    processes.add(spec)
told |= {"num_of_bad": processes.wait(), "left_later": len(listed()), "launched_before": len(launched)}
ahead.IDLE_SECONDS = 60
processes.start()
processes._kill()
processes.add(specs[0])  # to a process that has ended
told["num_of_killed"] = processes.wait()
run()
run()
mark = CompiledMark("a")
told["marks"] = [mark.is_set, mark.set(), CompiledMark("a").is_set, CompiledMark("b").is_set]
print(json.dumps(told | {"was_cached": was_cached, "launched": launched}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + STEPS],
        check=False,
        capture_output=True,
        text=True,
        env=without_interpreter() | {"TRITON_CACHE_DIR": cache},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KERNELS = ["product_kernel", "product_kernel", "add_norm_kernel"]


def test_children_compile_what_is_launched_later(told: dict[str, Any]) -> None:
    assert told["names"] == KERNELS, "each is listed once"
    assert told["num_compiled"] == 2 and told["left"] == [True]
    assert told["launched_before"] == 0, "nothing is launched while kernels are listed"
    assert told["was_cached"] == [True] * 3 and told["launched"] == KERNELS * 2


def test_what_a_child_cannot_compile_hurts_no_other_kernel(told: dict[str, Any]) -> None:
    assert told["num_of_bad"] == 1 and told["left_later"] == 0
    assert told["num_of_killed"] == 0


def test_a_mark_tells_what_was_compiled(told: dict[str, Any]) -> None:
    assert told["marks"] == [False, None, True, False]


KEYS = """
import sys
from eyas.kernels.ahead import settle_cache_keys
for name in sys.argv[1:]:
    __import__(f"eyas.kernels.{name}")
settle_cache_keys()
from eyas.kernels.attention import attend_splits_kernel
print(attend_splits_kernel.cache_key)
"""


def test_keys_do_not_depend_on_the_order_of_imports() -> None:
    keys = {
        subprocess.run(
            [sys.executable, "-c", KEYS, *first],
            check=True,
            capture_output=True,
            text=True,
            env=without_interpreter(),
        ).stdout
        for first in ((), ("attention_prefill", "gemm"))
    }
    assert len(keys) == 1
