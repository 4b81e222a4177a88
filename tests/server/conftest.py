"""A live server over a fake engine, and the real openai client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server.fakes import FakeClient, LiveServer, live_server, model_directory


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def shared(directory: Path) -> Iterator[tuple[LiveServer, FakeClient]]:
    client = FakeClient(directory)
    with live_server(client) as server:
        yield server, client


@pytest.fixture
def server(shared: tuple[LiveServer, FakeClient]) -> LiveServer:
    return shared[0]


@pytest.fixture
def fake(shared: tuple[LiveServer, FakeClient], directory: Path) -> Iterator[FakeClient]:
    """The shared server's engine; as new after each test."""
    client = shared[1]
    yield client
    fresh = FakeClient(directory)
    vars(client).update(vars(fresh))


@pytest.fixture
def api(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client
