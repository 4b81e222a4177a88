"""Help is quick to show; that of `eyas` and `eyas serve` is pinned (`python -m tests.project.test_help`
writes it anew)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "eyas": [],
    "chat": ["chat"],
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
PINNED = ("eyas", "serve")
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


@pytest.mark.parametrize("name", PINNED)
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


ALL_HELP = """
import json, sys
from eyas.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["eyas", *arguments, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


@pytest.mark.parametrize("is_bench", [False, True])
def test_help_imports_nothing_heavy(is_bench: bool) -> None:
    """All commands in one process, and those of the benches in another."""
    asked = [words for name, words in COMMANDS.items() if name.startswith("bench") == is_bench]
    done = run_python("-c", ALL_HELP, json.dumps(asked))
    assert done.stdout.count("Usage: ") == len(asked)
    of_bench = [module for module in assert_light(done) if module.startswith("eyas_bench.")]
    assert bool(of_bench) == is_bench


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(str(Path(sys.executable).with_name("eyas")), *arguments, **environment)


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def assert_light(done: subprocess.CompletedProcess[str]) -> set[str]:
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported and imported.isdisjoint(HEAVY)
    return imported


def test_eyas_alone_names_commands_to_begin_with() -> None:
    done = run()
    assert_light(done)
    named = re.findall(r"^ *eyas (\w+)", done.stdout, re.MULTILINE)
    assert named and set(named) <= COMMANDS.keys()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("eyas ser", "serve"),
        ("eyas serve --metrics-n", "--metrics-names"),
        ("eyas bench dec", "decode"),
        ("eyas serve --log-format j", "json"),
    ],
)
def test_a_shell_completes_what_is_begun(words: str, found: str) -> None:
    place = str(len(words.split()) - 1)
    done = run(_EYAS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert done.stdout.split() == [found]
    assert_light(done)


def test_the_script_of_a_shell_is_shown() -> None:
    shown = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete -o default -F _eyas_completion eyas" in shown.stdout


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in PINNED:
        (GOLDEN / f"{each}.txt").write_text(help_text(each))
