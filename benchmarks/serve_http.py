"""What HTTP costs: one open load on `eyas serve`, and on the same engine in the benchmark's process.

`python benchmarks/serve_http.py --output FILE` writes a checkpoint with random weights of the
Llama-3.1-8B shape to a temporary folder, with a tokenizer of as many ids, and measures both in turns.
`--tiny` takes a shape for which a CPU is fast enough. Options that this script does not have go to
`eyas bench serve`, for example `--rate 48`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from eyas.children import python_command
from eyas.models import ModelSpec
from eyas.verify.machine import describe_run, write_result
from eyas_bench.shapes import SHAPES
from replicas import free_port, wait_for

NUM_SPECIAL = 256
LOAD_SECONDS = 600


def config_of(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """Return the config.json of a Llama model of these sizes, with the last ids as special tokens."""
    first_special = spec.vocab_size - NUM_SPECIAL
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_query_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope.theta,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": first_special,
        "eos_token_id": first_special + 1,
        "torch_dtype": dtype,
    }


LLAMA_8B = config_of(SHAPES["llama-3.1-8b"].model, "bfloat16")
TINY = config_of(replace(SHAPES["tiny"].model, vocab_size=2048), "float32")


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """Write a model with random weights, one file for each layer, as checkpoints are laid out."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    files = [
        {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        for index in range(config["num_hidden_layers"])
    ]
    vocabulary = (config["vocab_size"], hidden)
    others = {"model.embed_tokens": vocabulary, "lm_head": vocabulary, "model.norm": (hidden,)}
    files.append({f"{name}.weight": shape for name, shape in others.items()})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, config["torch_dtype"])
    generator = torch.Generator(device).manual_seed(0)
    where: dict[str, str] = {}
    for number, shapes in enumerate(files):
        tensors = {}
        for name, shape in shapes.items():
            drawn = torch.ones(shape, dtype=dtype, device=device)
            if len(shape) > 1:
                drawn.normal_(std=shape[1] ** -0.5, generator=generator)
            tensors[name] = drawn.cpu()
        file = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config["vocab_size"])


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level BPE whose tokens are a byte, or two or three printable characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [chr(code) for code in range(33, 127)]
    tokens = {letter: index for index, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    pairs = list(product(printable, printable))
    triples = ((first + second, third) for (first, second), third in product(pairs, printable))
    room = vocab_size - NUM_SPECIAL - len(tokens)
    for left, right in islice((*pairs, *islice(triples, room)), room):
        tokens[left + right] = len(tokens)
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(tokens, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<special_{index}>" for index in range(NUM_SPECIAL)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """Run `eyas serve` and give its URL. RuntimeError: it does not start."""
    port = free_port()
    options = ("--drafter", "root", "--log-level", "warning")
    command = python_command("eyas", "serve", str(model), "--port", str(port), *options)
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/ready", process)
        yield url
    finally:
        process.terminate()
        process.wait()


def measure(target: tuple[str, ...], load: list[str], output: Path) -> dict[str, Any]:
    """Run `eyas bench serve` and return the result that it wrote."""
    command = python_command("eyas", "bench", "serve", *target, *load, "--output", str(output))
    subprocess.run(command, check=True, timeout=LOAD_SECONDS)
    return json.loads(output.read_text())["results"][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a shape for a CPU")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path)
    given, load = parser.parse_known_args()
    config = TINY if given.tiny else LLAMA_8B
    found: dict[str, list[dict[str, Any]]] = {"http": [], "in_process": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        write_checkpoint(folder, config)
        output = Path(temporary) / "result.json"
        ids = ("--vocab-size", str(config["vocab_size"] - NUM_SPECIAL))
        for _ in range(given.rounds):
            with serving(folder) as url:
                measure(("--url", url, *ids), load, output)  # warms up, as the other does by itself
                found["http"].append(measure(("--url", url, *ids), load, output))
            alone = ("--model", str(folder), "--drafter", "root")
            found["in_process"].append(measure(alone, load, output))
    summary: dict[str, Any] = {}
    for name in ("goodput_per_second", "ended_per_second", "output_tokens_per_second"):
        values = {kind: median(one[name] for one in runs) for kind, runs in found.items()}
        within = values["in_process"]
        summary[name] = {**values, "ratio": round(values["http"] / within, 4) if within else None}
        print(name, summary[name], flush=True)
    if given.output is not None:
        about = describe_run(["benchmarks/serve_http.py", *sys.argv[1:]])
        last = found["http"][-1]
        write_result({**about, "summary": summary, "results": [last], "runs": found}, given.output)


if __name__ == "__main__":
    main()
