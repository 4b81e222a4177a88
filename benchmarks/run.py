"""Runs every measurement that the documents quote and writes benchmarks/results/NAME.json.

`python benchmarks/run.py [NAME...]`; `make bench` runs all. A result says which command made it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path("benchmarks/results")
COMMANDS: dict[str, list[str]] = {
    "decode_cpu": [
        *("decode", "--batch", "1,8", "--workload", "chat"),
        *("--max-tokens", "128", "--repeats", "5", "--compare", "transformers"),
    ],
    "decode_random": [
        *("decode", "--batch", "1,8", "--workload", "random"),
        *("--prompt-tokens", "128", "--max-tokens", "128", "--repeats", "5"),
        *("--compare", "transformers"),
    ],
    "ngram_copy": [
        *("decode", "--batch", "1", "--workload", "copy", "--stop-at-eos", "--repeats", "7"),
        *("--num-prompts", "3", "--drafter", "ngram", "--draft-tokens", "8"),
    ],
    "ngram_chat": [
        *("decode", "--batch", "1,8", "--workload", "chat", "--stop-at-eos"),
        *("--num-prompts", "8", "--repeats", "5", "--drafter", "ngram"),
    ],
    "builtin_answers": ["builtin", "--num-per-family", "50"],
    "serve_soak": ["serve-soak", "--clients", "64", "--seconds", "120"],
}


def main(names: list[str]) -> int:
    """Run the named measurements, or all of them."""
    unknown = set(names) - set(COMMANDS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
        return 2
    status = 0
    for name in names or list(COMMANDS):
        output = RESULTS / f"{name}.json"
        eyas = Path(sys.executable).with_name("eyas")
        command = [str(eyas), "bench", *COMMANDS[name], "--output", str(output)]
        print(f"{name}: eyas {' '.join(command[1:])}", flush=True)
        status |= subprocess.run(command, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
