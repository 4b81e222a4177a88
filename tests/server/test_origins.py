"""Web pages and names: who may use a server that has no key, and what browsers are told."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas.server.http.origins import Origins, checked_host, checked_origin
from eyas.server.options import ServerOptions
from tests.server.fakes import FakeClient, LiveServer, live_server
from tests.server.test_limits import raw, read_all

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
PAGE = "http://localhost:3000"
OTHER = "http://evil.example"
PROBES = ("/health", "/livez", "/ready", "/readyz", "/health_generate")


@pytest.fixture(scope="module")
def for_pages(directory: Path) -> Iterator[LiveServer]:
    """A server whose owner lets one origin's pages in, and has a name for it."""
    names = {"cors_origins": (PAGE,), "allowed_hosts": ("models.example",)}
    with live_server(FakeClient(directory), **names) as server:
        yield server


def post(server: LiveServer, body: Any = BODY, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"content-type": "application/json", **named}
    return httpx.post(server.url + CHAT, content=json.dumps(body), headers=sent, timeout=60)


def question(url: str, origin: str, method: str = "POST", **headers: str) -> httpx.Response:
    """What a browser asks before it sends a page's request."""
    asked = {"origin": origin, "access-control-request-method": method, **headers}
    asked["access-control-request-headers"] = "authorization,content-type,x-stainless-os"
    return httpx.options(url + CHAT, headers=asked, timeout=60)


def refused(response: httpx.Response, status: int, code: str, *remedy: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert all(words in error["message"] for words in remedy), error
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.nip.io",
        "localhost.evil.example",
        "a@localhost",
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(
    server: LiveServer, fake: FakeClient, host: str
) -> None:
    num_before = len(fake.requests)
    remedy = ("--allowed-host", "API key", host.partition(":")[0])
    refused(post(server, host=host), 403, "host_not_allowed", *remedy)
    for path in ("/v1/models", "/metrics", "/nothing"):
        response = httpx.get(server.url + path, headers={"host": host})
        refused(response, 403, "host_not_allowed", *remedy)
    for path in PROBES:
        assert httpx.get(server.url + path, headers={"host": host}).status_code == 200
    assert len(fake.requests) == num_before


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "LOCALHOST:1234",
            "localhost.",
            "a.localhost:80",
            "127.0.0.1",
            "127.9.9.9:1",
        ),
        *("[::1]", "[::1]:8000", "192.168.1.7:8000", "[2001:db8::7]", "0.0.0.0:8000"),
    ],
)
def test_localhost_and_addresses_are_nobody_elses(server: LiveServer, host: str) -> None:
    assert post(server, host=host).status_code == 200
    assert httpx.get(server.url + "/metrics", headers={"host": host}).status_code == 200


def test_a_request_without_a_host_is_served(server: LiveServer) -> None:
    for head in (b"GET /v1/models HTTP/1.0\r\n\r\n", b"GET /v1/models HTTP/1.0\r\nhost:\r\n\r\n"):
        with raw(server, head) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_the_name_in_a_target_is_the_host(server: LiveServer) -> None:
    for target, host, status in (
        (b"http://evil.example/v1/models", b"localhost", 403),
        (b"http://localhost/v1/models", b"evil.example", 200),
    ):
        head = b"GET %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (target, host)
        with raw(server, head) as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "origin",
    [
        *(OTHER, "null", "http://localhost:1", "https://127.0.0.1:9", "file://", "x", ""),
        *(
            "http://evil.example@localhost",
            "chrome-extension://abc",
            "http://localhost.evil.example",
        ),
    ],
)
def test_a_page_of_another_site_is_refused(
    server: LiveServer, fake: FakeClient, origin: str
) -> None:
    num_before = len(fake.requests)
    refused(post(server, origin=origin), 403, "origin_not_allowed", "--cors-origin")
    form = post(server, origin=origin, content_type="text/plain")
    refused(form, 403, "origin_not_allowed", "--cors-origin")
    refused(question(server.url, origin), 403, "origin_not_allowed")
    assert len(fake.requests) == num_before


def test_a_rebound_name_is_no_origin_of_ours(server: LiveServer, fake: FakeClient) -> None:
    """The page's name leads here, so Host and Origin agree."""
    num_before = len(fake.requests)
    rebound = f"evil.example:{server.port}"
    response = post(server, host=rebound, origin=f"http://{rebound}")
    refused(response, 403, "host_not_allowed")
    assert len(fake.requests) == num_before


def test_a_page_of_this_server_is_served(server: LiveServer) -> None:
    at = f"127.0.0.1:{server.port}"
    assert post(server, origin=f"http://{at}").status_code == 200
    assert post(server, origin="http://localhost", host="localhost:80").status_code == 200
    assert post(server, origin="https://LOCALHOST", host="localhost").status_code == 200
    two_schemes = post(server, origin="http://localhost", host="localhost:443")
    refused(two_schemes, 403, "origin_not_allowed")


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "text/plain",
            "text/plain;charset=UTF-8",
            "application/x-www-form-urlencoded",
            "",
            "json",
        ),
        *("multipart/form-data; boundary=x", "text/plain; application/json", "application/jsonp"),
    ],
)
def test_a_page_says_that_its_json_is_json(
    for_pages: LiveServer, fake: FakeClient, kind: str
) -> None:
    """What a browser sends without having asked here is not taken, even from a page that may ask."""
    response = post(for_pages, origin=PAGE, content_type=kind)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]
    assert response.headers["access-control-allow-origin"] == PAGE
    assert post(for_pages, content_type=kind).status_code == 200  # curl -d says it is a form


def test_json_types_of_all_spellings_are_json(for_pages: LiveServer) -> None:
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/x+json"):
        assert post(for_pages, origin=PAGE, content_type=kind).status_code == 200


def test_a_configured_origins_page_may_read_answers_and_errors(for_pages: LiveServer) -> None:
    answers = [
        (200, post(for_pages, origin=PAGE)),
        (200, post(for_pages, {**BODY, "stream": True}, origin=PAGE)),
        (400, post(for_pages, {**BODY, "temperature": "x"}, origin=PAGE)),
        (404, post(for_pages, {**BODY, "model": "x"}, origin=PAGE)),
        (404, httpx.get(for_pages.url + "/nothing", headers={"origin": PAGE})),
        (405, httpx.delete(for_pages.url + CHAT, headers={"origin": PAGE})),
        (200, httpx.get(for_pages.url + "/health", headers={"origin": PAGE})),
    ]
    for status, response in answers:
        assert response.status_code == status, response.text
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "Origin"
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in response.headers
    assert "data: [DONE]" in answers[1][1].text
    plain = post(for_pages)
    assert "access-control-allow-origin" not in plain.headers and plain.headers["vary"] == "Origin"


def test_an_error_inside_is_readable_too(for_pages: LiveServer, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr(for_pages.service, "check_open", fail)
    response = post(for_pages, origin=PAGE)
    assert response.status_code == 500
    assert response.headers["access-control-allow-origin"] == PAGE


def test_a_browsers_question_is_answered(for_pages: LiveServer) -> None:
    asked = {"access-control-request-private-network": "true"}
    for response in (question(for_pages.url, PAGE), question(for_pages.url, PAGE, **asked)):
        assert response.status_code == 200
        said = response.headers
        assert said["access-control-allow-origin"] == PAGE
        assert said["access-control-allow-methods"] == "GET, POST, DELETE"
        assert said["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
        assert int(said["access-control-max-age"]) >= 60
        assert "Origin" in said["vary"] and said["x-request-id"]
        assert "access-control-allow-credentials" not in said
    refused(question(for_pages.url, OTHER), 403, "origin_not_allowed")
    other_method = question(for_pages.url, PAGE, "PUT")
    assert other_method.status_code == 405
    assert other_method.json()["error"]["code"] == "method_not_allowed"
    assert other_method.headers["access-control-allow-origin"] == PAGE


def test_other_origins_stay_out_and_other_names_come_in(for_pages: LiveServer) -> None:
    refused(post(for_pages, origin=OTHER), 403, "origin_not_allowed")
    refused(post(for_pages, origin=f"{PAGE}0"), 403, "origin_not_allowed")
    refused(post(for_pages, origin="null"), 403, "origin_not_allowed")
    assert post(for_pages, host="models.example").status_code == 200
    assert post(for_pages, host="MODELS.example.:99").status_code == 200
    refused(post(for_pages, host="a.models.example"), 403, "host_not_allowed")


def test_any_origin_and_any_name(directory: Path) -> None:
    with live_server(FakeClient(directory), cors_origins=("*",), allowed_hosts=("*",)) as server:
        for origin in (OTHER, "null", PAGE):
            response = post(server, origin=origin, host="evil.example")
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in response.headers
            assert question(server.url, origin).headers["access-control-allow-origin"] == "*"
        assert post(server, origin=OTHER, content_type="text/plain").status_code == 415


def test_with_a_key_pages_need_it_and_only_configured_ones_may_read(directory: Path) -> None:
    key = {"authorization": "Bearer secret"}
    settings = {"api_keys": ("secret",), "cors_origins": (PAGE,)}
    with live_server(FakeClient(directory), **settings) as server:
        response = post(server, origin=PAGE, **key)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        without = post(server, origin=PAGE)
        assert without.status_code == 401
        assert without.headers["access-control-allow-origin"] == PAGE
        assert question(server.url, PAGE).status_code == 200
        other = post(server, origin=OTHER, host="any.example", content_type="text/plain", **key)
        assert other.status_code == 200
        assert "access-control-allow-origin" not in other.headers
        refused(question(server.url, OTHER), 403, "origin_not_allowed")


def test_names_of_the_machine_where_it_listens_for_others() -> None:
    name = socket.gethostname().lower()

    def is_known(bound_to: str, host: str) -> bool:
        return Origins(bound_to, (), ())._is_own_host(host)

    for bound_to in ("0.0.0.0", "::", "192.168.1.7", "models.example"):
        assert is_known(bound_to, name) and is_known(bound_to, f"{name}:8000")
        assert is_known(bound_to, "localhost") and not is_known(bound_to, "evil.example")
    assert is_known("models.example", "Models.Example:80")
    assert is_known("127.0.0.1", name) == (name == "localhost")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://localhost:3000", "http://localhost:3000"),
        ("HTTPS://Chat.Example:443", "https://chat.example"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://a:443", "http://a:443"),
        ("vscode-webview://abc", "vscode-webview://abc"),
        ("null", "null"),
        ("*", "*"),
    ],
)
def test_origins_are_written_as_browsers_do(written: str, meant: str) -> None:
    assert checked_origin(written) == meant
    assert ServerOptions(cors_origins=(meant,)).cors_origins == (meant,)


@pytest.mark.parametrize(
    "origin", ["", "localhost:3000", "http://a/", "http://a/b", "http://", "a b"]
)
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match=r"cors_origins: .*must be an origin"):
        checked_origin(origin)
    with pytest.raises(ValueError, match="cors_origins"):
        ServerOptions(cors_origins=(origin,))


@pytest.mark.parametrize("host", ["", "a:80", "http://a", "a b", "*.example", "a/b", "-"])
def test_what_is_no_name_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_hosts: .*must be a host's name"):
        checked_host(host)
    with pytest.raises(ValueError, match=r"write 'models\.example' for 'Models\.Example'"):
        ServerOptions(allowed_hosts=("Models.Example",))
