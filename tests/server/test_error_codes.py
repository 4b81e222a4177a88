"""Every error says what kind it is: a word of the catalogue, with its status, each of them met here."""

from __future__ import annotations

import ast
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas.core import GrammarError, RequestError
from eyas.server.http import thread_pool
from eyas.server.http.codes import Code
from eyas.server.process.client import EngineOverloaded, EngineUnavailable
from tests.server.fakes import FakeClient, LiveServer, live_server
from tests.server.test_limits import post_head, raw, read_all

ROOT = Path(__file__).parents[2]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class Case:
    """One bad request, or one to a server in a bad state.

    body: JSON, or bytes as they are. engine: attributes of the fake. options: of the server.
    """

    code: Code
    body: Any = None
    path: str = TEXT
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def failing(failure: Exception) -> dict[str, Any]:
    return {"failure": failure}


PROMPT = {"prompt": "x"}
PAGE = {"origin": "http://evil.example"}
CASES = [
    Case(Code.INVALID_JSON, b"{"),
    Case(Code.INVALID_JSON, []),
    Case(Code.BODY_TOO_COMPLEX, b'{"prompt":' + b"[" * 100_000),
    Case(Code.UNKNOWN_PARAMETER, {**PROMPT, "nothing": 1}),
    Case(Code.UNSUPPORTED_PARAMETER, {**PROMPT, "lora": "x"}),
    Case(Code.UNSUPPORTED_PARAMETER, {**PROMPT, "best_of": 2}),
    Case(Code.UNSUPPORTED_PARAMETER, {**PROMPT, "use_beam_search": True}),
    Case(Code.UNSUPPORTED_PARAMETER, {**PROMPT, "suffix": "x"}),
    Case(Code.MISSING_REQUIRED_PARAMETER, {}, CHAT),
    Case(Code.MISSING_REQUIRED_PARAMETER, {**PROMPT, "response_format": {"type": "json_schema"}}),
    Case(Code.INVALID_TYPE, {"messages": "x"}, CHAT),
    Case(Code.INVALID_TYPE, {**PROMPT, "structured_outputs": "x"}),
    Case(Code.INVALID_VALUE, {**PROMPT, "top_p": 7}),
    Case(Code.INVALID_VALUE, {**PROMPT, "kv_transfer_params": {"do_remote_decode": 1}}),
    Case(Code.INVALID_VALUE, {**PROMPT, "kv_transfer_params": {"do_remote_prefill": True}}),
    Case(
        Code.INVALID_VALUE,
        {**PROMPT, "stream": True, "kv_transfer_params": {"do_remote_decode": True}},
    ),
    Case(
        Code.INVALID_VALUE,
        {"prompt": ["x", "y"], "kv_transfer_params": {"do_remote_decode": True}},
    ),
    Case(Code.INVALID_VALUE, {"tokens": [10**9]}, "/detokenize"),
    Case(Code.INVALID_VALUE, b'{"prompt": "x", "seed": 1e999}'),
    Case(Code.INVALID_VALUE, PROMPT, engine=failing(RequestError("stop: is odd", param="stop"))),
    Case(Code.CONTEXT_LENGTH_EXCEEDED, {"prompt": "x " * 5000}),
    Case(Code.TOO_MANY_CHOICES, {**PROMPT, "n": 3}, options={"max_queued": 2}),
    Case(
        Code.TOO_MANY_LOGPROBS,
        {**PROMPT, "n": 100, "logprobs": 5},
        options={"max_held_logprobs": 1000},
    ),
    Case(Code.INVALID_API_KEY, PROMPT, options={"api_keys": ("secret",)}),
    Case(Code.HOST_NOT_ALLOWED, PROMPT, headers={"host": "evil.example"}),
    Case(Code.ORIGIN_NOT_ALLOWED, PROMPT, headers=PAGE),
    Case(Code.ROUTE_NOT_FOUND, PROMPT, "/v1/nothing"),
    Case(Code.ROUTE_NOT_SUPPORTED, {"input": "x"}, "/v1/embeddings"),
    Case(Code.ROUTE_NOT_SUPPORTED, path="/v1/files/file-1/content", method="GET"),
    Case(Code.RESPONSE_NOT_FOUND, path="/v1/responses/resp_1", method="GET"),
    Case(Code.RESPONSE_NOT_FOUND, path="/v1/responses/resp_1", method="DELETE"),
    Case(
        Code.PREVIOUS_RESPONSE_NOT_FOUND,
        {"input": "x", "previous_response_id": "resp_1"},
        "/v1/responses",
    ),
    Case(Code.MODEL_NOT_FOUND, {**PROMPT, "model": "other"}),
    Case(Code.METHOD_NOT_ALLOWED, PROMPT, "/v1/models"),
    Case(
        Code.METHOD_NOT_ALLOWED,
        path=TEXT,
        method="OPTIONS",
        headers={**PAGE, "access-control-request-method": "PUT"},
        options={"cors_origins": ("http://evil.example",)},
    ),
    Case(Code.BODY_TOO_LARGE, {"prompt": "x" * 3000}, options={"max_body_bytes": 2000}),
    Case(
        Code.CONTENT_TYPE_NOT_ALLOWED,
        b"x",
        headers={**PAGE, "content-type": "text/plain"},
        options={"cors_origins": ("http://evil.example",)},
    ),
    Case(Code.CONTENT_ENCODING_NOT_SUPPORTED, b"x", headers={"content-encoding": "gzip"}),
    Case(Code.QUEUE_FULL, PROMPT, engine=failing(EngineOverloaded())),
    Case(Code.INTERNAL_ERROR, PROMPT, engine=failing(RuntimeError("secret detail"))),
    Case(Code.ENGINE_ERROR, PROMPT, engine={"error_after": 0}),
    Case(
        Code.GRAMMAR_LIMIT_EXCEEDED,
        PROMPT,
        engine={"error_after": 0, "error_code": "grammar_limit_exceeded"},
    ),
    Case(
        Code.GRAMMAR_DEAD_END, PROMPT, engine={"error_after": 0, "error_code": "grammar_dead_end"}
    ),
    Case(Code.CLIENT_TOO_SLOW, PROMPT, engine={"error_after": 0, "error_code": "client_too_slow"}),
    Case(
        Code.KV_HANDLE_INVALID,
        PROMPT,
        engine={"error_after": 0, "error_code": "kv_handle_invalid"},
    ),
    Case(Code.KV_UNAVAILABLE, PROMPT, engine={"error_after": 0, "error_code": "kv_unavailable"}),
    Case(Code.ANSWER_LOST, PROMPT, engine={"error_after": 0, "error_code": "answer_lost"}),
    Case(Code.ANSWER_ENDED, PROMPT, engine={"error_after": 0, "error_code": "answer_ended"}),
    Case(
        Code.ENGINE_RESTARTING,
        PROMPT,
        engine={"info": None, "state": "restarting"},
        options={"start_wait_seconds": 0},
    ),
    Case(
        Code.ENGINE_FAILED,
        PROMPT,
        engine={"info": None, "state": "failed"},
        options={"start_wait_seconds": 0},
    ),
    Case(Code.ENGINE_STARTING, PROMPT, engine={"info": None}, options={"start_wait_seconds": 0}),
    Case(Code.ENGINE_BUSY, PROMPT, engine=failing(EngineUnavailable())),
    Case(Code.ENGINE_STALLED, PROMPT, engine={"idle_seconds": 1e6}),
    Case(Code.ENGINE_STALLED, path="/ready", method="GET", engine={"idle_seconds": 1e6}),
    Case(Code.GRAMMARS_UNAVAILABLE, PROMPT, engine=failing(EngineUnavailable("no thread left"))),
    *(
        Case(
            Code.of(f"grammar_{fault}"),
            PROMPT,
            engine=failing(GrammarError("regex: is refused", fault, param="regex")),
        )
        for fault in ("invalid", "unsupported", "too_complex", "timeout")
    ),
]
ENGINE_STARTS = Case(Code.ENGINE_STARTING, path="/ready", method="GET", engine={"info": None})
CASES.append(ENGINE_STARTS)


def checked(status: int, body: Any, code: Code) -> None:
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code", "excerpt", "docs"}
    assert (error["code"], status) == (code.word, code.status)
    assert error["docs"].endswith(f"/docs/errors.md#{code.word}")
    assert error["message"] and "secret detail" not in error["message"]


def answer_of(server: LiveServer, case: Case) -> httpx.Response:
    content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    return httpx.request(
        case.method, server.url + case.path, content=content, headers=case.headers, timeout=120
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code.word}")
def test_an_error_has_a_code(directory: Path, server: LiveServer, fake: FakeClient, case: Case):
    """With a server of its own where the case says how it is started."""
    if case.options or "info" in case.engine:
        client = FakeClient(directory)
        vars(client).update(case.engine)
        with live_server(client, **case.options) as own:
            response = answer_of(own, case)
    else:
        vars(fake).update(case.engine)
        response = answer_of(server, case)
    checked(response.status_code, response.json(), case.code)
    assert ("retry-after" in response.headers) == (case.code.status in (429, 503))


MIDWAY = [case for case in CASES if "error_after" in case.engine]


@pytest.mark.parametrize("case", MIDWAY, ids=lambda case: f"{case.code.word}")
def test_an_error_in_a_stream_has_a_code(server: LiveServer, fake: FakeClient, case: Case):
    """The first words of the answer are there already."""
    vars(fake).update(case.engine, error_after=1)
    response = httpx.post(server.url + TEXT, json={**PROMPT, "stream": True}, timeout=120)
    assert response.status_code == 200
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    checked(case.code.status, json.loads(events[-1]), case.code)


def error_on(server: LiveServer, data: bytes, code: Code) -> None:
    with raw(server, data) as connection:
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    checked(int(head.split()[1]), json.loads(body), code)


def malformed_http(directory: Path) -> None:
    with live_server(FakeClient(directory)) as server:
        both = b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n"
        for head in (b"no request\r\n\r\n", b"POST / HTTP/1.1\r\nhost: localhost\r\n" + both):
            error_on(server, head, Code.MALFORMED_HTTP)


def head_too_large(directory: Path) -> None:
    with live_server(FakeClient(directory), max_header_bytes=2000) as server:
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 3000
        error_on(server, head + b"\r\n\r\n", Code.HEAD_TOO_LARGE)


def body_timeout(directory: Path) -> None:
    with live_server(FakeClient(directory), read_timeout_seconds=0.1) as server:
        head = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n".encode()
        error_on(server, head, Code.BODY_TIMEOUT)


def client_closed(directory: Path) -> None:
    client = FakeClient(directory)
    client.delay = 0.05
    with live_server(client) as server:
        body = b'{"prompt": "x"}'
        with raw(server, post_head(len(body), TEXT) + body) as connection:
            connection.shutdown(socket.SHUT_WR)
            head, _, answer = read_all(connection).partition(b"\r\n\r\n")
        checked(int(head.split()[1]), json.loads(answer), Code.CLIENT_CLOSED)


def draining(directory: Path) -> None:
    with live_server(FakeClient(directory)) as server:
        server.service.is_draining = True
        response = httpx.post(server.url + TEXT, json=PROMPT)
        checked(response.status_code, response.json(), Code.DRAINING)
        assert response.headers["connection"] == "close"


def held(server: LiveServer) -> Callable[[], None]:
    """Keep the threads that prepare requests busy until the returned function is called."""
    go_on = threading.Event()
    for _ in range(thread_pool.NUM_THREADS):
        server.loop.call_soon_threadsafe(
            lambda: server.loop.create_task(server.service.prepare_pool.run(go_on.wait))
        )
    return go_on.set


def preparation_queue_full(directory: Path) -> None:
    with live_server(FakeClient(directory), text_timeout_seconds=0.2) as server:
        release = held(server)
        response = httpx.post(server.url + TEXT, json=PROMPT, timeout=120)
        release()
        checked(response.status_code, response.json(), Code.PREPARATION_QUEUE_FULL)


def prompt_too_slow(directory: Path) -> None:
    with live_server(FakeClient(directory), text_timeout_seconds=0.2) as server:
        go_on = threading.Event()
        server.service.text_processor.encode_prompt = lambda *_: go_on.wait() and []
        response = httpx.post(server.url + TEXT, json=PROMPT, timeout=120)
        go_on.set()
        checked(response.status_code, response.json(), Code.PROMPT_TOO_SLOW)


OTHERS = [
    malformed_http,
    head_too_large,
    body_timeout,
    client_closed,
    draining,
    preparation_queue_full,
    prompt_too_slow,
]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__)
def test_an_error_of_the_server_itself_has_a_code(directory: Path, case: Callable[[Path], None]):
    case(directory)


def test_every_code_is_met_here():
    met = {case.code for case in CASES} | {Code.of(case.__name__) for case in OTHERS}
    assert met == set(Code)


def test_every_code_is_explained_where_errors_say():
    page = (ROOT / "docs" / "errors.md").read_text()
    for code in Code:
        assert f'<a id="{code.word}"></a>`{code.word}`' in page


def test_codes_are_plain_words_that_say_what_to_do():
    for code in Code:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code.word)
        assert code.meaning and code.remedy
        assert Code.of(code.word) is code


def codes_given() -> Iterator[tuple[Path, str]]:
    """What is written for `code` where errors are made that rooms below the server raise."""
    for file in (ROOT / "src" / "eyas").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for keyword in node.keywords:
                    is_word = isinstance(keyword.value, ast.Constant)
                    is_error = node.func.id in ("RequestError", "field_error")
                    if is_error and keyword.arg == "code" and is_word:
                        assert isinstance(keyword.value, ast.Constant)
                        yield file, keyword.value.value


def test_errors_of_other_rooms_have_codes_of_the_catalogue():
    given = list(codes_given())
    assert len(given) >= 4
    for file, word in given:
        assert word.upper() in Code.__members__, f"{file}: {word}"
    assert RequestError("x").code == Code.INVALID_VALUE.word
