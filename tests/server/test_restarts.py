"""An engine process that dies is started again; one that hangs is said to hang."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from eyas import wire
from eyas.core import DraftCounts
from tests.server.fakes import model_directory
from tests.server.test_launch import chat, served

LONG = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100_000, "stream": True}
SECONDS = 120.0
"""After which a test gives up; nothing is measured."""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers() -> list[psutil.Process]:
    """The engine processes of this test; one that ended is none, waited for or not."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "tests.server.fake_worker" in child.cmdline() and not has_ended(child):
                found.append(child)
        except psutil.Error:
            continue
    return found


def the_worker() -> psutil.Process:
    found = workers()
    assert len(found) == 1
    return found[0]


def kill(worker: psutil.Process) -> None:
    """Until nothing is left of it, which takes a while."""
    worker.kill()
    until(lambda: has_ended(worker))


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def status_of(url: str, path: str = "/ready") -> int:
    return httpx.get(url + path, timeout=SECONDS).status_code


def counter(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=SECONDS).text
    found = re.search(rf"^eyas_{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


class Load:
    """Requests one after the other on threads of their own, and what became of each."""

    def __init__(self, url: str, num_threads: int) -> None:
        self._url = url
        self.statuses: list[int] = []
        self.wrong: list[object] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(num_threads)]

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=SECONDS) as http:
            while not self._is_over.is_set():
                body = {"prompt": "x", "max_tokens": 20}
                answer = http.post("/v1/completions", json=body)
                self.statuses.append(answer.status_code)
                if answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1:
                    self._is_over.wait(0.05)
                elif answer.status_code != 200 or answer.json()["usage"]["completion_tokens"] != 20:
                    self.wrong.append(answer.text)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(SECONDS)


def test_an_engine_that_is_killed_under_load_is_started_again_and_again(directory: Path):
    with served(directory) as server:
        url = server.wait_until_ready()
        with Load(url, 4) as load:
            num_tokens = 0.0
            for num_kills in (1, 2, 3):
                worker = the_worker()
                with httpx.stream(
                    "POST", f"{url}/v1/chat/completions", json=LONG, timeout=SECONDS
                ) as response:
                    lines = response.iter_lines()
                    next(lines)
                    worker.kill()
                    rest = [line for line in lines if line]
                assert rest[-1] == "data: [DONE]"
                error = json.loads(rest[-2][6:])["error"]
                assert error["code"] == "answer_lost"
                assert "engine process has ended" in error["message"]
                assert status_of(url, "/health") == 200
                until(lambda: status_of(url) == 200)
                assert counter(url, "engine_restarts") == num_kills
                assert counter(url, "engine_steps") >= num_tokens, "a counter goes up only"
                num_tokens = counter(url, "engine_steps")
                num_answered = load.statuses.count(200)
                until(lambda before=num_answered: load.statuses.count(200) > before + 4)
        assert load.wrong == [] and set(load.statuses) <= {200, 503}
        assert chat(url, max_tokens=3).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0
    assert not any("Traceback" in line for line in server.log)


def test_while_the_engine_is_started_again_new_work_is_told_when_to_come(
    directory: Path, tmp_path: Path
):
    """The new engine is stopped before it can be ready, so that there is time to look."""
    with served(directory) as server:
        url = server.wait_until_ready()
        kill(the_worker())
        new: list[psutil.Process] = []

        def has_new() -> bool:
            new[:] = workers()
            return len(new) == 1

        until(has_new)
        new[0].suspend()
        try:
            if status_of(url) == 503:  # else it was ready before it was stopped
                refused = chat(url)
                assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
                assert "started again" in refused.json()["error"]["message"]
            assert status_of(url, "/health") == 200
        finally:
            new[0].resume()
        until(lambda: status_of(url) == 200)


def test_when_the_tries_are_used_up_the_server_ends(directory: Path, tmp_path: Path):
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    with served(tmp_path, "once", "max_restarts=2") as server:
        server.wait_until_ready()
        kill(the_worker())
        assert server.process.wait(SECONDS) == 1
    log = "".join(server.log)
    assert "attempt 1 of 2" in log and "attempt 2 of 2" in log
    assert "the engine failed; see the server's log" in log


def test_an_engine_that_stands_still_is_not_ready_until_it_goes_on(directory: Path):
    """With nothing to do, and with an answer under way."""
    with served(directory, "stall_seconds=1") as server:
        url = server.wait_until_ready()
        worker = the_worker()
        for has_work in (False, True):
            with httpx.Client(base_url=url, timeout=SECONDS) as http:
                request = http.build_request("POST", "/v1/chat/completions", json=LONG)
                running = http.send(request, stream=True) if has_work else None
                worker.suspend()
                until(lambda: status_of(url) == 503)
                assert "not made a step" in httpx.get(f"{url}/ready").json()["error"]["message"]
                assert status_of(url, "/health") == 200
                worker.resume()
                until(lambda: status_of(url) == 200)
                if running is not None:
                    running.close()
        until(lambda: chat(url, max_tokens=3).status_code == 200)


@pytest.mark.parametrize("salt", ["hang", "turn"])
def test_an_engine_whose_steps_come_to_nothing_is_not_ready(directory: Path, salt: str):
    with served(directory, "stall_seconds=1", "drain_seconds=0", "kill_seconds=0.5") as server:
        url = server.wait_until_ready()
        thread = threading.Thread(target=chat, args=(url,), kwargs={"cache_salt": salt})
        thread.start()
        until(lambda: status_of(url) == 503)
        server.process.send_signal(signal.SIGTERM)
        thread.join(SECONDS)
        assert server.process.wait(SECONDS) == 0


def test_without_threads_for_grammars_who_needs_one_is_told_and_others_are_served(tmp_path: Path):
    directory = model_directory(tmp_path / "model")
    with served(directory, "threads") as server:
        url = server.wait_until_ready()
        denied = directory / "no_threads"
        denied.touch()
        for pattern in ("a", "b"):
            refused = chat(url, max_tokens=3, guided_regex=pattern)
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
            assert "no thread left" in refused.json()["error"]["message"]
        until(lambda: status_of(url) == 503)
        assert "no thread left" in httpx.get(f"{url}/ready").json()["error"]["message"]
        assert chat(url, max_tokens=3).status_code == 200
        denied.unlink()
        until(lambda: status_of(url) == 200)
        for pattern in ("a", "b", "c"):
            assert chat(url, max_tokens=3, guided_regex=pattern).status_code == 200


def test_counts_of_two_engines_are_one_and_gauges_are_the_later_ones():
    def stats(scale: int) -> wire.EngineStats:
        return wire.EngineStats(
            num_running=scale,
            num_slots=10,
            num_steps=5 * scale,
            num_output_tokens=7 * scale,
            drafts=DraftCounts(num_drafts=scale, accepted_by_depth=[scale] * scale),
            nodes=wire.NodeCounts(accepted={f"s{scale}": [scale], "both": [scale] * scale}),
            grammar=wire.GrammarStats(
                num_compiled=scale,
                num_refused={f"f{scale}": scale},
                mask_seconds=0.5,
                num_cached=scale,
            ),
        )

    both = wire.added(stats(1), stats(2))
    assert (both.num_running, both.num_slots) == (2, 10)
    assert (both.num_steps, both.num_output_tokens) == (15, 21)
    assert both.drafts.num_drafts == 3 and both.drafts.accepted_by_depth == [3, 2]
    assert both.nodes.accepted == {"s1": [1], "s2": [2], "both": [3, 2]}
    assert both.grammar.num_compiled == 3 and both.grammar.num_cached == 2
    assert both.grammar.num_refused == {"f1": 1, "f2": 2} and both.grammar.mask_seconds == 1.0
    assert wire.added(wire.EngineStats(), stats(2)) == stats(2)


def test_the_engine_takes_what_it_had_started_with_it(directory: Path):
    """As the compiling process of a grammar library, which may be busy."""
    with served(directory, "with_child") as server:
        url = server.wait_until_ready()
        worker = the_worker()
        children = worker.children()
        assert len(children) == 1
        kill(worker)
        until(lambda: has_ended(children[0]))
        until(lambda: counter(url, "engine_restarts") == 1 and status_of(url) == 200)
