"""The folder of files that later starts use again."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.user_cache import cache_folder


def test_the_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "eyas"
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere/below")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for platform, parts in (
        ("linux", (".cache",)),
        ("darwin", ("Library", "Caches")),
        ("win32", ("AppData", "Local")),
    ):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.delenv("LOCALAPPDATA", raising=False)
        assert cache_folder() == tmp_path.joinpath(*parts, "eyas")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "eyas"
