"""The folder of the engine's socket: what a killed server left goes, everything else stays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyas.server.process.socket_folder import LOCK, MAX_PATH_BYTES, SOCKET, SocketFolder
from tests.server.test_launch import served


def folders(base: Path) -> set[str]:
    return {entry.name for entry in base.iterdir()}


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's, whoever runs the tests."""
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as path:
        yield Path(path)


def test_what_a_killed_server_left_goes_with_the_next_start(directory: Path, short: Path):
    before = ["env", f"TMPDIR={short}"]
    with served(directory, before=before) as killed, served(directory, before=before) as living:
        living.wait_until_ready()
        killed.wait_until_ready()
        assert len(folders(short)) == 2
        killed.process.kill()
        killed.process.wait(60)
        left = folders(short)
        assert len(left) == 2
        with served(directory, before=before) as third:
            third.wait_until_ready()
            now = folders(short)
            assert len(now) == 2 and len(now & left) == 1, "that of the living one stays"
        living.wait_until_ready()
        assert folders(short) == now & left
    assert folders(short) == set()


@pytest.fixture
def base(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = short / "tmp"
    base.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(base))
    return base


def abandoned(path: Path) -> Path:
    path.mkdir(mode=0o700)
    for name in (SOCKET, LOCK):
        (path / name).touch()
    return path


def test_only_folders_of_ours_that_nobody_holds_are_removed(base: Path, tmp_path: Path):
    abandoned(base / "eyas-abandoned")
    held = SocketFolder()
    assert folders(base) == {Path(held.path).name}
    (base / "eyas-notes").mkdir()
    (base / "eyas-notes" / "diary.txt").write_text("mine")
    (base / "eyas-file").write_text("mine")
    (abandoned(base / "eyas-more") / "diary.txt").write_text("mine")
    (base / "eyas-link").symlink_to(abandoned(tmp_path / "elsewhere"))
    lock_elsewhere = base / "eyas-lock-link"
    lock_elsewhere.mkdir()
    (lock_elsewhere / LOCK).symlink_to(tmp_path / "elsewhere" / LOCK)
    os.mkfifo(base / "eyas-fifo")
    abandoned(base / "other-name")
    before = folders(base)
    new = SocketFolder()
    assert folders(base) == before | {Path(new.path).name}
    assert folders(tmp_path / "elsewhere") == {SOCKET, LOCK}
    assert (base / "eyas-more" / "diary.txt").read_text() == "mine"
    assert os.stat(new.path).st_mode & 0o777 == 0o700
    for folder in (held, new, new):
        folder.remove()
    assert folders(base) == before - {Path(held.path).name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_folders_of_other_users_stay(base: Path):
    theirs = abandoned(base / "eyas-theirs")
    os.chown(theirs, 12345, -1)
    SocketFolder().remove()
    assert folders(base) == {"eyas-theirs"} and folders(theirs) == {SOCKET, LOCK}


def test_a_tmpdir_that_is_too_long_is_named_with_the_remedy(directory: Path, tmp_path: Path):
    long = tmp_path / ("x" * MAX_PATH_BYTES)
    long.mkdir()
    with served(directory, before=["env", f"TMPDIR={long}"]) as server:
        assert server.process.wait(60) == 1
    log = "".join(server.log)
    assert "TMPDIR" in log and "set TMPDIR to a shorter directory" in log
    assert "Traceback" not in log and "ZMQError" not in log
