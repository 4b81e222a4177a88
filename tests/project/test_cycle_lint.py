"""Circles of imports are found wherever the import stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint_cycles import find_cycle, main


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    "back",
    [
        "from {name}.room import a",
        "def later():\n    import {name}.room.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {name}.room import a",
    ],
)
def test_a_circle_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"circling{abs(hash(back))}"
    files = {"__init__.py": "", "room/__init__.py": "", "room/c.py": ""}
    files |= {"room/a.py": f"import {name}.room.b", "room/b.py": f"import {name}.room.c"}
    write(tmp_path / name, files)
    monkeypatch.chdir(tmp_path)  # what grimp keeps of a package
    monkeypatch.syspath_prepend(tmp_path)
    assert find_cycle(name) == [] and main([name]) == 0
    write(tmp_path / name, {"room/c.py": back.format(name=name)})
    assert sorted(set(find_cycle(name))) == [f"{name}.room.{each}" for each in "abc"]
    assert main([name]) == 1
    assert f"{name}.room.a <- " in capsys.readouterr().out
