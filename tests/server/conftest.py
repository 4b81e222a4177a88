"""A live server over a fake engine, one with the built-in model, and the real openai client."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server.fakes import FakeClient, LiveServer, live_server, model_directory
from tests.server.forked_serve import forked_eyas

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "src" / "eyas" / "builtin" / "checkpoint" / "model.safetensors"
NEEDS_CHECKPOINT = pytest.mark.skipif(not CHECKPOINT.exists(), reason="needs the built-in model")
SERVE = "from eyas.cli import main; main()"


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def shared(directory: Path) -> Iterator[tuple[LiveServer, FakeClient]]:
    client = FakeClient(directory)
    with live_server(client) as server:
        yield server, client


@pytest.fixture
def fake(shared: tuple[LiveServer, FakeClient]) -> Iterator[FakeClient]:
    """The shared server's engine; as new for each test."""
    client = shared[1]
    yield client
    client.reset()


@pytest.fixture
def server(shared: tuple[LiveServer, FakeClient], fake: FakeClient) -> LiveServer:
    return shared[0]


@pytest.fixture
def api(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


@contextlib.contextmanager
def serving(*options: str) -> Iterator[str]:
    """`eyas serve` with the built-in model, which ends well when it is told to; its address. Both
    its processes are forked (`tests.forked`)."""
    command = [*forked_eyas(), "serve", "--port", "0", "--stall-timeout", "300"]
    command += ["--grammar-timeout", "120", *options]
    environment = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    lines: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        lines.extend(iter(process.stderr.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    address = None
    try:
        while address is None or httpx.get(f"{address}/ready").status_code != 200:
            assert process.poll() is None, "".join(lines)
            time.sleep(0.1)
            found = re.search(r"listening on (http://\S+);", "".join(lines))
            address = found[1] if found else None
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait(120)
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture(scope="session")
def live_url() -> Iterator[str]:
    """A server of the built-in model that tests share."""
    with serving() as url:
        yield url


@pytest.fixture
def live_api(live_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key="x", max_retries=0) as client:
        yield client
