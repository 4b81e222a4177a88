"""Runs every measurement that the documents quote and writes benchmarks/results/NAME.json.

`python benchmarks/run.py [NAME...]`; `make bench` runs all that need no GPU, `--gpu` those that need
an H200 (--results FOLDER: write there). A result says which command made it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path("benchmarks/results")
TASKS = ("--workload", "tasks", "--max-tokens", "256")
"""Held-out tasks of the built-in model's kinds; answers end by themselves."""
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
    "serve_soak": [
        *("bench", "serve-soak", "--clients", "64", "--seconds", "120", "--drafter", "auto"),
    ],
}
"""By the name of its result."""
SHAPE = ("bench", "decode", "--shape", "llama-3.1-8b", "--dummy-weights", "--profile")
EAGLE3 = (*SHAPE, "--drafter", "eagle3", "--synthetic-acceptance")
ON_GPU: dict[str, list[str]] = {
    "h200_plain": [*SHAPE, "--batch", "1,8,32"],
    "h200_chain": [
        *(*EAGLE3, "3.52", "--draft-steps", "5", "--draft-topk", "1"),
        *("--batch", "1,8,32"),
    ],
    "h200_tree_32": [
        *(*EAGLE3, "4.0", "--draft-steps", "5", "--draft-topk", "8", "--draft-nodes", "32"),
        *("--batch", "1,8"),
    ],
    "h200_tree_60": [
        *(*EAGLE3, "4.0", "--draft-steps", "7", "--draft-topk", "10", "--draft-nodes", "60"),
        *("--batch", "1"),
    ],
}
"""The same, on one H200; each of them also with kernels that are fastest (NAME_fast)."""
ON_GPU |= {f"{name}_fast": [*command, "--no-exact"] for name, command in ON_GPU.items()}
ON_GPU["h200_prefill"] = [*SHAPE[:-1], "--prefill", "8192", "--interfere", "16"]


def main(arguments: list[str]) -> int:
    """Run the named measurements, or all of them."""
    known = COMMANDS | ON_GPU
    folder = RESULTS
    if "--results" in arguments:
        at = arguments.index("--results")
        folder = Path(arguments[at + 1])
        arguments = arguments[:at] + arguments[at + 2 :]
    usual = list(ON_GPU if "--gpu" in arguments else COMMANDS)
    names = [argument for argument in arguments if argument != "--gpu"]
    unknown = set(names) - set(known)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    status = 0
    for name in names or usual:
        output = folder / f"{name}.json"
        command = [sys.executable, "-m", "eyas", *known[name], "--output", str(output)]
        print(f"{name}: eyas {' '.join(command[3:])}", flush=True)
        status |= subprocess.run(command, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
