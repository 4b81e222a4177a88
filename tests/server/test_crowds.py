"""Many connections and many requests: what is one too many is told so, and probes are always heard."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from eyas.server.options import ServerOptions
from eyas.server.process.launch import SPARE_FILES, fit_to_open_files
from tests.server.fakes import FakeClient, LiveServer, live_server
from tests.server.test_error_codes import held
from tests.server.test_launch import served
from tests.server.test_limits import BODY, CHAT, post_head, until

HALF_A_HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


def connect(server: LiveServer, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def crowd(
    server: LiveServer, new: Callable[[int], socket.socket], serve: Callable[[], None]
) -> None:
    """Far more connections than a server of 8 may have; whoever asks meanwhile is served."""
    with contextlib.ExitStack() as stack:
        idle = []
        for k in range(40):
            idle.append(stack.enter_context(new(k)))
            if k % 5 == 0:
                serve()
        assert until(lambda: sum(map(is_closed, idle)) >= 32)
        assert not any(map(is_closed, idle[-6:])), "the oldest go first"
        assert len(server.server.server_state.connections) <= 8


def test_idle_connections_never_keep_a_probe_out(directory: Path):
    with live_server(FakeClient(directory), max_connections=8, max_requests=4) as server:

        def probe() -> None:
            for path in ("/health", "/ready"):
                assert httpx.get(server.url + path).status_code == 200

        crowd(server, lambda k: connect(server, HALF_A_HEAD if k % 2 else b""), probe)


def test_a_connection_with_a_request_is_not_the_one_that_goes(directory: Path):
    client = FakeClient(directory)
    client.delay = 0.02
    with (
        live_server(client, max_connections=4, max_requests=2) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
        contextlib.ExitStack() as stack,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        for _ in range(20):
            stack.enter_context(connect(server))
        assert list(lines)[-2] == "data: [DONE]"
        assert http.get("/health").status_code == 200


def test_requests_beyond_their_limit_hear_so(directory: Path):
    client = FakeClient(directory)
    client.delay = 0.05
    with (
        live_server(client, max_connections=8, max_requests=2) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):
            stack.enter_context(http.stream("POST", CHAT, json={**BODY, "stream": True}))
        refused = http.post(CHAT, json=BODY)
        assert refused.status_code == 429 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "queue_full"
        for path in ("/health", "/ready", "/metrics"):
            assert http.get(path).status_code == 200
        client.delay = 0.0
        stack.close()
        assert until(lambda: http.post(CHAT, json=BODY).status_code == 200)


def test_a_crowd_that_comes_at_once_waits_to_be_prepared(directory: Path):
    """300 requests wait for the two threads that prepare them. At the limit the last in turn makes
    place for one that can be prepared sooner."""

    def ask(num_chars: int) -> socket.socket:
        body = json.dumps({**BODY, "messages": [{"role": "user", "content": "x" * num_chars}]})
        return stack.enter_context(connect(server, post_head(len(body)) + body.encode()))

    with (
        live_server(FakeClient(directory), max_requests=300) as server,
        contextlib.ExitStack() as stack,
    ):
        release = held(server)
        crowd = [ask(100) for _ in range(300)]
        assert until(lambda: server.service.prepare_pool.num_waiting == 300)
        sooner = ask(1)
        assert until(lambda: 'status="503"} 1.0' in httpx.get(f"{server.url}/metrics").text)
        release()
        assert sooner.recv(12) == b"HTTP/1.1 200"
        assert sorted(each.recv(12)[-3:] for each in crowd) == [b"200"] * 299 + [b"503"]


def test_a_request_whose_client_leaves_is_not_prepared(directory: Path):
    client = FakeClient(directory)
    body = json.dumps(BODY).encode()
    with live_server(client) as server:
        release = held(server)
        with connect(server, post_head(len(body)) + body):
            assert until(lambda: server.service.prepare_pool.num_waiting == 1)
        assert until(lambda: server.service.prepare_pool.num_waiting == 0)
        release()
        assert httpx.post(server.url + CHAT, json=BODY).status_code == 200
        assert len(client.requests) == 1


def upload(server: LiveServer, length: int, data: bytes) -> socket.socket:
    """A connection that announces more than it sends."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n".encode()
    return connect(server, head + data)


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two bodies of 5000 bytes, of which a tenth is free."""
    monkeypatch.setattr("eyas.server.options.MAX_LARGE_BODIES", 2)
    monkeypatch.setattr("eyas.server.http.body.SMALL_BYTES", 500)
    monkeypatch.setattr("eyas.server.http.body.PROGRESS_BYTES", 1000)


def test_bodies_share_their_memory(
    directory: Path, small_room: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("eyas.server.http.body.STALLED_SECONDS", 60)
    large = {**BODY, "user": "x" * 1600}
    with live_server(FakeClient(directory), max_body_bytes=5000) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(upload(server, 5000, b"x" * 4950))
            until(lambda: len(server.server.server_state.tasks) == 2)
            assert until(lambda: httpx.post(server.url + CHAT, json=large).status_code == 429)
            assert httpx.post(server.url + CHAT, json=BODY).status_code == 200, (
                "small ones are free"
            )
        assert until(lambda: httpx.post(server.url + CHAT, json=large).status_code == 200)


def test_an_upload_that_stands_still_makes_room(
    directory: Path, small_room: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("eyas.server.http.body.STALLED_SECONDS", 0.2)
    large = {**BODY, "user": "x" * 3000}
    with (
        live_server(FakeClient(directory), max_body_bytes=5000) as server,
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(upload(server, 5000, b"x" * 4900))
        assert until(lambda: len(server.server.server_state.tasks) == 1)
        time.sleep(0.05)
        second = stack.enter_context(upload(server, 5000, b"x" * 4900))
        assert until(lambda: len(server.server.server_state.tasks) == 2)
        for _ in range(5):
            time.sleep(0.06)
            second.sendall(b"x")  # a byte now and then is no upload either
        assert httpx.post(server.url + CHAT, json=large).status_code == 200
        assert b" 408 " in first.recv(4096), "it has stood still for longest"
        for _ in range(3):
            assert httpx.post(server.url + CHAT, json=large).status_code == 200


def test_an_upload_is_no_request_before_all_of_it_is_there(directory: Path):
    with (
        live_server(FakeClient(directory), max_connections=64, max_requests=2) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(8):
            stack.enter_context(upload(server, 100, b"{"))
        assert until(lambda: len(server.server.server_state.tasks) == 8)
        assert httpx.post(server.url + CHAT, json=BODY).status_code == 200


def test_uploads_that_stand_still_never_keep_a_request_out(directory: Path):
    with live_server(FakeClient(directory), max_connections=8, max_requests=4) as server:

        def ask() -> None:
            assert httpx.post(server.url + CHAT, json=BODY).status_code == 200

        crowd(server, lambda k: upload(server, 100, b"{"), ask)


def test_connections_fit_into_the_files_that_may_be_open(monkeypatch: pytest.MonkeyPatch):
    limits = [1024, 1500]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(0, new[0]))
    options = fit_to_open_files(ServerOptions(max_connections=4096, max_requests=2048))
    assert limits == [1500, 1500]
    assert options.max_connections == 1500 - SPARE_FILES
    assert options.max_requests < options.max_connections
    limits[:] = [1024, 100_000]
    assert fit_to_open_files(ServerOptions()) == ServerOptions()
    assert limits[0] == ServerOptions().max_connections + SPARE_FILES


def test_too_few_files_for_a_server_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    with pytest.raises(ValueError, match=r"24 files open.* ulimit -n"):
        fit_to_open_files(ServerOptions())


def test_idle_connections_take_no_files_from_what_the_server_needs(directory: Path):
    """Four times as many as the process may have files, and an answer under way, which goes on; an
    engine that is started again needs files as well."""
    few = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    before = [sys.executable, "-c", f"{few}; os.execv(sys.argv[1], sys.argv[1:])"]
    with (
        served(directory, before=before, is_forked=False) as server,
        contextlib.ExitStack() as stack,
    ):
        url = server.wait_until_ready()
        address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        long = {**BODY, "stream": True, "max_tokens": 2000}
        running = stack.enter_context(httpx.stream("POST", url + CHAT, json=long, timeout=60))
        lines = running.iter_lines()
        next(lines)
        for _ in range(256):
            stack.enter_context(socket.create_connection(address, timeout=60))
        for _ in range(3):
            assert httpx.get(f"{url}/ready", timeout=60).status_code == 200
            assert httpx.post(url + CHAT, json=BODY, timeout=60).status_code == 200
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert httpx.post(url + CHAT, json={**BODY, "cache_salt": "crash"}).status_code == 503
        assert until(lambda: httpx.get(f"{url}/ready").status_code == 200)
        assert httpx.post(url + CHAT, json=BODY, timeout=60).status_code == 200
        num_lines = len(server.log)
        assert num_lines < 40 and not any("Traceback" in line for line in server.log)
        assert sum("connections are open" in line for line in server.log) == 1


def test_keys_are_the_bytes_that_are_sent(directory: Path):
    with live_server(FakeClient(directory), api_keys=("schlüssel-一", "voilà")) as server:
        for key, status in (("schlüssel-一", 200), ("voilà", 200), ("schlüssel-", 401)):
            headers = {"authorization": b"Bearer " + key.encode()}
            assert httpx.get(server.url + "/v1/models", headers=headers).status_code == status
