"""Loading streams: peak memory stays below the model, its largest tensor and 200 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

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
def test_peak_memory_is_the_model_and_its_largest_tensor(tmp_path: Path) -> None:
    vocab, hidden, inner, layers = 8192, 1024, 4096, 8
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
    sizes: list[int] = []
    weight_map: dict[str, str] = {}

    def write(file_name: str, shapes: dict[str, tuple[int, ...]]) -> None:
        tensors = {
            name: torch.empty(s, dtype=torch.bfloat16).fill_(0.01) for name, s in shapes.items()
        }
        save_file(tensors, tmp_path / file_name)
        weight_map.update(dict.fromkeys(tensors, file_name))
        sizes.extend(tensor.nbytes for tensor in tensors.values())

    top = {
        "model.embed_tokens": (vocab, hidden),
        "lm_head": (vocab, hidden),
        "model.norm": (hidden,),
    }
    write("top.safetensors", {f"{name}.weight": shape for name, shape in top.items()})
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {
            **{f"self_attn.{part}_proj": (hidden, hidden) for part in "qkvo"},
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        named = {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
        write(f"layer{layer}.safetensors", named)
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sum(sizes) > 280e6
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    peak, _ = map(int, result.stdout.split())
    head_in_float32 = 2 * vocab * hidden
    model_bytes = sum(sizes) + head_in_float32
    print(f"model {model_bytes / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
    assert peak <= model_bytes + max(sizes) + 200e6
