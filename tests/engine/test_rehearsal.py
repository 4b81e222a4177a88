"""Steps of every kind of layer list their kernels without launching one.

Runs in a process of its own, because one in which kernels are interpreted cannot list them. A driver
that is none stands for the device, and its tensors are on the CPU, where torch checks every index that
a kernel would have written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.hopper import without_interpreter
from tests.laws.world import LAYERS, write_layers, write_model

pytest.importorskip("triton")

SCRIPT = """
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import eyas.kernels

eyas.kernels.usable = lambda device: True
eyas.kernels.has_warpgroups = lambda device: False

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

driver.set_active(
    SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
)

from eyas.attention import open_attention
from eyas.cache import KVStore
from eyas.config import EngineConfig, SchedulerConfig
from eyas.engine.startup import rehearsal
from eyas.engine.startup.drafting import Drafting
from eyas.engine.startup.load import Parts
from eyas.engine.startup.memory import EngineSizes
from eyas.kernels.ahead import collecting, is_collecting
from eyas.layers import linear
from eyas.layers.gemm import apply
from eyas.layers.gemm.products import Products
from eyas.layers.gemm.search import Search
from eyas.layers.row_order import RowOrder, RowOrderReport
from eyas.models import ModelFiles
from eyas.runner.runner import ModelRunner

CPU, BF16, NUM_SLOTS, LENGTH = torch.device("cpu"), torch.bfloat16, 600, 100


class Clock:
    def collect(self, product, variants):
        assert is_collecting() and variants


def logits(variant, x_TI, weight_OI, out_TO):
    # A CPU's library has no such product.
    return torch.zeros(len(x_TI), len(weight_OI)) if out_TO is None else out_TO.zero_()


def kernels_of(directory):
    products = Products(True, CPU, 128, Search(Clock(), None))
    order = RowOrderReport(RowOrder(products=products), True, "")
    files = ModelFiles.open(directory)
    specs = []
    with collecting(specs.append):
        model = files.load(dtype=BF16, device=CPU, max_model_len=LENGTH, order=order.order)
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=2, max_batch_tokens=64))
    kv = KVStore(files.spec.stores, NUM_SLOTS, dtype=BF16, device=CPU)
    runner = ModelRunner(model, open_attention(kv))
    parts = Parts(
        spec=files.spec,
        num_parameters=files.num_parameters,
        model=model,
        order=order,
        drafting=Drafting(("ngram",), config.draft),
        network=None,
        directory=None,
        tokenizer=None,
        eos_token_ids=(),
        dtype=BF16,
    )
    limits = config.scheduler.limits(on_gpu=True)
    sizes = EngineSizes(limits, files.spec, BF16, NUM_SLOTS, NUM_SLOTS, NUM_SLOTS, LENGTH, ())
    with collecting(specs.append):
        rehearsal._run_probe(parts, sizes, runner, 4)
        num_of_probe = len(specs)
        rehearsal._run_steps(parts, sizes, runner)
    assert not products._plans, "a plan was made of results that mean nothing"
    return sorted({spec.name for spec in specs}), num_of_probe, len(specs)


linear.pack_weight = lambda weight_OI: None
apply.logits = logits
found = {}
for directory in map(Path, sys.argv[1:]):
    found[directory.name] = kernels_of(directory)
print(json.dumps(found))
"""

ALL = {"node_rows_kernel", "product_kernel", "add_norm_kernel", "_walk_kernel", "find"}
SOME = {
    "dense": {"prompts_kernel", "attend_splits_kernel", "merge_splits_kernel"},
    "experts": {"route_kernel", "expert_product_kernel", "attend_splits_kernel"},
    "sinks and windows": {"route_kernel", "expert_product_kernel", "attend_splits_kernel"},
    "state": {"convolve_kernel", "state_lines_kernel", "gated_norm_kernel"},
    "latent": {"rotate_and_store_latent_kernel", "head_product_kernel"},
    "compressed": {"attend_entries_kernel", "choose_entries_kernel", "mix_streams_kernel"},
}


def test_steps_of_every_kind_of_layer_list_their_kernels(tmp_path: Path) -> None:
    directories = [write_model(tmp_path / "dense", seed=1, mixing=0.3)]
    directories += [write_layers(tmp_path / name, name) for name in LAYERS]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, directories)],
        check=False,
        capture_output=True,
        text=True,
        env=without_interpreter(),
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for layers, expected in SOME.items():
        names, num_of_probe, num = found[layers]
        assert (ALL | expected) <= set(names), layers
        assert 0 < num_of_probe < num, "steps with drafts have kernels of their own"
