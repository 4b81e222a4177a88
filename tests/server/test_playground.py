"""The web page at /: its routes, its headers, and what its files may contain. tests/browser clicks on
it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eyas.server.playground.files import FOLDER, MEDIA_TYPES, PATHS
from tests.server.fakes import FakeClient, LiveServer, live_server

MAX_BYTES = 150_000
TEXTS = {name: (FOLDER / name).read_text() for name in MEDIA_TYPES}


@pytest.fixture(scope="module")
def with_key(directory: Path) -> Iterator[LiveServer]:
    with live_server(FakeClient(directory), api_keys=("secret",)) as server:
        yield server


def policy(response: httpx.Response) -> dict[str, str]:
    parts = response.headers["content-security-policy"].split("; ")
    return {name: value for name, _, value in (part.partition(" ") for part in parts)}


@pytest.mark.parametrize("name", MEDIA_TYPES)
def test_a_file_has_its_type_and_a_strict_policy(server: LiveServer, name: str) -> None:
    response = httpx.get(server.url + PATHS[name])
    assert response.status_code == 200
    assert response.text == TEXTS[name]
    assert response.headers["content-type"] == MEDIA_TYPES[name]
    assert response.headers["x-content-type-options"] == "nosniff"
    rules = policy(response)
    assert rules.pop("default-src") == "'none'" and rules.pop("trusted-types") == "'none'"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert set(rules.values()) == {"'self'", "'none'"}
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"


def test_an_unchanged_file_is_not_sent_again(server: LiveServer) -> None:
    first = httpx.get(server.url + "/")
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = httpx.get(server.url + "/", headers={"if-none-match": known})
        assert again.status_code == 304 and not again.content
        assert policy(again) == policy(first)
    assert httpx.get(server.url + "/", headers={"if-none-match": '"other"'}).status_code == 200


def test_head_has_the_headers_alone_and_other_methods_are_refused(server: LiveServer) -> None:
    head = httpx.head(server.url + "/")
    assert head.status_code == 200 and not head.content
    assert int(head.headers["content-length"]) == len(TEXTS["index.html"].encode())
    posted = httpx.post(server.url + "/", json={})
    assert posted.status_code == 405
    assert posted.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/playground",
        "/playground/",
        "/playground/files.py",
        "/playground/%2e%2e/files.py",
    ],
)
def test_nothing_beside_the_page_is_served(server: LiveServer, path: str) -> None:
    response = httpx.get(server.url + path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "route_not_found"


def test_the_page_needs_no_key_and_the_api_does(with_key: LiveServer) -> None:
    for path in PATHS.values():
        assert httpx.get(with_key.url + path).status_code == 200
    assert httpx.get(with_key.url + "/v1/models").status_code == 401
    assert httpx.get(with_key.url + "/other").status_code == 401


def test_the_page_is_for_the_names_of_this_server(server: LiveServer) -> None:
    response = httpx.get(server.url + "/", headers={"host": "evil.example"})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"


def test_a_server_can_leave_the_page_out(directory: Path) -> None:
    with live_server(FakeClient(directory), playground=False, api_keys=("secret",)) as server:
        assert httpx.get(server.url + "/").status_code == 401
        allowed = {"authorization": "Bearer secret"}
        for path in PATHS.values():
            assert httpx.get(server.url + path, headers=allowed).status_code == 404


def test_the_files_are_small_and_all_of_the_folder() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(MEDIA_TYPES)
    assert sum(len(text.encode()) for text in TEXTS.values()) < MAX_BYTES


def test_nothing_is_loaded_from_elsewhere_or_written_inline() -> None:
    page = TEXTS["index.html"]
    loaded = set(re.findall(r'(?:src|href)="([^"]*)"', page))
    assert loaded <= {path.removeprefix("/") for path in PATHS.values()}
    assert not re.search(r"\s(on\w+|style)=|<style|<script(?![^>]*\ssrc=)", page)
    for name, text in TEXTS.items():
        addresses = set(re.findall(r"https?://[\w./]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert "@import" not in text and "url(" not in text
        imported = re.findall(r'from "\./([^"]+)"', text)
        assert set(imported) <= set(MEDIA_TYPES)


def test_no_script_reads_text_as_html_or_keeps_anything() -> None:
    scripts = "".join(text for name, text in TEXTS.items() if name.endswith(".js"))
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
    ):
        assert word not in scripts
    for word in ("localStorage", "sessionStorage", "indexedDB", "cookie"):
        assert word not in scripts


def test_every_field_of_the_form_has_a_label_and_exists() -> None:
    page, scripts = TEXTS["index.html"], "".join(TEXTS.values())
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'byId\("([^"]+)"\)', scripts)) <= set(ids)
    for tag in re.findall(r"<(?:input|textarea|select)[^>]*>", page):
        identity = re.search(r'\bid="([^"]+)"', tag)
        is_wrapped = f"<label>{tag}" in page or f'<label class="check">{tag}' in page
        assert is_wrapped or (identity and f'<label for="{identity[1]}"' in page), tag
