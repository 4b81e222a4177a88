"""Run every measurement that the documents quote, and write benchmarks/results/NAME.json.

`python benchmarks/run.py [NAME...]`; `make bench` runs all that need no GPU, `--gpu` those that
need an H200 (--results FOLDER: where to write). A result includes its command. Measurements that
need files outside of the repository are skipped without them: TOKENIZER is a directory with a
tokenizer of at most 151,936 tokens, such as Qwen3's (--tokenizer FOLDER), SCHEMAS one with schemas of
JSONSchemaBench, or with those that `benchmarks/draw_schemas.py` writes (--schemas FOLDER).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from eyas.children import python_command

RESULTS = Path("benchmarks/results")
TASKS = ("--workload", "tasks", "--max-tokens", "256")
"""Held-out tasks of the built-in model's families; answers end at end-of-text."""
AUTO = ("bench", "decode", *TASKS, "--drafter", "auto", "--batch", "1,2,4,8,16", "--repeats", "21")
HEAD = ("bench", "decode", *TASKS, "--drafter", "head", "--draft-steps", "5", "--batch", "1")
ROUNDS = ("--num-prompts", "13", "--repeats", "10")
TREE, CHAIN = (
    ("--draft-topk", "4", "--draft-nodes", "16"),
    ("--draft-topk", "1", "--draft-nodes", "6"),
)
COMMANDS: dict[str, list[str]] = {
    "decode_cpu": [
        *("bench", "decode", "--batch", "1,8", "--workload", "chat"),
        *("--max-tokens", "128", "--repeats", "5", "--compare", "transformers"),
    ],
    "decode_random": [
        *("bench", "decode", "--batch", "1,8", "--workload", "random"),
        *("--prompt-tokens", "128", "--max-tokens", "128", "--repeats", "5"),
        *("--compare", "transformers"),
    ],
    "ngram_copy": [
        *("bench", "decode", "--batch", "1", "--workload", "copy", "--stop-at-eos"),
        *("--num-prompts", "3", "--repeats", "7"),
        *("--drafter", "ngram", "--draft-steps", "8", "--draft-nodes", "9"),
    ],
    "ngram_chat": [
        *("bench", "decode", "--batch", "1,8", "--workload", "chat", "--stop-at-eos"),
        *("--num-prompts", "8", "--repeats", "5"),
        *("--drafter", "ngram", "--draft-steps", "4", "--draft-nodes", "5"),
    ],
    "auto_together": [*AUTO],
    "auto_full": [*AUTO, "--refill"],
    "head_tree_greedy": [*HEAD, *TREE, *ROUNDS],
    "head_tree_sampled": [*HEAD, *TREE, *ROUNDS, "--temperature", "1"],
    "head_chain_greedy": [*HEAD, *CHAIN, *ROUNDS],
    "head_chain_sampled": [*HEAD, *CHAIN, *ROUNDS, "--temperature", "1"],
    "ranking": ["bench", "ranking"],
    "structured": [
        *("bench", "structured", "--num-prompts", "8", "--repeats", "6", "--max-tokens", "256"),
    ],
    "tune": [
        *("bench", "tune", *TASKS, "--steps", "3,5", "--topk", "1,2,4", "--nodes", "8,16"),
        *("--batch", "1,4,8", "--repeats", "5", "--plot", "docs/facts/tune.png"),
    ],
    "verify": ["verify", "builtin", "--num-prompts", "8", "--repeats", "5"],
    "builtin_answers": ["bench", "builtin", "--num-per-family", "50"],
    "grammar": ["bench", "grammar", "SCHEMAS", "--tokenizer", "TOKENIZER"],
    "serve_soak": [
        *("bench", "serve-soak", "--clients", "32", "--seconds", "600", "--drafter", "auto"),
    ],
}
"""Name of the result -> command."""
KILLS: dict[str, list[str]] = {
    "kills_ranks": ["benchmarks/ranks.py", "--kills", "20"],
    "kills_ray": ["benchmarks/replicas_ray.py", "--kills", "20"],
}
"""The same, run by name alone: processes that are killed under load. For "kills_ray" run this script
with the Python of an environment that has Ray (.venv-ray after `make ray`)."""
CHAIN_OF_5 = ("--draft-steps", "5", "--draft-topk", "1")
TREE_OF_32 = ("--draft-steps", "5", "--draft-topk", "8", "--draft-nodes", "32")
SHAPE = ("bench", "decode", "--shape", "llama-3.1-8b", "--dummy-weights", "--profile")
EAGLE3 = (*SHAPE, "--drafter", "eagle3", "--synthetic-acceptance", "3.52")
ON_GPU: dict[str, list[str]] = {
    "h200_plain": [*SHAPE, "--batch", "1,8,32"],
    "h200_chain": [*EAGLE3, *CHAIN_OF_5, "--batch", "1,8,32"],
    "h200_chain_alike": [*EAGLE3, "--synthetic-alike", *CHAIN_OF_5, "--batch", "32"],
    "h200_tree_32": [*EAGLE3, *TREE_OF_32, "--batch", "1,8"],
    "h200_tree_60": [
        *(*EAGLE3, "--draft-steps", "7", "--draft-topk", "10", "--draft-nodes", "60"),
        *("--batch", "1"),
    ],
}
"""The same, on one H200; each also runs with --no-exact (NAME_fast)."""
ON_GPU |= {f"{name}_fast": [*command, "--no-exact"] for name, command in ON_GPU.items()}
SHORT = ("--prompt-tokens", "128", "--max-tokens", "128", "--repeats", "3")
SIZES = ("--batch", "1,8,32,64")
ON_GPU |= {
    "h200_moe_plain": [
        *("bench", "decode", "--shape", "qwen3-30b-a3b", "--dummy-weights", *SIZES, *SHORT),
        *("--drafter", "root"),
    ],
    "h200_moe_chain": [
        *("bench", "decode", "--shape", "qwen3-30b-a3b", "--dummy-weights", *SIZES, *SHORT),
        *("--drafter", "eagle3", "--draft-steps", "3", "--draft-topk", "1", "--draft-nodes", "4"),
        *("--synthetic-acceptance", "2.5"),
    ],
}
PLAIN = ("bench", "decode", "--dummy-weights", "--drafter", "root", "--prompt-tokens", "128")
DENSE = (*PLAIN, "--shape", "llama-3.1-8b", "--max-tokens", "64")
ON_GPU |= {
    "h200_dense_bf16": [*DENSE, "--batch", "1,8,32,256", "--repeats", "2"],
    "h200_dense_fp8": [*DENSE, "--batch", "1,8,32", "--quantization", "fp8", "--repeats", "2"],
}
CHAIN_OF_3 = (
    *("--drafter", "head", "--draft-steps", "3", "--draft-topk", "1", "--draft-nodes", "4"),
    *("--synthetic-acceptance", "2.5"),
)
OTHER_KINDS: dict[str, tuple[str, ...]] = {
    "h200_moe_fp8": ("--shape", "qwen3-30b-a3b", "--quantization", "fp8"),
    "h200_gpt_oss_120b": ("--shape", "gpt-oss-120b", "--quantization", "mxfp4"),
    "h200_glm_air_fp8": ("--shape", "glm-4.5-air", "--quantization", "fp8-row"),
    "h200_qwen3_next_fp8": ("--shape", "qwen3-next-80b-a3b", "--quantization", "fp8"),
    "h200_v2_lite": ("--shape", "deepseek-v2-lite"),
    "h200_v3_cut_fp8": ("--shape", "deepseek-v3-6-layers", "--quantization", "fp8"),
    "h200_v4_cut_fp8": ("--shape", "deepseek-v4-4-layers", "--quantization", "fp8"),
}
"""Models with other kinds of layers than dense ones, whole and with few of their layers; each without
drafts, and with a chain of 3 (NAME_chain)."""


def _briefly(shape: tuple[str, ...], *drafting: str) -> list[str]:
    return [
        *("bench", "decode", "--dummy-weights", *shape, *SIZES, "--prompt-tokens", "128"),
        *("--max-tokens", "48", "--repeats", "1", *drafting),
    ]


ON_GPU |= {name: _briefly(shape, "--drafter", "root") for name, shape in OTHER_KINDS.items()}
ON_GPU |= {f"{name}_chain": _briefly(shape, *CHAIN_OF_3) for name, shape in OTHER_KINDS.items()}
LOAD = ("--num-requests", "400", "--prompt-tokens", "512", "--max-tokens", "256")
RATES = (
    *("bench", "serve", "--shape", "llama-3.1-8b", "--dummy-weights", "--num-requests", "500"),
    *("--prompt-tokens", "512", "--max-tokens", "256", "--rate", "4,8,16,32,48,64"),
)
ON_GPU |= {
    "h200_prefill": [*SHAPE[:-1], "--prefill", "8192", "--interfere", "16"],
    "h200_attention": ["benchmarks/attention.py"],
    "h200_exact": ["benchmarks/exact.py", "--rows", "100000"],
    "h200_schemas": [
        *("bench", "decode", "--shape", "qwen3-8b", "--dummy-weights", "--tokenizer", "TOKENIZER"),
        *("--schemas", "SCHEMAS", "--drafter", "eagle3", *CHAIN_OF_5),
        *("--synthetic-acceptance", "3.52", "--batch", "1,8,32", "--repeats", "1"),
    ],
    "h200_schemas_tree": [
        *("bench", "decode", "--shape", "qwen3-8b", "--dummy-weights", "--tokenizer", "TOKENIZER"),
        *("--schemas", "SCHEMAS", "--drafter", "eagle3", *TREE_OF_32),
        *("--synthetic-acceptance", "3.52", "--batch", "1,8", "--repeats", "1"),
    ],
    "h200_serve": [
        *("bench", "serve", "--shape", "llama-3.1-8b", "--dummy-weights", *LOAD, "--rate", "24"),
        *("--drafter", "eagle3", *CHAIN_OF_5, "--synthetic-acceptance", "3.52"),
    ],
    "h200_rates": [*RATES, "--drafter", "eagle3", *CHAIN_OF_5, "--synthetic-acceptance", "3.52"],
    "h200_rates_plain": [*RATES, "--drafter", "root"],
    "h200_serve_http": [
        *("benchmarks/serve_http.py", "--rounds", "1", "--rate", "48", "--num-requests", "500"),
        *("--prompt-tokens", "512", "--max-tokens", "256"),
    ],
    "h200_serve_schemas": [
        *("bench", "serve", "--shape", "qwen3-8b", "--dummy-weights", *LOAD, "--rate", "12"),
        *("--tokenizer", "TOKENIZER", "--schemas", "SCHEMAS", "--drafter", "eagle3", *CHAIN_OF_5),
    ],
}
ALL = COMMANDS | KILLS | ON_GPU


def as_text(name: str) -> str:
    """Return the command of a measurement without its output, as results include it."""
    command = ALL[name]
    return " ".join(command if command[0].endswith(".py") else ["eyas", *command])


def as_arguments(name: str, folders: Mapping[str, Path | None], output: Path) -> list[str] | None:
    """Return the arguments of a measurement; None where a directory that it needs was not given."""
    command = ALL[name]
    if any(folders.get(word, word) is None for word in command):
        return None
    words = [*(str(folders.get(word, word)) for word in command), "--output", str(output)]
    is_script = command[0].endswith(".py")
    return [sys.executable, *words] if is_script else python_command("eyas", *words)


def main(arguments: list[str]) -> int:
    """Run the named measurements, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--gpu", action="store_true", help="all that need an H200")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--schemas", type=Path)
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(ALL):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    folders = {"TOKENIZER": chosen.tokenizer, "SCHEMAS": chosen.schemas}
    status = 0
    for name in chosen.names or (ON_GPU if chosen.gpu else COMMANDS):
        command = as_arguments(name, folders, chosen.results / f"{name}.json")
        if command is None:
            print(f"{name}: left out, it needs --tokenizer and --schemas", flush=True)
            status |= name in chosen.names
            continue
        print(f"{name}: {as_text(name)}", flush=True)
        status |= subprocess.run(command, check=False).returncode
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
