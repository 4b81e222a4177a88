"""Loading streams: peak memory stays below the model, its largest tensor and 200 MB.

So do quantised weights: their values are never in memory as a whole beside the model.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from .quantised import FP8_BLOCKS, weights

Stored = dict[str, torch.Tensor]
FORMATS: dict[str, tuple[dict[str, object], Callable[[int, int], Stored]]] = {
    "bfloat16": ({}, lambda rows, columns: {"weight": constant(rows, columns, torch.bfloat16)}),
    "fp8": (
        {"quantization_config": FP8_BLOCKS},
        lambda rows, columns: {
            "weight": constant(rows, columns, torch.float8_e4m3fn),
            "weight_scale_inv": torch.ones(rows // 128, columns // 128),
        },
    ),
    "int4": (
        {"quantization_config": weights("int", 4, "group", group_size=128)},
        lambda rows, columns: {
            "weight_packed": torch.full((rows, columns // 8), 0x12345678, dtype=torch.int32),
            "weight_scale": constant(rows, columns // 128, torch.bfloat16),
        },
    ),
}


def constant(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((rows, columns), 0.01).to(dtype)


MEASURE = """
import resource, sys, threading, time
import torch
from eyas.models import load_model

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
x = torch.zeros(2, 64, dtype=torch.bfloat16)
torch.nn.functional.linear(x, torch.zeros(64, 64, dtype=torch.bfloat16))
before, peak, done = resident(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, resident())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
decoder = load_model(sys.argv[1], dtype="bfloat16", max_model_len=64)
done = True
watcher.join()
print(peak - before, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", FORMATS)
def test_peak_memory_is_the_model_and_its_largest_tensor(name: str, tmp_path: Path) -> None:
    changes, store = FORMATS[name]
    vocab, hidden, layers = 8192, 1024, 8
    inner = {"bfloat16": 4096, "fp8": 32768, "int4": 32768}[name]
    if name != "bfloat16":
        layers = 1  # a few tensors much larger than what is decoded at a time
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=8,
        max_position_embeddings=64,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    sizes: list[int] = []
    weight_map: dict[str, str] = {}

    def write(file_name: str, tensors: Stored) -> None:
        save_file(tensors, tmp_path / file_name)
        weight_map.update(dict.fromkeys(tensors, file_name))

    def plain(name: str, *shape: int) -> Stored:
        sizes.append(2 * math.prod(shape))
        return {f"{name}.weight": torch.full(shape, 0.01, dtype=torch.bfloat16)}

    def stored(name: str, rows: int, columns: int) -> Stored:
        sizes.append(2 * rows * columns)
        return {f"{name}.{piece}": part for piece, part in store(rows, columns).items()}

    embedding = plain("model.embed_tokens", vocab, hidden)
    head, norm = plain("lm_head", vocab, hidden), plain("model.norm", hidden)
    write("top.safetensors", {**embedding, **head, **norm})
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors = plain(f"{prefix}.input_layernorm", hidden)
        tensors |= plain(f"{prefix}.post_attention_layernorm", hidden)
        for part in "qkvo":
            tensors |= stored(f"{prefix}.self_attn.{part}_proj", hidden, hidden)
        for part in ("gate", "up"):
            tensors |= stored(f"{prefix}.mlp.{part}_proj", inner, hidden)
        tensors |= stored(f"{prefix}.mlp.down_proj", hidden, inner)
        write(f"layer{layer}.safetensors", tensors)
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sum(sizes) > 240e6
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    peak, _ = map(int, result.stdout.split())
    head_in_float32 = 2 * vocab * hidden
    model_bytes = sum(sizes) + head_in_float32
    print(f"model {model_bytes / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
    assert peak <= model_bytes + max(sizes) + 200e6
