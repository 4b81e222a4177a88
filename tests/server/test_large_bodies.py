"""Bodies made to be expensive: they are refused soon, and nobody else waits for it."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas.server.http.body import parse
from eyas.server.http.errors import ApiError
from eyas.server.http.json_text import MAX_STRUCTURE, MAX_VALUES, json_object
from eyas.server.request_models import ChatBody, CompletionBody, DetokenizeBody, GenerateBody
from eyas.text import Tokenizer
from tests.server.fakes import FakeClient, LiveServer
from tests.thorough import drawn, only_thorough

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KINDS = {
    CHAT: ChatBody,
    TEXT: CompletionBody,
    "/generate": GenerateBody,
    "/detokenize": DetokenizeBody,
}
MEBI = 2**20


def times(item: bytes, num_bytes: int = 8 * MEBI - 1000) -> bytes:
    """A list's items, as many as fit."""
    return ((item + b",") * (num_bytes // (len(item) + 1)))[:-1]


def members(value: bytes, num: int) -> bytes:
    return b",".join(map((b'"%07d":' + value).__mod__, range(num)))


NAMES = (
    "empty parts",
    "parts of many messages",
    "ids that are none",
    "prompts that are none",
    "empty prompts",
    "too many prompts",
    "unknown fields",
    "few unknown fields",
    "native ids",
    "tokens",
    "biases",
    "few biases",
    "metadata",
    "strings beside lists",
    "halves of characters",
    "many ids",
    "long numbers",
    "numbers of some length",
    "an open string",
)

ALIKE = (
    *("few unknown fields", "few biases", "numbers of some length", "too many prompts"),
    *("empty prompts", "tokens", "parts of many messages"),
)
"""Each is refused as another one of `NAMES` is."""


@lru_cache(maxsize=1)
def bodies() -> dict[str, tuple[str, bytes]]:
    """Path and content of each of `NAMES`, more than a hundred megabytes, which are not made before a
    test needs them."""
    parts = b'{"role":"user","content":[' + times(b"{}", 1890) + b"]}"
    return {
        "empty parts": (CHAT, b'{"messages":[{"role":"user","content":[' + times(b"{}") + b"]}]}"),
        "parts of many messages": (CHAT, b'{"messages":[' + times(parts) + b"]}"),
        "ids that are none": (TEXT, b'{"prompt":[' + times(b"-1") + b"]}"),
        "prompts that are none": (TEXT, b'{"prompt":[[' + times(b"null") + b"]]}"),
        "empty prompts": (TEXT, b'{"prompt":[' + times(b"[]") + b"]}"),
        "too many prompts": (TEXT, b'{"prompt":[' + times(b'"ab"') + b"]}"),
        "unknown fields": (TEXT, b'{"prompt":"x",' + members(b"1", 600_000) + b"}"),
        "few unknown fields": (TEXT, b'{"prompt":"x",' + members(b"1", 190_000) + b"}"),
        "native ids": ("/generate", b'{"input_ids":[' + times(b"null") + b"]}"),
        "tokens": ("/detokenize", b'{"tokens":[' + times(b"null") + b"]}"),
        "biases": (TEXT, b'{"prompt":"x","logit_bias":{' + members(b"null", 500_000) + b"}}"),
        "few biases": (TEXT, b'{"prompt":"x","logit_bias":{' + members(b"null", 190_000) + b"}}"),
        "metadata": (CHAT, b'{"messages":[],"metadata":{"a":[' + times(b"[]") + b"]}}"),
        "strings beside lists": (
            TEXT,
            b'{"a":[' + times(b'""', 7 * MEBI) + b'],"b":[' + times(b"[]", 900_000) + b"]}",
        ),
        "halves of characters": (
            CHAT,
            b'{"messages":[],"user":"' + rb"\ud800" * 1_390_000 + b'"}',
        ),
        "many ids": ("/detokenize", b'{"tokens":[' + times(b"1") + b"]}"),
        "long numbers": ("/detokenize", b'{"tokens":[' + times(b"9" * 4299) + b"]}"),
        "numbers of some length": ("/detokenize", b'{"tokens":[' + times(b"9" * 300) + b"]}"),
        "an open string": (TEXT, b'{"prompt":"' + b'[\\"' * 2_600_000),
    }


def test_every_body_is_sent() -> None:
    assert tuple(bodies()) == NAMES


@pytest.mark.parametrize(
    "name", [*(name for name in NAMES if name not in ALIKE), *only_thorough(*ALIKE)]
)
def test_a_body_is_refused_before_it_has_become_large(name: str):
    path, body = bodies()[name]
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            parse(body, KINDS[path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 400
    assert peak < 16 * len(body)


@contextmanager
def watched(server: LiveServer) -> Iterator[None]:
    """A small neighbour asks meanwhile, once at least, and is answered each time."""
    answers: list[int] = []
    has_begun, is_over = threading.Event(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not (is_over.is_set() and answers):
                has_begun.set()
                answers.append(http.get("/health").status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    has_begun.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert set(answers) == {200}


def test_nobody_waits_for_a_neighbours_large_body(
    server: LiveServer, http: httpx.Client, fake: FakeClient
):
    for name in drawn(NAMES[::3], NAMES):
        path, body = bodies()[name]
        with watched(server):
            assert http.post(path, content=body).status_code == 400, name
    ids = b'{"prompt":[' + times(b"7", 2 * 1_900_000) + b"]}"
    with watched(server):
        assert "at least" not in http.post(TEXT, content=ids).json()["error"]["message"]


def test_what_stands_in_a_text_is_no_structure(http: httpx.Client):
    prose = 'a: [b] {c} \\ " ' * (MAX_STRUCTURE // 4)
    assert json_object(json.dumps({"prompt": prose})) == {"prompt": prose}
    with pytest.raises(ApiError, match="more than 200000 objects, arrays and members"):
        json_object(json.dumps({"prompt": prose, "more": [[]] * MAX_STRUCTURE}))


def test_more_values_than_a_request_can_use_are_not_read():
    """One call reads them all, and nothing else runs meanwhile."""
    prose = "a, b, " * MAX_VALUES
    assert json_object(json.dumps({"prompt": prose})) == {"prompt": prose}
    ids = {"prompt": [[7] * (MAX_VALUES // 2)] * 2}
    assert len(json_object(json.dumps(ids))["prompt"][1]) == MAX_VALUES // 2
    with pytest.raises(ApiError, match="the body holds more than 1200000 values"):
        json_object('{"prompt": [' + "7," * (2 * MAX_VALUES) + "7]}")
    for num_before in (0, 65_000, 65_400, 65_500, 65_536, 66_000):
        spaces = " " * num_before
        with pytest.raises(
            ApiError, match=r"^seed: holds a number that is not finite or too large"
        ):
            json_object('{"seed":' + spaces + "9" * 401 + "}")
        assert json_object('{"seed":' + spaces + "9" * 300 + "}") == {"seed": int("9" * 300)}
    with pytest.raises(ApiError, match=r"\[0\]: holds a number that is not finite or too large"):
        json_object('{"prompt": [' + "9" * 4000 + ",7" * 1000 + "]}")


def test_halves_of_characters_are_replaced_a_piece_at_a_time():
    text = "a\ud800" * 300_000 + "\U0001f389\udfff"
    found = json_object(json.dumps({"x": text, "y": ["\udc00"]}), is_plain_text=lambda way: True)
    assert found == {"x": "a\ufffd" * 300_000 + "\U0001f389\ufffd", "y": ["\ufffd"]}


def test_a_large_schema_is_read(http: httpx.Client, fake: FakeClient):
    properties = {f"name{k:05}": {"type": "string", "description": ": [{"} for k in range(30_000)}
    assert len(json_object(json.dumps(properties))) == 30_000


LONG = "a word " * 300_000
TOOL = {"type": "function", "function": {"name": "f"}}
USER = [{"role": "user", "content": "x"}]


def called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [{**TOOL, "function": {"name": "f", "description": LONG}}]}),
        ("messages", {"messages": [*USER, {"role": "assistant", "reasoning_content": LONG}]}),
        ("messages", {"messages": called(json.dumps({"a": LONG}))}),
        ("messages", {"messages": called(LONG)}),
        ("messages", {"messages": [{"role": "user", "content": "a word " * 60}] * 4000}),
    ],
)
def test_no_text_is_tokenised_that_cannot_fit(
    http: httpx.Client,
    fake: FakeClient,
    server: LiveServer,
    monkeypatch: pytest.MonkeyPatch,
    param: str,
    fields: dict[str, Any],
):
    tokenizer, read = server.service.text_processor.tokenizer, []
    encode = tokenizer.encode_text

    def noted(text: str, **options: bool) -> list[int]:
        read.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode_text", noted)
    error = http.post(CHAT, json={"messages": USER, **fields}).json()["error"]
    assert error["code"] == "context_length_exceeded", error
    assert error["param"] == param and "has at least" in error["message"]
    assert sum(read) < 100_000


def test_a_text_of_long_tokens_is_not_read_whole(directory: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer = Tokenizer.from_directory(directory)
    monkeypatch.setattr(tokenizer, "_longest_token", 128)
    text = "a word " * 40_000
    exact = len(tokenizer.encode_text(text))
    for limit in (500, 5_000, 30_000):
        assert limit <= tokenizer.min_num_tokens(text, limit) <= exact
    assert tokenizer.min_num_tokens(text, exact) <= exact


def test_texts_are_counted_whatever_the_context_holds(http: httpx.Client, fake: FakeClient):
    """A client asks how much it has to leave out."""
    ids = http.post("/tokenize", json={"prompt": "a word " * 1000}).json()["tokens"]
    assert len(ids) > 512
    assert http.post("/v1/detokenize", json={"tokens": ids}).json()["prompt"] == "a word " * 1000
    messages = [{"role": "user", "content": "a word " * 1000}]
    count = http.post("/v1/tokenize", json={"messages": messages}).json()["count"]
    body = {"model": "tiny", "messages": messages}
    counted = http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    assert counted == count > len(ids)


def test_arguments_that_are_large_json_stay_text(http: httpx.Client, fake: FakeClient):
    messages = called("[" + times(b"[]", 7 * MEBI).decode() + "]")
    assert http.post(CHAT, json={"messages": messages}).status_code == 400
