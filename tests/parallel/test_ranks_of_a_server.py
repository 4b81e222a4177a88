"""A rank of a server that dies or hangs: requests end with an error, and the server starts it again."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from eyas.native.products import compiled
from tests.server.forked_serve import forked_eyas

pytestmark = pytest.mark.skipif(
    compiled().library is None, reason="ranks on a CPU need a C compiler"
)

SECONDS = 300.0
"""After which a test gives up; nothing is measured."""
OPTIONS = (
    *("--tp", "2", "--port", "0", "--device", "cpu", "--threads", "1", "--drafter", "root"),
    *("--num-slots", "2048", "--dist-timeout", "20", "--stall-timeout", "200"),
)
LONG = {"prompt": "The eagle", "max_tokens": 1900, "ignore_eos": True, "stream": True}


@contextmanager
def server() -> Iterator[str]:
    """A server with two ranks, whose first rank is forked (`tests.forked`); its address."""
    command = [*forked_eyas(), "serve", *OPTIONS]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        until(lambda: "http://" in "".join(log))
        found = re.search(r"http://[\d.]+:\d+", "".join(log))
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait(SECONDS)
        reader.join(SECONDS)
        process.stderr.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ranks() -> list[psutil.Process]:
    """The ranks but the first, which are children of the engine's process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "eyas.engine.rank_main" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def is_ready(url: str) -> bool:
    return httpx.get(f"{url}/ready", timeout=SECONDS).status_code == 200


def num_restarts(url: str) -> int:
    text = httpx.get(f"{url}/metrics", timeout=SECONDS).text
    found = re.search(r"^eyas_engine_restarts_total\{.*\} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_a_rank_that_is_lost_ends_its_requests_and_is_started_again() -> None:
    body = {"prompt": "The eagle", "max_tokens": 8, "temperature": 0, "seed": 1}
    seen = []
    with server() as url:
        until(lambda: is_ready(url))
        expected = httpx.post(f"{url}/v1/completions", json=body, timeout=SECONDS).json()
        for number, loss in enumerate((psutil.Process.kill, psutil.Process.suspend), 1):
            (rank,) = ranks()
            seen.append(rank)
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=LONG, timeout=SECONDS
            ) as answer:
                lines = answer.iter_lines()
                next(lines)
                loss(rank)
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert json.loads(rest[-2][6:])["error"]["code"] in ("answer_lost", "engine_error")
            until(lambda before=number: num_restarts(url) == before and is_ready(url))
            assert has_ended(rank)
            again = httpx.post(f"{url}/v1/completions", json=body, timeout=SECONDS).json()
            assert again["choices"] == expected["choices"]
        (rank,) = ranks()
        seen.append(rank)
        rank.kill()  # while there is nothing to do
        until(lambda: num_restarts(url) == 3 and is_ready(url))
        seen += ranks()
    assert len(set(seen)) == 4 and all(map(has_ended, seen))
