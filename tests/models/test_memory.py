"""Loading streams: peak memory stays below the model, its largest tensor and 200 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

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


VOCAB, HIDDEN, LAYERS = 8192, 1024, 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": HIDDEN // 8,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
INNER, EXPERTS = 4096, 8
ATTENTION = {f"self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "Llama": (
        {"intermediate_size": INNER},
        {
            "mlp.gate_proj.weight": (INNER, HIDDEN),
            "mlp.up_proj.weight": (INNER, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INNER),
        },
    ),
    "GptOss": (  # all experts of a layer in one tensor
        {
            "intermediate_size": INNER // 8,
            "num_local_experts": EXPERTS,
            "attention_bias": False,
        },
        {
            "self_attn.sinks": (8,),
            "mlp.router.weight": (EXPERTS, HIDDEN),
            "mlp.router.bias": (EXPERTS,),
            "mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, INNER // 4),
            "mlp.experts.gate_up_proj_bias": (EXPERTS, INNER // 4),
            "mlp.experts.down_proj": (EXPERTS, INNER // 8, HIDDEN),
            "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
        },
    ),
}
"""Fields of the configuration, and shapes of a layer's tensors beside those of attention and norms."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("family", FAMILIES)
def test_peak_memory_is_the_model_and_its_largest_tensor(family: str, tmp_path: Path) -> None:
    fields, layer_shapes = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(
        **SIZES, **fields, architectures=[f"{family}ForCausalLM"]
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
        "model.embed_tokens": (VOCAB, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
        "model.norm": (HIDDEN,),
    }
    write("top.safetensors", {f"{name}.weight": shape for name, shape in top.items()})
    norms = {f"{part}_layernorm.weight": (HIDDEN,) for part in ("input", "post_attention")}
    for layer in range(LAYERS):
        shapes = {**ATTENTION, **layer_shapes, **norms}
        named = {f"model.layers.{layer}.{part}": shape for part, shape in shapes.items()}
        write(f"layer{layer}.safetensors", named)
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sum(sizes) > 280e6
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    peak, _ = map(int, result.stdout.split())
    head_in_float32 = 2 * VOCAB * HIDDEN
    model_bytes = sum(sizes) + head_in_float32
    print(f"model {model_bytes / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
    assert peak <= model_bytes + max(sizes) + 200e6
