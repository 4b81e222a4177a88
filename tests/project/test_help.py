"""The options of every command are pinned: `python -m tests.project.test_help` writes them anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "eyas": [],
    "serve": ["serve"],
    "generate": ["generate"],
    "demo": ["demo"],
    "models": ["models"],
    "bench": ["bench"],
    "bench_decode": ["bench", "decode"],
    "bench_builtin": ["bench", "builtin"],
    "bench_serve": ["bench", "serve"],
    "bench_serve_soak": ["bench", "serve-soak"],
    "bench_tune": ["bench", "tune"],
    "bench_ranking": ["bench", "ranking"],
    "verify": ["verify"],
    "train": ["train"],
    "train_head": ["train", "head"],
}
ENVIRONMENT = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def help_text(name: str) -> str:
    eyas = Path(sys.executable).with_name("eyas")
    done = subprocess.run(
        [str(eyas), *COMMANDS[name], "--help"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_as_pinned(name: str) -> None:
    assert help_text(name) == (GOLDEN / f"{name}.txt").read_text()


HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "tokenizers",
    "starlette",
    "llguidance",
    "huggingface_hub",
)
"""What takes tenths of seconds to import, and help needs none of."""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_imports_nothing_heavy(name: str) -> None:
    eyas = Path(sys.executable).with_name("eyas")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(eyas), *COMMANDS[name], "--help"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert imported.isdisjoint(HEAVY)
    of_bench = [module for module in imported if module.startswith("eyas_bench.")]
    assert bool(of_bench) == name.startswith("bench")


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in COMMANDS:
        (GOLDEN / f"{each}.txt").write_text(help_text(each))
