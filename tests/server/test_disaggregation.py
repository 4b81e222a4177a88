"""A prefill server and a decode server behind a proxy, against one server: the same answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.server.conftest import NEEDS_CHECKPOINT, serving
from tests.server.pair_proxy import compute_prompt, through_both, to_both

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Name a city and the river that it lies on."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": "The capital of France is", "max_tokens": 24, "seed": 3, "logprobs": 2}),
    (CHAT, {"messages": USER, "max_completion_tokens": 30, "seed": 7, "n": 2, "min_tokens": 9}),
    (
        CHAT,
        {
            "messages": USER,
            "seed": 2,
            "temperature": 0.7,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    (
        CHAT,
        {
            "messages": USER,
            "max_tokens": 20,
            "seed": 5,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
]
TWO_PROMPTS = (TEXT, {"prompt": ["The Rhine", "A city:"], "max_tokens": 12, "seed": 3})

pytestmark = NEEDS_CHECKPOINT


@pytest.fixture(scope="module")
def kv_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def pair(kv_port: int) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        prefill = stack.enter_context(serving("--role", "prefill", "--kv-port", str(kv_port)))
        yield prefill, stack.enter_context(serving("--role", "decode"))


def shown(response: httpx.Response) -> list[Any]:
    """All that an answer says: its choices, or the text of its stream, and the count of its tokens."""
    assert response.status_code == 200, response.text
    if "event-stream" not in response.headers["content-type"]:
        answer = response.json()
        return [answer["choices"], answer["usage"]["completion_tokens"]]
    events = [json.loads(line[6:]) for line in response.text.splitlines() if "{" in line]
    texts = [c["delta"].get("content") or "" for event in events for c in event["choices"]]
    return ["".join(texts), events[-1]["usage"]["completion_tokens"]]


@pytest.mark.parametrize(("path", "body"), CASES)
def test_a_pair_answers_as_one_server(
    pair: tuple[str, str], live_url: str, path: str, body: dict[str, Any]
) -> None:
    alone = shown(httpx.post(live_url + path, json=body, timeout=300))
    for _ in range(2):  # the second time the prompt is cached on both sides
        assert shown(through_both(*pair, path, body)) == alone


@pytest.mark.parametrize(("path", "body"), [*CASES, TWO_PROMPTS])
def test_a_pair_answers_as_one_server_to_a_router_that_asks_both_at_once(
    pair: tuple[str, str], kv_port: int, live_url: str, path: str, body: dict[str, Any]
) -> None:
    alone = shown(httpx.post(live_url + path, json=body, timeout=300))
    computed, answered = to_both(*pair, path, body, kv_port)
    assert computed.status_code == 200 and shown(answered) == alone


def test_rooms_that_nobody_can_enter_are_refused(
    pair: tuple[str, str], kv_port: int, live_url: str
) -> None:
    path, body = CASES[0]
    for response in to_both(*pair, path, body, kv_port=None):
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == "bootstrap_port"
        assert "--prefill URL PORT" in error["message"]

    def refused(**fields: Any) -> tuple[int, str, str]:
        response = httpx.post(live_url + path, json={**body, **fields}, timeout=300)
        error = response.json()["error"]
        return response.status_code, error["param"], error["code"]

    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1}
    assert refused(**room) == (400, "bootstrap_room", "kv_handle_invalid")
    assert refused(bootstrap_host="127.0.0.1") == (400, "bootstrap_room", "invalid_value")


def test_a_pair_refuses_what_it_cannot_hand_over(pair: tuple[str, str], live_url: str) -> None:
    prefill, decode = pair
    path, body = CASES[0]
    given = compute_prompt(prefill, path, body).json()["kv_transfer_params"]

    def code(url: str, **changes: Any) -> tuple[int, str]:
        taking = {**body, "kv_transfer_params": {**given, **changes}}
        response = httpx.post(url + path, json=taking, timeout=300)
        return response.status_code, response.json()["error"]["code"]

    assert code(live_url) == (400, "kv_handle_invalid")
    assert code(decode, remote_request_id="0" * 32) == (400, "kv_handle_invalid")
    for command in ("\r\nFLUSHALL\r\n", "room 1", "A" * 32):  # for whoever listens at remote_port
        assert code(decode, remote_request_id=command) == (400, "invalid_value")
    assert code(decode, remote_host="10.9.8.7") == (400, "kv_handle_invalid")
    assert code(decode, remote_port=0) == (400, "invalid_value")
    assert httpx.post(
        decode + path, json={**body, "kv_transfer_params": given}, timeout=300
    ).is_success
    assert code(decode) == (400, "kv_handle_invalid")  # it is handed over once
