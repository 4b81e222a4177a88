"""Commands of another package: looked up when they are asked for, and said where they come from."""

from __future__ import annotations

import pytest
import typer

from eyas.cli.errors import report
from eyas.cli.installed import InstalledGroup


def run(name: str, *arguments: str) -> int:
    """The exit status of a command line with such a group."""
    app = typer.Typer()
    app.add_typer(typer.Typer(cls=InstalledGroup), name=name, help="Of another package.")
    app.command("own")(lambda: None)
    try:
        return int(typer.main.get_command(app)([name, *arguments], standalone_mode=False) or 0)
    except Exception as error:
        return report(error)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["decode", "--batch", "1"]])
def test_a_package_that_is_not_here_is_named_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("birds", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: birds: is not installed here")
    assert "eyas-birds" in line and "pip install" in line


def test_a_package_that_is_here_brings_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "decode", "--help") == 0
    assert "--batch" in capsys.readouterr().out
