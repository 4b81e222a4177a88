"""Loading takes the memory of the model and of its largest tensor.

So do quantised weights: their values are computed piece by piece.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from .quantised import FP8_BLOCKS, weights
from .tiny import make_model, save_model

Stored = dict[str, torch.Tensor]


def constant(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.01, dtype=torch.bfloat16)


def fp8(name: str, rows: int, columns: int) -> Stored:
    return {
        name: constant(rows, columns).to(torch.float8_e4m3fn),
        f"{name}_scale_inv": torch.ones(rows // 128, columns // 128),
    }


def int4(name: str, rows: int, columns: int) -> Stored:
    return {
        f"{name}_packed": torch.full((rows, columns // 8), 0x12345678, dtype=torch.int32),
        f"{name}_scale": constant(rows, columns // 128),
    }


VOCAB, HIDDEN, EXPERTS = 8192, 1024, 8
ATTENTION = {f"self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}


def llama(inner: int) -> dict[str, tuple[int, ...]]:
    return {
        "mlp.gate_proj.weight": (inner, HIDDEN),
        "mlp.up_proj.weight": (inner, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, inner),
    }


def gpt_oss(inner: int) -> dict[str, tuple[int, ...]]:
    """All experts of a layer in one tensor."""
    return {
        "self_attn.sinks": (8,),
        "mlp.router.weight": (EXPERTS, HIDDEN),
        "mlp.router.bias": (EXPERTS,),
        "mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * inner),
        "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * inner),
        "mlp.experts.down_proj": (EXPERTS, inner, HIDDEN),
        "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
    }


@dataclass(frozen=True)
class Files:
    """block: shapes of a layer's feed-forward block. store: how the matrices of layers are stored.
    dtype: what they are loaded as. slack: bytes that may be held beside the model and its largest
    tensor, fewer than a second copy of the model would take."""

    block: Callable[[int], dict[str, tuple[int, ...]]]
    inner: int
    layers: int = 4
    family: str = "Llama"
    fields: dict[str, Any] = field(default_factory=dict)
    store: Callable[[str, int, int], Stored] | None = None
    dtype: str = "bfloat16"
    slack: float = 60e6


CASES = {
    "bfloat16": Files(llama, 4096),
    "float32": Files(
        llama, 4096, 2, dtype="float32"
    ),  # which every processor packs for its products
    "packed experts": Files(
        gpt_oss, 512, 4, "GptOss", {"num_local_experts": EXPERTS, "attention_bias": False}
    ),
    # a few tensors much larger than what is decoded at a time
    "fp8": Files(
        llama, 32768, 1, fields={"quantization_config": FP8_BLOCKS}, store=fp8, slack=130e6
    ),
    "int4": Files(
        llama,
        32768,
        1,
        fields={"quantization_config": weights("int", 4, "group", group_size=128)},
        store=int4,
        slack=130e6,
    ),
}

MEASURE = """
import os, resource, sys, threading, time
import torch
from eyas.models import load_model

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
small, *cases = sys.argv[1:]
for case in cases:  # each in a process that has loaded nothing
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        break
else:
    sys.exit()
dtype, _, directory = case.partition(":")
# what libraries take for themselves at their first use
load_model(small, dtype=dtype, max_model_len=64)
before, peak, done = resident(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, resident())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
decoder = load_model(directory, dtype=dtype, max_model_len=64)
done = True
watcher.join()
print(peak - before)
"""


def write_model(files: Files, directory: Path) -> list[int]:
    """Write a checkpoint. Returns the bytes of each tensor once it is loaded."""
    config = getattr(transformers, f"{files.family}Config")(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=files.inner,
        num_hidden_layers=files.layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=HIDDEN // 8,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        architectures=[f"{files.family}ForCausalLM"],
    )
    config.save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **files.fields}))
    sizes: list[int] = []
    weight_map: dict[str, str] = {}

    def write(file_name: str, prefix: str, shapes: dict[str, tuple[int, ...]]) -> None:
        tensors: Stored = {}
        for part, shape in shapes.items():
            sizes.append(getattr(torch, files.dtype).itemsize * math.prod(shape))
            if files.store is not None and part.endswith("_proj.weight"):
                tensors |= files.store(prefix + part, *shape)
            else:
                tensors[prefix + part] = constant(*shape)
        save_file(tensors, directory / file_name)
        weight_map.update(dict.fromkeys(tensors, file_name))

    matrices = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    write("top.safetensors", "", {**matrices, "model.norm.weight": (HIDDEN,)})
    norms = {f"{part}_layernorm.weight": (HIDDEN,) for part in ("input", "post_attention")}
    for layer in range(files.layers):
        shapes = {**ATTENTION, **files.block(files.inner), **norms}
        write(f"layer{layer}.safetensors", f"model.layers.{layer}.", shapes)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sum(sizes) > files.slack + max(sizes)
    return sizes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_the_model_and_its_largest_tensor(tmp_path: Path) -> None:
    sizes = {name: write_model(files, tmp_path / name) for name, files in CASES.items()}
    cases = [f"{files.dtype}:{tmp_path / name}" for name, files in CASES.items()]
    small = save_model(make_model("qwen3"), tmp_path / "small")
    command = [sys.executable, "-c", MEASURE, str(small), *cases]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    head_in_float32 = 2 * VOCAB * HIDDEN
    for (name, each), peak in zip(sizes.items(), map(int, result.stdout.split()), strict=True):
        model_bytes = sum(each) + head_in_float32
        print(f"{name}: model {model_bytes / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
        assert peak <= model_bytes + max(each) + CASES[name].slack, name
