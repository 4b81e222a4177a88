"""The annotations of the installed package, as mypy and pyright read them (basedpyright is pyright's
checker with its Node.js in a wheel)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("offline_api.py")
COMMANDS = {
    "mypy": ("mypy", "--strict", "--follow-imports=silent", "--cache-dir", "{cache}"),
    "pyright": ("basedpyright", "--level", "error", "--pythonpath", sys.executable),
}


def checked(name: str, file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    module, *options = COMMANDS[name]
    command = [option.format(cache=cache) for option in options]
    return subprocess.run(
        [sys.executable, "-m", module, *command, str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=file.parent,
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_output_types_are_known_to_checkers(name: str, tmp_path: Path) -> None:
    done = checked(name, SAMPLE, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_checker_sees_a_wrong_use(name: str, tmp_path: Path) -> None:
    wrong = SAMPLE.read_text().replace(
        "assert_type(llm.chat(one, output=Place), Place)",
        "assert_type(llm.chat(one, output=Place), Person)",
    )
    file = tmp_path / "wrong_use.py"
    file.write_text(wrong)
    done = checked(name, file, tmp_path / "cache")
    assert done.returncode == 1
    assert "Place" in done.stdout
    assert "Person" in done.stdout
