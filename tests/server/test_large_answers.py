"""Answers made to be large: bounded before they begin, written off the loop, taken or given up."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.fakes import FakeClient, LiveServer, live_server
from tests.server.test_large_bodies import watched
from tests.server.test_limits import post_head, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "x"}]
WORDS = "word " * 2000


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"prompt": [5] * 400, "prompt_logprobs": 20}, "prompt_logprobs"),
        (TEXT, {"prompt": [5] * 50, "n": 30, "logprobs": 5, "echo": True}, "logprobs"),
        (TEXT, {"prompt": [[5] * 50] * 30, "logprobs": 5, "echo": True}, "logprobs"),
        (TEXT, {"prompt": "x", "n": 100, "logprobs": 20, "max_tokens": 90}, "logprobs"),
        (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 20, "n": 2}, "logprobs"),
        (CHAT, {"messages": USER, "n": 20, "max_tokens": 300, "logprobs": True}, "logprobs"),
        (
            "/generate",
            {"text": ["x"] * 40, "stream": True, "return_logprob": True},
            "return_logprob",
        ),
    ],
)
def test_no_answer_has_more_logprobs_than_it_may(
    directory: Path, path: str, fields: dict[str, Any], param: str
):
    with live_server(FakeClient(directory), max_held_logprobs=5000) as server:
        error = httpx.post(server.url + path, json=fields).json()["error"]
        assert error["param"] == param
        assert re.search(r"at most \d+ log-probabilities", error["message"])
        if path != "/generate" and "prompt_logprobs" not in fields and "echo" not in fields:
            streamed = httpx.post(server.url + path, json={**fields, "stream": True}, timeout=60)
            assert streamed.status_code == 200, "a stream is never whole"
        few = {**fields, "max_tokens": 5, "n": 1}
        if path != "/generate":
            for name in ("logprobs", "prompt_logprobs"):
                few |= {name: min(few[name], 1)} if name in few else {}
            assert httpx.post(server.url + path, json=few).status_code == 200


def test_one_choice_may_be_as_long_as_the_context(directory: Path):
    """Who leaves out max_tokens does not ask for all of a long context's log-probabilities."""
    asked = {"messages": USER, "logprobs": True, "top_logprobs": 20}
    with live_server(FakeClient(directory), max_held_logprobs=5000) as server:
        assert httpx.post(server.url + CHAT, json=asked).status_code == 200


def test_a_prompts_logprobs_are_written_once(http: httpx.Client, fake: FakeClient):
    body = {"prompt": [[5, 6, 7], [8, 9]], "n": 3, "max_tokens": 1, "prompt_logprobs": 1}
    choices = http.post(TEXT, json=body).json()["choices"]
    scored = [choice["prompt_logprobs"] for choice in choices]
    assert [entries and len(entries) for entries in scored] == [3, None, None, 2, None, None]
    assert list(scored[0][1]) == ["6", "7"][:1]


def test_nobody_waits_for_a_neighbours_large_answer(
    server: LiveServer, http: httpx.Client, fake: FakeClient
):
    fake.answer = lambda request, index: WORDS
    body = {"messages": USER, "n": 16, "max_tokens": 500, "logprobs": True, "top_logprobs": 20}
    with watched(server):
        answer = http.post(CHAT, json=body, timeout=120)
    assert len(answer.content) > 5_000_000
    first = answer.json()["choices"][0]["logprobs"]["content"][0]
    assert set(first) == {"token", "logprob", "bytes", "top_logprobs"}
    threads = [thread.name for thread in threading.enumerate()]
    assert any(name.startswith("eyas-write") for name in threads), threads


def test_an_event_that_repeats_all_costs_what_it_adds(
    http: httpx.Client, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
):
    num_built = 0

    def counted(logprob: float) -> float:
        nonlocal num_built
        num_built += 1
        return logprob

    monkeypatch.setattr("eyas.server.generate.finite", counted)
    fake.answer = lambda request, index: WORDS
    body = {"text": "x", "stream": True, "return_logprob": True, "top_logprobs_num": 20}
    body["sampling_params"] = {"max_new_tokens": 100}
    lines = http.post("/generate", json=body, timeout=60).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for number in (1, 7, 100):
        meta = events[number - 1]["meta_info"]
        assert len(meta["output_token_logprobs"]) == number
        assert [len(top) for top in meta["output_top_logprobs"]] == [20] * number
    assert num_built == 100 * 21


@pytest.mark.parametrize("path", [CHAT, "/generate"])
def test_a_client_that_reads_nothing_of_a_whole_answer_is_cut_off(directory: Path, path: str):
    client = FakeClient(directory)
    client.answer = lambda request, index: WORDS
    fields = {"messages": USER, "logprobs": True, "top_logprobs": 20, "n": 16, "max_tokens": 400}
    if path == "/generate":
        params = {"max_new_tokens": 400, "n": 32}
        fields = {"text": "x", "return_logprob": True, "top_logprobs_num": 20}
        fields |= {"sampling_params": params}
    body = json.dumps(fields).encode()
    with live_server(client, write_timeout_seconds=0.3) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(post_head(len(body), path) + body)
        state = server.server.server_state
        assert until(lambda: len(client.requests) == 1)
        assert until(lambda: not state.connections and not state.tasks)
        connection.close()
