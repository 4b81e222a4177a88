"""What comes over a connection and is no request, or one cut oddly: answered, and ended there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

from eyas.server.http import protocol as http_protocol
from tests.server.fakes import FakeClient, LiveServer, live_server
from tests.server.test_limits import CHAT, post_head, raw, read_all, until


@pytest.mark.parametrize("pause", [0, 0.05])
@pytest.mark.parametrize("ends", [True, False])
def test_a_head_that_is_too_long_is_refused(server: LiveServer, pause: float, ends: bool):
    head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-big: " + b"a" * 40_000
    with raw(server, head) as connection:
        time.sleep(pause)
        connection.sendall(b"\r\n\r\n" if ends else b"a" * 100_000)
        error = refused(read_all(connection), 431)
    assert "longer than 32768 bytes" in error["message"]


def test_a_head_behind_another_request_is_no_longer_than_any(server: LiveServer):
    first = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    second = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-big: " + b"a" * 40_000 + b"\r\n\r\n"
    with raw(server, first + second) as connection:
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.1 200 ")
    refused(data[data.rindex(b"HTTP/1.1 ") :], 431)


def refused(answer: bytes, status: int) -> dict[str, str]:
    """The error of an answer that the connection itself gave."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"\r\nx-request-id: " in head and b"\r\nconnection: close" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code", "excerpt", "docs"}
    return error


CHUNKED = (
    b"POST %b HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def test_a_kind_of_what_is_no_request_is_logged_rarely(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level("WARNING", logger="eyas.server")
    monkeypatch.setattr(http_protocol, "WARNING_SECONDS", 1e9)
    with live_server(FakeClient(directory)) as server:
        for data in (b"no request\r\n\r\n", b"GET / HTTP/1.1\nhost: localhost\n\n") * 3:
            with raw(server, data) as connection:
                refused(read_all(connection), 400)
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 2, warnings
    assert all("no valid request" in warning for warning in warnings)
    assert not [each for each in caplog.records if each.name.startswith("uvicorn")]


@pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
def test_an_offer_of_another_protocol_is_answered_without_a_warning(
    server: LiveServer, offer: bytes, caplog: pytest.LogCaptureFixture
):
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\nupgrade: "
    with raw(server, head + offer + b"\r\n\r\n") as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("pause", [0, 0.05])
def test_a_body_that_is_framed_wrongly_is_answered(
    server: LiveServer, fake: FakeClient, pause: float
):
    for start in (b"", b"5\r\n{    \r\n"):
        with raw(server, CHUNKED % CHAT.encode() + start) as connection:
            time.sleep(pause)
            connection.sendall(b"ZZ\r\n")
            answer = read_all(connection)
        assert "not in the form that its head announces" in refused(answer, 400)["message"]
        assert b"\r\nx-request-id: mine\r\n" in answer
    assert until(lambda: not server.server.server_state.tasks)
    assert fake.requests == []


def test_an_error_has_no_other_requests_id(server: LiveServer):
    first = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n\r\n"
    with raw(server, first + b"GET\r\n\r\n") as connection:
        data = read_all(connection)
    at = data.rindex(b"HTTP/1.1 ")
    assert b"x-request-id: mine" in data[:at]
    assert refused(data[at:], 400)["message"].startswith("this is not an HTTP request")
    assert b"x-request-id: mine" not in data[at:]


def test_a_target_may_have_the_servers_name_in_it(server: LiveServer):
    for target, status in (
        (b"http://localhost:80/v1/models", 200),
        (b"HTTPS://localhost/health?a=http://b", 200),
        (b"http://localhost", 200),
        (b"http://localhost?a=/health", 200),
        (b"/http://localhost/health", 404),
    ):
        head = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % target
        with raw(server, head) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 %d " % status), target


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        post_head("-5"),
        post_head("abc"),
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_the_connection_only(server: LiveServer, data: bytes):
    with raw(server, data) as connection:
        answer = read_all(connection)
    assert answer == b"" or answer.split(b" ")[1].startswith(b"4")
    assert httpx.get(server.url + "/health").status_code == 200


PLAIN = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
"""What would be a request of its own for a server that sees the first one's end sooner."""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            PLAIN + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "content-length and transfer-encoding",
        ),
        (
            PLAIN + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
            "content-length and transfer-encoding",
        ),
        (b"POST / HTTP/1.0\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "length"),
        (PLAIN.replace(b"\r\n", b"\n") + b"\n", "CR LF"),
        (PLAIN + b"a: b\nc: d\r\n\r\n", "CR LF"),
        (PLAIN + b"a: b\n\r\n", "CR LF"),
        (PLAIN + b"a: b\r\n\n", "CR LF"),
        (PLAIN + b"\n", "CR LF"),
        (PLAIN + b"content-length: 0\n\n", "CR LF"),
        (PLAIN + b"a: b\r\n c\r\n\r\n", "CR LF"),
        (PLAIN + b"a: b\r\n\tcontent-length: 5\r\n\r\n", "CR LF"),
        (PLAIN + b"content-length : 4\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"transfer-encoding : chunked\r\n\r\n", "not an HTTP request"),
        (PLAIN + b" a: b\r\n\r\n", "CR LF"),
        (PLAIN + b"content-length: 4\r\ncontent-length: 5\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"content-length: 4, 5\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"content-length: +4\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"content-length: 4\rx: y\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"a: b\0c\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"transfer-encoding: chunked, chunked\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"transfer-encoding: x\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"transfer-encoding: identity\r\n\r\n", "not an HTTP request"),
        (PLAIN + b"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n", "not an HTTP"),
        (PLAIN + b"host: localhost\r\n\r\n", "not an HTTP request"),
        (b"POST / HTTP/1.1\r\n\r\n", "not an HTTP request"),
    ],
)
@pytest.mark.parametrize("pause", [0, 0.01])
def test_what_two_servers_may_read_differently_ends_the_connection(
    server: LiveServer, fake: FakeClient, data: bytes, message: str, pause: float
):
    """Answered once, by a 400, and nothing behind it is taken for a request."""
    with raw(server, data[:30] if pause else data) as connection:
        if pause:
            time.sleep(pause)
            connection.sendall(data[30:])
        connection.sendall(SMUGGLED)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert message in refused(answer, 400)["message"]
    assert fake.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"5\nabcde\r\n0\r\n\r\n",
        b"5;a\nb\r\nabcde\r\n0\r\n\r\n",
        b"-1\r\n\r\n",
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"5 \r\nabcdeXX0\r\n\r\n",
        b"100000000000000000000000000000\r\n",
        b"5\r\nabcde\r\n0\r\n\n",
        b"5\r\nabcde\r\n0\r\na: b\n\r\n",
        b"5\r\nabcde\r\n0\r\na: b\r\n\n",
        b"5\r\nabcde\r\n0\r\na: b\r\n c\r\n\r\n",
    ],
)
def test_chunks_that_two_servers_may_read_differently_end_the_connection(
    server: LiveServer, fake: FakeClient, data: bytes
):
    head = PLAIN + b"transfer-encoding: chunked\r\n\r\n"
    with raw(server, head + data + SMUGGLED) as connection:
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 ") == 1
    refused(answer, 400)
    assert fake.requests == []


def test_a_body_in_one_length_is_read_whichever_way_it_comes(server: LiveServer):
    body = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}'
    for framed in (
        b"content-length: %d\r\n\r\n%b" % (len(body), body),
        b"content-length: %d\r\ncontent-length: %d\r\n\r\n%b" % (len(body), len(body), body),
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        b"transfer-encoding: chunked\r\n\r\n%x\r\n\n%b\r\n0\r\na: b\r\n\r\n"
        % (len(body) + 1, body),
    ):
        with raw(server, PLAIN + b"connection: close\r\n" + framed) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 200 "), framed


def test_a_head_that_does_not_come_is_given_up(server: LiveServer, monkeypatch):
    monkeypatch.setattr("eyas.server.http.protocol.HEAD_TIMEOUT_SECONDS", 0.2)
    with raw(server, b"GET /health HTTP/1.1\r\nx: ") as connection:
        assert read_all(connection) == b""
