"""Every group of a client has tests and locked versions, which `make clients` installs alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from run_clients import TESTS, TOO_LARGE, Client, clients, install, outcome

CLIENTS = clients((), Path("unused"))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_is_locked_with_what_its_tests_need(client: Client) -> None:
    assert client.tests.is_file() and client.version != "?"
    locked = client.lock.read_text()
    assert "\npytest==" in locked and not TOO_LARGE.search(locked)
    assert all("==" in line for line in locked.splitlines())


def test_no_test_and_no_lock_is_left_over() -> None:
    assert {file.name for file in TESTS.glob("test_*.py")} == {c.tests.name for c in CLIENTS}
    assert {file.name for file in TESTS.glob("locks/*")} == {c.lock.name for c in CLIENTS}


def test_a_client_without_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="no such client: another; there are openai, "):
        clients(["another"], Path("unused"))


def test_a_client_that_cannot_be_installed_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from concurrent.futures import Future

    broken = clients(["openai"], tmp_path)[0]
    monkeypatch.setattr("run_clients.make_environment", lambda client: None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    installed: Future[None] = Future()
    try:
        install(broken)
    except RuntimeError as error:
        installed.set_exception(error)
    assert outcome(broken, installed, {"--server-url": "http://unused"}) == "FAILED"
    assert "----- openai" in capsys.readouterr().out


def test_its_help_is_shown_without_work() -> None:
    tool = Path(__file__).parents[2] / "tools" / "run_clients.py"
    done = subprocess.run(
        [sys.executable, str(tool), "--help"], capture_output=True, text=True, check=True
    )
    assert "--lock" in done.stdout
