"""From start to exit status: up at once, ready with the engine, drained by a signal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import openai
import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
SECONDS = 120.0
"""After which a test gives up; nothing is measured."""


class Served:
    def __init__(self, *arguments: str, before: Sequence[str] = (), is_forked: bool = True) -> None:
        module = "tests.server.served"
        command = forked.command(module) if is_forked else [sys.executable, "-m", module]
        self.process = subprocess.Popen(
            [*before, *command, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)

    def close(self) -> None:
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def url(self) -> str:
        while True:
            is_over = self.process.poll() is not None
            for line in list(self.log):
                if match := re.search(r"listening on (http://\S+);", line):
                    return match[1]
            assert not is_over, "".join(self.log)
            time.sleep(0.01)

    def wait_until_ready(self) -> str:
        url = self.url
        while True:
            is_over = self.process.poll() is not None
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    return url
            assert not is_over, "".join(self.log)
            time.sleep(0.02)

    def wait_for_line(self, words: str) -> int:
        """Return the number of the first line of the log with these words; another thread reads it."""
        while True:
            is_over = self.process.poll() is not None
            found = [i for i, line in enumerate(list(self.log)) if words in line]
            if found:
                return found[0]
            assert not is_over, "".join(self.log)
            time.sleep(0.01)


@contextlib.contextmanager
def served(
    *arguments: object, before: Sequence[str] = (), is_forked: bool = True
) -> Iterator[Served]:
    """before: a command that becomes the server, such as `env`. is_forked: fork it from a process that
    has imported everything (`tests.forked`)."""
    server = Served(*map(str, arguments), before=before, is_forked=is_forked)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.terminate()
        server.process.wait(120)
        server.close()


def chat(url: str, **fields: object) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)


def test_http_is_up_at_once_and_imports_no_torch(directory: Path):
    with served(directory, is_forked=False) as server:
        url = server.url
        assert httpx.get(f"{url}/health").status_code == 200
        server.wait_until_ready()
        up, ready = map(server.wait_for_line, ("listening on http", "ready: "))
        assert up < ready, [line.split(": ")[-1] for line in server.log]
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libtorch" not in maps and "site-packages/numpy" not in maps


def test_a_live_answer_and_a_clean_end(directory: Path):
    with served(directory) as server:
        url = server.wait_until_ready()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as api:
            messages = [{"role": "user", "content": "x"}]
            answer = api.chat.completions.create(model="tiny", messages=messages, max_tokens=5)
            assert len(answer.choices[0].message.content.split()) == 5
            chunks = api.chat.completions.create(
                model="tiny", messages=messages, max_tokens=5, stream=True
            )
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert streamed == answer.choices[0].message.content
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0
    assert not any("Traceback" in line for line in server.log)


def test_a_signal_lets_running_streams_finish(directory: Path):
    with served(directory, "drain_seconds=300") as server:
        url = server.wait_until_ready()
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 800,
            "stream": True,
        }
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/ready").status_code != 503:
                time.sleep(0.01)
            refused = chat(url)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(120) == 0


def test_answers_that_the_drain_cuts_off_are_told_to_come_again(directory: Path):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100_000}
    with served(directory, "drain_seconds=0.2") as server:
        url = server.wait_until_ready()
        whole: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: whole.append(chat(url, **body)))
        thread.start()
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=60
        ) as response:
            lines = response.iter_lines()
            next(lines)
            while 'eyas_num_requests_running{model_name="tiny"} 2.0' not in (
                httpx.get(f"{url}/metrics").text
            ):
                time.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        thread.join()
        assert whole[0].status_code == 503 and whole[0].headers["retry-after"] == "1"
        for error in (whole[0].json()["error"], json.loads(rest[-2][6:])["error"]):
            assert (error["type"], error["code"]) == (
                "service_unavailable_error",
                "answer_ended",
            )
            assert "ended by the server" in error["message"]
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(60) == 0


def test_a_second_signal_ends_at_once(directory: Path):
    """Long before the answer under way does, or the drain's deadline."""
    with served(directory, "drain_seconds=3600") as server:
        url = server.wait_until_ready()
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 1_000_000,
            "stream": True,
        }
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, timeout=SECONDS
        ) as response:
            lines = response.iter_lines()  # a forgotten iterator would close the stream
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{url}/ready").status_code != 503:
                time.sleep(0.01)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(SECONDS) == 128 + signal.SIGTERM


def test_without_restarts_a_dead_engine_is_reported_and_ends_the_server(directory: Path):
    with served(directory, "max_restarts=0") as server:
        url = server.wait_until_ready()
        response = chat(url, cache_salt="crash")
        assert response.status_code == 503
        assert "engine process has ended" in response.json()["error"]["message"]
        assert server.process.wait(60) == 1
    assert any("the engine process has ended (status 3)" in line for line in server.log)


@pytest.mark.parametrize("fault", ["no_model", "bug_at_start"])
def test_an_engine_that_cannot_start_is_exit_status_one(directory: Path, fault: str):
    with served(directory, fault) as server:
        assert server.process.wait(120) == 1
    expected = "there is no model here" if fault == "no_model" else "the engine failed"
    assert any(expected in line for line in server.log)
    has_traceback = any("Traceback" in line for line in server.log)
    assert has_traceback == (fault == "bug_at_start"), "a user's mistake needs one line"


def test_a_model_directory_with_a_broken_tokenizer_is_exit_status_one(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{")
    with served(tmp_path) as server:
        assert server.process.wait(120) == 1
    assert any("tokenizer.json: is not valid JSON" in line for line in server.log)


def test_the_http_side_imports_neither_torch_nor_the_engine():
    code = (
        "import sys, eyas.server.process.launch, eyas.text;"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'numpy')"
        " or m.startswith('eyas.engine')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
