"""A server that listens at a Unix socket."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from eyas.server.process.socket_file import SocketFile
from tests.server.test_launch import Served, served

BODY = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short enough for a socket."""
    return tmp_path_factory.mktemp("u") / "eyas.sock"


@contextmanager
def client_of(server: Served, place: Path) -> Iterator[httpx.Client]:
    """Once the server is ready."""
    while not any(f"listening on unix:{place};" in line for line in server.log):
        assert server.process.poll() is None, "".join(server.log)
        time.sleep(0.02)
    transport = httpx.HTTPTransport(uds=str(place))
    with httpx.Client(transport=transport, base_url="http://eyas", timeout=60) as client:
        while True:
            assert server.process.poll() is None, "".join(server.log)
            if client.get("/ready").status_code == 200:
                break
            time.sleep(0.02)
        yield client


def test_everything_works_over_a_unix_socket(directory: Path, place: Path) -> None:
    with served(directory, f"uds={place}") as server:
        with client_of(server, place) as client:
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
            whole = client.post("/v1/chat/completions", json=BODY)
            assert whole.status_code == 200, whole.text
            with client.stream(
                "POST", "/v1/chat/completions", json={**BODY, "stream": True}
            ) as answer:
                lines = [line for line in answer.iter_lines() if line]
            assert lines[-1] == "data: [DONE]" and len(lines) > 2
            assert "eyas_" in client.get("/metrics").text
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert list(place.parent.iterdir()) == []


def test_names_of_others_and_pages_are_refused_there_too(directory: Path, place: Path) -> None:
    with served(directory, f"uds={place}") as server, client_of(server, place) as client:
        for host, status in (
            ("localhost", 200),
            ("localhost:80", 200),
            ("unix", 200),
            ("127.0.0.1", 200),
            ("evil.example", 403),
            ("evil.", 403),
        ):
            assert client.get("/v1/models", headers={"host": host}).status_code == status, host
        page = {"origin": "http://evil.example"}
        assert client.post("/v1/chat/completions", json=BODY, headers=page).status_code == 403


def test_what_a_killed_server_left_is_taken_over(directory: Path, place: Path) -> None:
    with served(directory, f"uds={place}") as server:
        with client_of(server, place):
            pass
        server.process.kill()
        server.process.wait(60)
    assert place.exists()
    with served(directory, f"uds={place}") as server:
        with client_of(server, place) as client:
            assert client.get("/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert list(place.parent.iterdir()) == []


def test_a_socket_in_use_is_left_alone(place: Path) -> None:
    with SocketFile(str(place)) as listener:
        with (
            pytest.raises(ValueError, match="uds: another server listens at"),
            SocketFile(str(place)),
        ):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            listener.accept()[0].close()
    assert list(place.parent.iterdir()) == []


def test_a_socket_of_another_program_is_left_alone(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place))
        other.listen()
        with pytest.raises(ValueError, match="uds: something else listens at"):
            SocketFile(str(place)).__enter__()
        assert place.exists()


def test_what_is_no_socket_is_left_alone(place: Path) -> None:
    place.write_text("mine")
    with pytest.raises(ValueError, match=r"uds: .* exists and is not a socket"):
        SocketFile(str(place)).__enter__()
    assert place.read_text() == "mine"
    assert [each.name for each in place.parent.iterdir()] == [place.name]


def test_a_place_where_no_socket_can_be_is_named(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none" / "s", "No such file"),
        (tmp_path / ("x" * 120), "too long"),
    ):
        with pytest.raises(ValueError, match=f"uds: .*{words}"):
            SocketFile(str(path)).__enter__()


def test_only_our_own_socket_is_removed_at_the_end(place: Path) -> None:
    with SocketFile(str(place)):
        os.unlink(place)
        place.write_text("somebody else's")
    assert place.read_text() == "somebody else's"
