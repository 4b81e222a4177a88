"""The annotations of the installed package, as mypy and pyright read them (basedpyright is pyright's
checker with its Node.js in a wheel)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.thorough import only_thorough

SAMPLE = Path(__file__).with_name("offline_api.py")
MYPY = """
[mypy]
strict = True
follow_imports = silent
[mypy-torch.*,numpy.*]
follow_imports = skip
"""
"""No type of the offline API is one of torch's, and mypy takes most of a minute to read torch."""
COMMANDS = {
    "mypy": ("mypy", "--config-file", "{folder}/mypy.ini", "--cache-dir", "{folder}/cache"),
    "pyright": ("basedpyright", "--level", "error", "--pythonpath", sys.executable),
}


@pytest.mark.parametrize("name", ["pyright", *only_thorough("mypy")])
def test_checkers_know_output_types_and_see_a_wrong_use(name: str, tmp_path: Path) -> None:
    """Both files in one run, since a checker spends its time on what they import."""
    wrong = SAMPLE.read_text().replace(
        "assert_type(llm.chat(one, output=Place), Place)",
        "assert_type(llm.chat(one, output=Place), Person)",
    )
    file = tmp_path / "wrong_use.py"
    file.write_text(wrong)
    module, *options = COMMANDS[name]
    (tmp_path / "mypy.ini").write_text(MYPY)
    command = [option.format(folder=tmp_path) for option in options]
    done = subprocess.run(
        [sys.executable, "-m", module, *command, str(SAMPLE), str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=SAMPLE.parent,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (error,) = [
        line for line in done.stdout.splitlines() if " error: " in line or " error - " in line
    ]
    assert file.name in error
    assert "Place" in error and "Person" in error
