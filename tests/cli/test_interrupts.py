"""Ctrl-C in a command: in the middle of an import it ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eyas import __main__ as entry
from eyas import cli

INTERRUPTED = """
import os, signal, sys
from eyas import __main__ as entry, cli

def command():
    try:
        import swallows
    except KeyboardInterrupt:
        print("interrupted")
    print("went on")

cli.main = command
entry.main()
"""
SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**9):
        pass
except KeyboardInterrupt:
    pass
"""


def run(folder: Path, code: str, *, is_ignored: bool = False) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_IGN if is_ignored else signal.SIG_DFL
        ),
    )


def test_an_import_that_is_interrupted_ends_the_process(tmp_path: Path) -> None:
    """A package that swallows the interrupt is left without the rest of its modules."""
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    done = run(tmp_path, INTERRUPTED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nAborted.\n")


def test_a_command_that_is_to_ignore_interrupts_does(tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS.replace("10**9", "10"))
    done = run(tmp_path, INTERRUPTED, is_ignored=True)
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_elsewhere_an_interrupt_is_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        entry._interrupt(signal.SIGINT, sys._getframe())


@pytest.mark.parametrize("flag", ["-p", "-v", "-O3", "-tp2"])
def test_short_options_that_there_are_not(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", flag])
    assert ended.value.code == 2
    assert f"No such option: {flag[:2]}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["serve"], ["generate"], ["train", "head"]])
def test_help_has_a_short_name(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for flag in ("-h", "--help"):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, flag])
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "Usage: eyas" in shown[0]
