"""While the first engine starts: probes are told how far it is, requests wait for it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from eyas import wire
from eyas.engine.worker import LOG_SECONDS, REPORT_SECONDS, LoadingReports
from eyas.server.service import MAX_WAITING_FOR_START
from tests.server.engine_info import engine_info
from tests.server.fakes import FakeClient, LiveServer, live_server, model_directory
from tests.server.test_launch import SECONDS, served
from tests.server.test_limits import post_head, raw, until

TEXT = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 3}


def starting(directory: Path) -> FakeClient:
    client = FakeClient(directory)
    client.info = None
    return client


def get_ready(server: LiveServer, client: FakeClient, directory: Path) -> None:
    client.info = engine_info(directory)
    asyncio.run_coroutine_threadsafe(server.service.load_text_processor(), server.loop).result(
        SECONDS
    )


def post(server: LiveServer, body: dict[str, object] = BODY, **headers: str) -> httpx.Response:
    return httpx.post(server.url + TEXT, json=body, headers=headers, timeout=SECONDS)


def asked(
    pool: ThreadPoolExecutor, server: LiveServer, num: int, **headers: str
) -> list[Future[httpx.Response]]:
    """Requests that wait by now."""
    there = server.service.num_waiting_for_start
    sent = [pool.submit(post, server, **headers) for _ in range(num)]
    assert until(lambda: server.service.num_waiting_for_start == there + num)
    return sent


def test_requests_wait_for_the_first_engine_and_models_are_listed_with_it(directory: Path):
    client = starting(directory)
    with (
        live_server(client, start_wait_seconds=SECONDS) as server,
        ThreadPoolExecutor() as pool,
    ):
        waiting = asked(pool, server, 3)
        for path in ("/v1/models", "/v1/models/tiny", "/ready"):
            response = httpx.get(server.url + path, timeout=SECONDS)
            assert response.status_code == 503 and response.headers["retry-after"]
            assert response.json()["error"]["code"] == "engine_starting"
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert post(server, {"prompt": 5}).status_code == 400, "what is wrong is said at once"
        assert post(server, {**BODY, "model": "other"}).status_code == 404
        get_ready(server, client, directory)
        assert [each.result(SECONDS).status_code for each in waiting] == [200] * 3
        assert httpx.get(f"{server.url}/v1/models").status_code == 200
        assert post(server).status_code == 200
        assert server.service.num_waiting_for_start == 0


def test_nobody_waits_longer_than_allowed(directory: Path):
    client = starting(directory)
    with live_server(client, start_wait_seconds=0.05) as server:
        response = post(server)
    assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "engine_starting"


def test_who_waits_is_told_of_a_drain_and_of_an_engine_that_fails(directory: Path):
    for code in ("draining", "engine_failed"):
        client = starting(directory)
        with (
            live_server(client, start_wait_seconds=SECONDS, drain_seconds=0) as server,
            ThreadPoolExecutor() as pool,
        ):
            (waiting,) = asked(pool, server, 1)
            if code == "draining":
                drained = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
                drained.result(SECONDS)
            else:
                client.state = "failed"
                server.loop.call_soon_threadsafe(server.service.end_start)
            response = waiting.result(SECONDS)
        assert response.status_code == 503 and response.headers["retry-after"]
        assert response.json()["error"]["code"] == code
        assert client.requests == []


def test_no_more_wait_than_there_is_room_for(directory: Path):
    client = starting(directory)
    options = {"start_wait_seconds": SECONDS, "max_queued": 4, "api_keys": ("one", "two")}
    with live_server(client, **options) as server, ThreadPoolExecutor() as pool:
        waiting = asked(pool, server, 3, authorization="Bearer one")
        response = post(server, authorization="Bearer one")
        assert response.status_code == 429, "a quarter of the room is for other keys"
        waiting += asked(pool, server, 1, authorization="Bearer two")
        response = post(server, authorization="Bearer two")
        assert response.status_code == 429 and response.headers["retry-after"]
        get_ready(server, client, directory)
        assert [each.result(SECONDS).status_code for each in waiting] == [200] * 4


def test_a_bounded_number_waits_and_all_of_it_is_served(directory: Path):
    client = starting(directory)
    options = {"start_wait_seconds": SECONDS, "max_queued": 2000}
    with (
        live_server(client, **options) as server,
        ThreadPoolExecutor(MAX_WAITING_FOR_START) as pool,
    ):
        waiting = asked(pool, server, MAX_WAITING_FOR_START)
        assert post(server).status_code == 429
        get_ready(server, client, directory)
        assert {each.result(SECONDS).status_code for each in waiting} == {200}


def test_who_leaves_does_not_wait_any_more(directory: Path):
    client = starting(directory)
    with live_server(client, start_wait_seconds=SECONDS) as server:
        body = b'{"prompt": "x"}'
        head = post_head(len(body), TEXT)
        with raw(server, head + body):
            assert until(lambda: server.service.num_waiting_for_start == 1)
        assert until(lambda: server.service.num_waiting_for_start == 0)
        get_ready(server, client, directory)
        assert post(server).status_code == 200
        assert len(client.requests) == 1


def test_a_whole_start_is_seen_from_outside(tmp_path: Path):
    directory = model_directory(tmp_path / "model")
    with served(directory, "slow", f"start_wait_seconds={SECONDS}") as server:
        url = server.url
        assert until(lambda: "43 %" in httpx.get(f"{url}/ready", timeout=SECONDS).text)
        error = httpx.get(f"{url}/ready", timeout=SECONDS).json()["error"]
        assert error["message"] == (
            "the model is still being loaded (loading weights, 43 %); try again in a moment"
        )
        found: list[httpx.Response] = []
        ask = lambda: found.append(httpx.post(url + TEXT, json=BODY, timeout=SECONDS))  # noqa: E731
        thread = threading.Thread(target=ask)
        thread.start()
        (directory / "go_on").touch()
        thread.join(SECONDS)
        assert found[0].status_code == 200
        assert httpx.get(f"{url}/v1/models", timeout=SECONDS).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0
    assert any("loading weights, 100 %" in line for line in server.log)


def test_an_engine_that_fails_at_the_start_tells_who_waits(tmp_path: Path):
    directory = model_directory(tmp_path / "model")
    with served(directory, "slow", f"start_wait_seconds={SECONDS}") as server:
        url = server.url
        (directory / "fail").touch()
        body = b'{"prompt": "x"}'
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            head = post_head(len(body), TEXT)
            connection.sendall(head + body)
            # Connections are read in turn: once this is answered, that one waits.
            assert httpx.get(f"{url}/health", timeout=SECONDS).status_code == 200
            (directory / "go_on").touch()
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert b" 503 " in answer.splitlines()[0] and b'"code":"engine_failed"' in answer
        assert server.process.wait(SECONDS) == 1
    assert any("is broken; download it again" in line for line in server.log)


@pytest.mark.parametrize("total", [0, 1000])
def test_reports_are_few_and_miss_no_stage(caplog: pytest.LogCaptureFixture, total: int):
    caplog.set_level("INFO", logger="eyas.engine")
    sent: list[wire.Reply] = []
    now = 0.0
    reports = LoadingReports(sent.append, lambda: now)
    for stage in ("loading weights", "loading the draft's weights"):
        for done in range(1001):
            now += 0.01
            reports(stage, done if total else 0, total)
    shown = [str(reply) for reply in sent]
    assert shown[0].startswith("loading weights") and shown[-1].startswith("loading the draft's")
    if total:
        assert "loading weights, 100 %" in shown and shown[-1].endswith(", 100 %")
    assert len(sent) <= 2 * (10.01 / REPORT_SECONDS + 3)
    assert 2 <= len(caplog.records) <= 2 * (10.01 / LOG_SECONDS + 3)
    assert all(wire.decode_reply(wire.encode(reply)) == reply for reply in sent)
