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
import subprocess
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from eyas.kernels import add_norm, ahead, gemm
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
    add_norm.norm(x_TI, None, 1e-5, pdl=True)


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
from dataclasses import astuple
ahead.IDLE_SECONDS = 0.05
specs = listed()
processes = CompileProcesses(1)
for spec in specs[1:]:
    processes.add(spec)
told = {"names": [spec.name for spec in specs], "first": astuple(processes.wait())}
told["left"] = [spec == specs[0] for spec in listed()]
while processes._children:
    time.sleep(0.01)  # it has nothing to do, and is ended
ahead.IDLE_SECONDS = 60
start, commands = ahead._start, ["true", None]


def start_another():
    command = commands.pop(0) if commands else None
    return start() if command is None else subprocess.Popen(
        [command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


ahead._start = start_another
for spec in (specs[0], replace(specs[0], module="os", name="system"), replace(specs[0], data="{}")):
    processes.add(spec)
processes.add(replace(specs[1], module="eyas.kernels.none"))
processes.add(specs[0])
told["bad"] = astuple(processes.wait())
told |= {"left_later": len(listed()), "launched_before": len(launched)}


def start_none():
    raise OSError("no more processes")


ahead._start = start_none
hopeless = CompileProcesses(1)
hopeless.add(specs[0])
told["hopeless"] = astuple(hopeless.wait())
processes._num = 2
waiting = threading.Thread(target=run)
with collecting(lambda spec: None):
    waiting.start()
    waiting.join(0.2)
    told["waits"] = waiting.is_alive() and not launched
waiting.join()
run()
mark = CompiledMark("a")
told["marks"] = [mark.is_set, mark.set(), CompiledMark("a").is_set, CompiledMark("b").is_set]
knobs.cache.dir = "/dev/null/none"
nowhere = CompiledMark("a")
told["unwritable"] = [nowhere.is_set, nowhere.set(), nowhere.is_set]
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
    assert told["first"] == [2, 0] and told["left"] == [True]
    assert told["launched_before"] == 0, "nothing is launched while kernels are listed"
    assert told["was_cached"] == [True] * 3 and told["launched"] == KERNELS * 2


def test_a_child_that_ends_and_bad_kernels_hurt_no_other(told: dict[str, Any]) -> None:
    assert told["bad"] == [1, 4], "one was given to a process that ends at once"
    assert told["left_later"] == 0


def test_a_start_goes_on_where_no_process_can_be_started(told: dict[str, Any]) -> None:
    assert told["hopeless"] == [0, 1]


def test_launches_of_other_threads_wait(told: dict[str, Any]) -> None:
    assert told["waits"]


def test_a_mark_tells_what_was_compiled(told: dict[str, Any]) -> None:
    assert told["marks"] == [False, None, True, False]
    assert told["unwritable"] == [False, None, False]


KEYS = """
import os
import sys
from importlib import import_module
import torch
import triton

if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0

from eyas.kernels.ahead import settle_cache_keys

settle_cache_keys()
keys = {}
for name in sys.argv[1:] if child else sys.argv[:0:-1]:
    module, kernel = name.split(":")
    keys[name] = getattr(import_module(f"eyas.kernels.{module}"), kernel).cache_key
print(sorted(keys.items()))
"""


def test_keys_do_not_depend_on_the_order_in_which_they_are_read() -> None:
    names = ["attention:attend_splits_kernel", "attention_prefill:prompts_kernel"]
    done = subprocess.run(
        [sys.executable, "-c", KEYS, *names],
        check=True,
        capture_output=True,
        text=True,
        env=without_interpreter(),
    )
    first, second = done.stdout.splitlines()
    assert first == second and all(name in first for name in names)
