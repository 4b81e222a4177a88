"""What comes over a connection and is no request, or one cut oddly: answered, and ended there."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from tests.server.fakes import FakeClient, LiveServer
from tests.server.test_limits import CHAT, post_head, raw, read_all, until


@pytest.mark.parametrize("pause", [0, 0.05])
@pytest.mark.parametrize("ends", [True, False])
def test_a_head_that_is_too_long_is_refused(server: LiveServer, pause: float, ends: bool):
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 40_000
    with raw(server, head) as connection:
        time.sleep(pause)
        connection.sendall(b"\r\n\r\n" if ends else b"a" * 100_000)
        error = refused(read_all(connection), 431)
    assert "longer than 32768 bytes" in error["message"]


def test_a_head_behind_another_request_is_no_longer_than_any(server: LiveServer):
    first = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    second = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 40_000 + b"\r\n\r\n"
    with raw(server, first + second) as connection:
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.1 200 ")
    refused(data[data.rindex(b"HTTP/1.1 ") :], 431)


def refused(answer: bytes, status: int) -> dict[str, str]:
    """The error of an answer that the connection itself gave."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"\r\nx-request-id: " in head and b"\r\nconnection: close" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


CHUNKED = b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\ntransfer-encoding: chunked\r\n\r\n"


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
    first = b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\n\r\n"
    with raw(server, first + b"GET\r\n\r\n") as connection:
        data = read_all(connection)
    at = data.rindex(b"HTTP/1.1 ")
    assert b"x-request-id: mine" in data[:at]
    assert refused(data[at:], 400)["message"] == "this is no HTTP request"
    assert b"x-request-id: mine" not in data[at:]


def test_a_target_may_have_the_servers_name_in_it(server: LiveServer):
    for target, status in (
        (b"http://x:80/v1/models", 200),
        (b"HTTPS://x/health?a=http://b", 200),
        (b"http://x", 404),
        (b"http://x?a=/health", 404),
        (b"/http://x/health", 404),
    ):
        head = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % target
        with raw(server, head) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 %d " % status), target


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        post_head("-5"),
        post_head("abc"),
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_the_connection_only(server: LiveServer, data: bytes):
    with raw(server, data) as connection:
        answer = read_all(connection)
    assert answer == b"" or answer.split(b" ")[1].startswith(b"4")
    assert httpx.get(server.url + "/health").status_code == 200


def test_a_head_that_does_not_come_is_given_up(server: LiveServer, monkeypatch):
    monkeypatch.setattr("eyas.server.protocol.HEAD_TIMEOUT_SECONDS", 0.2)
    with raw(server, b"GET /health HTTP/1.1\r\nx: ") as connection:
        assert read_all(connection) == b""
