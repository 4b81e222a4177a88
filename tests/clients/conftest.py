"""Other projects' clients, unmodified, against a server of the built-in model.

Each file needs one client, which `make clients` installs into an environment of its own, without torch
and without eyas; so nothing here may import either. There: `pytest tests/clients/test_X.py --server-url
http://127.0.0.1:8000`.
"""

from __future__ import annotations

import json
import urllib.request

import pytest

OPTION, SECOND = "--server-url", "--second-server-url"
PREFILL, KV_PORT, DECODE = "--prefill-server-url", "--prefill-kv-port", "--decode-server-url"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, help="address of a running `eyas serve`, without /v1")
    parser.addoption(SECOND, help="address of another one, for routers")
    parser.addoption(PREFILL, help="address of one with --role prefill, for routers")
    parser.addoption(KV_PORT, help="its --kv-port")
    parser.addoption(DECODE, help="address of one with --role decode, for routers")


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest) -> str:
    """The address of the server, without /v1."""
    url = request.config.getoption(OPTION, None)
    if url is None:
        pytest.skip("needs a server: `make clients` starts one")
    return str(url).rstrip("/")


@pytest.fixture(scope="session")
def server_urls(request: pytest.FixtureRequest, server_url: str) -> list[str]:
    """The addresses of two servers of one model, without /v1."""
    url = request.config.getoption(SECOND, None)
    if url is None:
        pytest.skip("needs two servers: `make clients` starts them")
    return [server_url, str(url).rstrip("/")]


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    """The address of a prefill server, its --kv-port, and the address of a decode server."""
    given = [request.config.getoption(option, None) for option in (PREFILL, KV_PORT, DECODE)]
    if None in given:
        pytest.skip("needs a prefill and a decode server: `make clients` starts them")
    prefill, port, decode = map(str, given)
    return prefill.rstrip("/"), port, decode.rstrip("/")


@pytest.fixture(scope="session")
def base_url(server_url: str) -> str:
    """The address that OpenAI's clients take."""
    return f"{server_url}/v1"


@pytest.fixture(scope="session")
def model(base_url: str) -> str:
    """The name of the served model."""
    with urllib.request.urlopen(f"{base_url}/models", timeout=60) as answer:
        return json.load(answer)["data"][0]["id"]
