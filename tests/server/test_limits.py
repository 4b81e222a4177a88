"""Keys, sizes, slow and vanishing clients, drains, probes: the server stays in its bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas.core import GrammarError
from eyas.server.process.client import EngineOverloaded, EngineUnavailable
from tests.server.fakes import ANSWER, FakeClient, LiveServer, live_server

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "x"}]}


def until(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def raw(server: LiveServer, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    connection.sendall(data)
    return connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def post_head(length: int | str, path: str = CHAT) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def test_every_route_but_the_probes_wants_the_key(directory: Path):
    with (
        live_server(FakeClient(directory), api_keys=("first-key", "second-key")) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for path in ("/health", "/ready", "/livez", "/readyz"):
            assert http.get(path).status_code == 200
        guarded = [("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")]
        guarded += [
            ("POST", path) for path in (CHAT, "/v1/completions", "/tokenize", "/detokenize")
        ]
        guarded += [
            ("GET", "/nothing"),
            ("POST", "/health/x"),
            ("GET", "/docs"),
        ]
        for method, path in guarded:
            for key in (None, "Bearer wrong", "first-key", "Basic first-key", "Bearer"):
                headers = {"authorization": key} if key is not None else {}
                response = http.request(method, path, headers=headers)
                assert response.status_code == 401, (path, key)
                assert response.json()["error"]["code"] == "invalid_api_key"
        bearer = {"authorization": "Bearer first-key"}
        for refused in ({"x-api-key": "wrong"}, bearer | {"x-api-key": "second-key"}):
            assert http.get("/v1/models", headers=refused).status_code == 401
        twice = [("x-api-key", "first-key")] * 2
        assert http.get("/v1/models", headers=twice).status_code == 401
        for key in ("first-key", "second-key"):
            bearer, own = {"authorization": f"Bearer {key}"}, {"x-api-key": key}
            for headers in (bearer, own, bearer | own):
                assert http.get("/v1/models", headers=headers).status_code == 200
            assert http.post(CHAT, json=BODY, headers=bearer).status_code == 200


def test_holders_of_different_keys_share_no_prefixes(directory: Path):
    client = FakeClient(directory)
    with live_server(client, api_keys=("first-key", "second-key")) as server:
        for key in ("first-key", "second-key", "first-key"):
            headers = {"authorization": f"Bearer {key}"}
            httpx.post(server.url + CHAT, json={**BODY, "cache_salt": "s"}, headers=headers)
    salts = [request.cache_salt for request in client.requests]
    assert salts[0] == salts[2] != salts[1]
    assert all(salt.endswith(":s") for salt in salts)


def test_a_body_that_is_too_long_is_refused_unread(directory: Path):
    with live_server(FakeClient(directory), max_body_bytes=2000) as server:
        response = httpx.post(server.url + CHAT, content=b"x" * 3000)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"
        with raw(server, post_head(10**12)) as connection:
            assert b" 413 " in connection.recv(4096)

        def endless():
            for _ in range(100_000):
                yield b"x" * 1000

        # Refused while it was still writing, or as soon as it had written.
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):
            assert httpx.post(server.url + CHAT, content=endless()).status_code == 413
        assert httpx.get(server.url + "/ready").status_code == 200


def test_a_body_that_does_not_come_is_given_up(directory: Path):
    with live_server(FakeClient(directory), read_timeout_seconds=0.2) as server:
        with raw(server, post_head(100) + b"{") as connection:
            assert b" 408 " in connection.recv(4096)
        with raw(server, post_head(100) + b"{"):
            pass
        assert httpx.get(server.url + "/ready").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_at_once(directory: Path, stream: bool):
    """The server is this test's own: a shared one may still end requests of tests before."""
    client = FakeClient(directory)
    client.delay = 0.05
    client.answer = lambda request, index: "word " * 3000
    body = json.dumps({**BODY, "stream": stream, "n": 2}).encode()
    with live_server(client) as server:
        with raw(server, post_head(len(body)) + body) as connection:
            if stream:
                connection.recv(1000)
            else:
                assert until(lambda: len(client.requests) == 1)
        assert until(lambda: len(client.aborted) == 1)
        assert until(lambda: server.service.num_running == 0)


def test_a_client_that_closes_its_side_still_gets_what_is_answered_at_once(directory: Path):
    """An answer that would take time is ended as if the client had left."""
    client = FakeClient(directory)
    client.delay = 0.05
    client.answer = lambda request, index: "word " * 3000
    get = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
    asks = json.dumps(BODY).encode()
    with live_server(client) as server:

        def statuses(data: bytes) -> list[bytes]:
            with raw(server, data) as connection:
                connection.shutdown(socket.SHUT_WR)
                return re.findall(rb"HTTP/1.1 (\d+)", read_all(connection))

        assert statuses(get % b"/health" + get % b"/v1/models") == [b"200", b"200"]
        assert statuses(post_head(2) + b"{}" + get % b"/health") == [b"400", b"200"]
        assert statuses(post_head(len(asks)) + asks + get % b"/health") == [b"499", b"200"]
        assert statuses(get % b"/health" + post_head(9) + b"{") == [b"200", b"400"]
        assert statuses(b"") == statuses(b"GET /hea") == []
        assert until(lambda: server.service.num_running == 0)
        assert len(client.aborted) == len(client.requests)


def test_a_stream_whose_client_closes_its_side_ends_without_an_error_of_ours(
    directory: Path, caplog: pytest.LogCaptureFixture
):
    client = FakeClient(directory)
    client.delay = 0.05
    client.answer = lambda request, index: "word " * 3000
    asks = json.dumps({**BODY, "stream": True}).encode()
    with live_server(client) as server, raw(server, post_head(len(asks)) + asks) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.shutdown(socket.SHUT_WR)
        assert b"[DONE]" not in read_all(connection)
        assert until(lambda: len(client.aborted) == 1)
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_a_client_that_reads_nothing_is_given_up(directory: Path):
    client = FakeClient(directory)
    client.answer = lambda request, index: "word " * 60_000
    with live_server(client, write_timeout_seconds=0.3) as server:
        body = json.dumps({**BODY, "stream": True, "logprobs": True}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(post_head(len(body)) + body)
        assert until(lambda: len(client.aborted) == 1)
        connection.close()


def test_probes_say_what_is_true(directory: Path):
    client = FakeClient(directory)
    info, client.info = client.info, None
    with (
        live_server(client, stall_seconds=5, start_wait_seconds=0) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert http.get("/health").status_code == http.get("/livez").status_code == 200
        for path in ("/ready", "/readyz", "/health_generate", "/v1/models"):
            response = http.get(path)
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert "loaded" in response.json()["error"]["message"]
        assert http.post(CHAT, json=BODY).status_code == 503
        client.info = info
        asyncio.run_coroutine_threadsafe(server.service.load_text_processor(), server.loop).result(
            10
        )
        assert http.get("/ready").json()["status"] == "ready"
        client.idle_seconds = 6
        assert http.get("/ready").status_code == 503
        assert http.get("/health").status_code == 200


def test_a_drain_refuses_what_is_new_and_finishes_what_runs(directory: Path):
    client = FakeClient(directory)
    client.delay = 0.02
    with (
        live_server(client, drain_seconds=10) as server,
        httpx.Client(base_url=server.url) as http,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        drained = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
        assert until(lambda: httpx.get(server.url + "/ready").status_code == 503)
        refused = httpx.post(server.url + CHAT, json=BODY)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.headers["connection"] == "close"
        assert httpx.get(server.url + "/health").status_code == 200
        texts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        drained.result(300)
    content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in texts)
    assert content == ANSWER
    assert client.aborted == []


def test_a_drain_ends_what_does_not_finish(directory: Path):
    client = FakeClient(directory)
    client.delay = 0.05
    client.answer = lambda request, index: "word " * 1000
    with (
        live_server(client, drain_seconds=0.2) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        drained = asyncio.run_coroutine_threadsafe(server.service.drain(), server.loop)
        rest = [line for line in lines if line]
        drained.result(300)
    assert rest[-1] == "data: [DONE]"
    assert "ended by the server" in json.loads(rest[-2][6:])["error"]["message"]
    assert len(client.aborted) == 1


def test_metrics_count_what_happened(directory: Path):
    client = FakeClient(directory)
    with live_server(client) as server, httpx.Client(base_url=server.url) as http:
        http.post(CHAT, json={**BODY, "n": 2})
        http.post(CHAT, json={"messages": 5})
        text = http.get("/metrics").text
    for line in (
        'eyas_request_success_total{finished_reason="stop",model_name="tiny"} 2.0',
        'eyas_http_responses_total{model_name="tiny",status="400"} 1.0',
        'eyas_generation_tokens_total{model_name="tiny"} 7.0',
        'eyas_kv_cache_usage_perc{model_name="tiny"} 0.4',
        'eyas_num_requests_running{model_name="tiny"} 0.0',
        'eyas_time_to_first_token_seconds_count{model_name="tiny"} 1.0',
        'eyas_e2e_request_latency_seconds_count{model_name="tiny"} 1.0',
    ):
        assert line in text.splitlines(), line


def test_metrics_tell_what_became_of_drafts(http: httpx.Client):
    lines = http.get("/metrics").text.splitlines()
    for name, value in (
        ("num_drafts_total{", 4),
        ("num_draft_tokens_total{", 15),
        ("num_accepted_tokens_total{", 5),
        ('num_draft_tokens_per_pos_total{position="0",', 4),
        ('num_draft_tokens_per_pos_total{position="2",', 1),
        ('num_accepted_tokens_per_pos_total{position="0",', 3),
        ('num_accepted_tokens_per_pos_total{position="1",', 2),
        ('num_draft_tokens_by_source_total{source="ngram",', 5),
        ('num_accepted_tokens_by_source_total{source="head",', 5),
        ('draft_endings_total{reason="target",', 2),
    ):
        head, brace, labels = name.partition("{")
        found = [
            line
            for line in lines
            if line.startswith(f"eyas_spec_decode_{head}{brace}") and labels.rstrip(",") in line
        ]
        assert [line.split()[-1] for line in found] == [f"{value:.1f}"], name
    assert not any('position="3"' in line for line in lines)
    nodes = [line for line in lines if line.startswith("eyas_spec_decode_nodes_total{")]
    assert len(nodes) == (3 + 2) * 3
    for source, position, outcome, value in (
        ("head", 1, "accepted", 2.0),
        ("head", 1, "rejected", 2.0),
        ("head", 1, "grammar", 0.0),
        ("ngram", 1, "rejected", 1.0),
        ("ngram", 2, "grammar", 1.0),
    ):
        labels = f'outcome="{outcome}",position="{position}",source="{source}"'
        assert f'eyas_spec_decode_nodes_total{{model_name="tiny",{labels}}} {value}' in nodes


def test_metrics_tell_what_output_grammars_cost(http: httpx.Client, fake: FakeClient):
    lines = http.get("/metrics").text.splitlines()
    for line in (
        'eyas_grammar_compiles_total{model_name="tiny"} 3.0',
        'eyas_grammar_cache_hits_total{model_name="tiny"} 2.0',
        'eyas_grammar_refusals_total{fault="timeout",model_name="tiny"} 1.0',
        'eyas_grammar_compile_seconds_total{model_name="tiny"} 0.0',
        'eyas_grammar_mask_seconds_total{model_name="tiny"} 0.5',
        'eyas_spec_decode_num_pruned_tokens_total{model_name="tiny"} 0.0',
        'eyas_grammar_late_drafts_total{model_name="tiny"} 4.0',
    ):
        assert line in lines, line


def test_labels_of_metrics_stay_few():
    from eyas.core import DraftCounts
    from eyas.server.process.client import EngineHealth
    from eyas.server.telemetry.metrics import MAX_DEPTHS, MAX_NAMES, Metrics
    from eyas.wire import EngineStats, NodeCounts

    drafts = DraftCounts(
        num_drafts=1,
        drafted_by_depth=[1] * 500,
        drafted_by_source={f"source{i:03}": 1 for i in range(500)},
        endings={f"reason{i:03}": 2 for i in range(500)},
    )
    nodes = NodeCounts(proposed={f"source{i:03}": [1] * 500 for i in range(500)})
    stats = EngineStats(drafts=drafts, nodes=nodes)
    text = Metrics(lambda: EngineHealth(state="ready", stats=stats), "tiny").render("")[0].decode()
    for name in ("num_draft_tokens_per_pos", "num_draft_tokens_by_source", "draft_endings"):
        assert 2 < text.count(f"eyas_spec_decode_{name}_total{{") <= 64
    assert 'draft_endings_total{model_name="tiny",reason="other"} 968.0' in text
    assert text.count("eyas_spec_decode_nodes_total{") == MAX_NAMES * MAX_DEPTHS * 3


def test_the_log_tells_the_lengths_that_were_accepted():
    from eyas.core import DraftCounts
    from eyas.server.process.launch import draft_statistics

    before = DraftCounts(num_drafts=10, accepted_by_depth=[10])
    now = DraftCounts(num_drafts=20, accepted_by_depth=[18, 5, 2])
    shown = draft_statistics(before, now)
    assert shown == ", mean accepted length 2.50, by position 0.80 0.50 0.20"
    assert draft_statistics(now, now) == ""
    assert "length 1.00" in draft_statistics(DraftCounts(), DraftCounts(num_drafts=2))


def test_a_finished_request_leaves_one_line_without_content(
    http: httpx.Client, fake: FakeClient, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="eyas.server")
    http.post(CHAT, json=BODY, headers={"x-request-id": "mine"})
    assert until(lambda: "(mine)" in caplog.text), "it is written after the answer's last byte"
    found = [record for record in caplog.records if "(mine)" in record.getMessage()]
    assert len(found) == 1 and "capital" not in found[0].getMessage()
    num_prompt, num_output = (
        len(tokens)
        for tokens in (fake.requests[-1].prompt_token_ids, fake.tokenizer.encode_text(ANSWER))
    )
    shape = re.compile(
        r"chatcmpl-\w+ \(mine\) POST /v1/chat/completions 200: stop, "
        rf"prompt {num_prompt} tokens \(1 cached\), output {num_output} tokens \(5 drafted\), "
        r"queued 0\.250 s, first after \d\.\d+ s, whole \d\.\d+ s"
    )
    assert shape.fullmatch(found[0].getMessage())
    fields = found[0].fields
    assert fields.pop("answer_id").startswith("chatcmpl-")
    assert 0 < fields.pop("first_token_seconds") <= fields.pop("total_seconds")
    assert fields == {
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "model": "tiny",
        "finish_reasons": ["stop"],
        "prompt_tokens": num_prompt,
        "cached_tokens": 1,
        "completion_tokens": num_output,
        "draft_tokens": 15,
        "accepted_tokens": 5,
        "queue_seconds": 0.25,
    }


def test_a_request_that_is_refused_before_the_engine_leaves_a_line_with_the_code(
    server: LiveServer, http: httpx.Client, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="eyas.server")
    for path, body in (
        (CHAT, {"messages": 5}),
        (CHAT, {**BODY, "model": "a secret"}),
        ("/v1/a-secret", {}),
        ("/tokenize", {"prompt": "a secret"}),
    ):
        http.post(path, json=body, headers={"x-request-id": "mine"})
    http.post(CHAT, json=BODY, headers={"x-request-id": "mine", "host": "a-secret.example"})
    http.get("/v1/models", headers={"x-request-id": "mine"})
    assert until(lambda: caplog.text.count("(mine)") >= 5)
    lines = [record.getMessage() for record in caplog.records if "(mine)" in record.getMessage()]
    assert [line.rpartition(", whole")[0] for line in lines] == [
        f"- (mine) POST {CHAT} 400: invalid_type",
        f"- (mine) POST {CHAT} 404: model_not_found",
        "- (mine) POST (not routed) 404: route_not_found",
        "- (mine) POST /tokenize 200: done",
        "- (mine) POST (not routed) 403: host_not_allowed",
    ]
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            GrammarError("regex: unclosed group", "invalid", param="regex"),
            "400: refused, grammar_invalid",
        ),
        (EngineOverloaded(), "429: refused, queue_full"),
        (EngineUnavailable(), "503: unavailable, engine_busy"),
        (RuntimeError("a bug of ours"), "500: failed, internal_error"),
    ],
)
def test_the_log_tells_who_was_refused_or_failed_from_who_has_left(
    http: httpx.Client,
    fake: FakeClient,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    words: str,
    stream: bool,
):
    caplog.set_level("INFO", logger="eyas.server")
    fake.failure = failure
    http.post(CHAT, json={**BODY, "stream": stream}, headers={"x-request-id": "mine"})
    assert until(lambda: "(mine)" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if "(mine) " in record.getMessage()]
    assert len(lines) == 1 and f" {words}, prompt" in lines[0]


def test_the_log_tells_of_a_stream_that_fails_on_its_way(
    http: httpx.Client,
    fake: FakeClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    caplog.set_level("INFO", logger="eyas.server")
    deltas = fake._deltas

    def broken(request: Any, index: int) -> Iterator[Any]:
        yield next(deltas(request, index))
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(fake, "_deltas", broken)
    answer = http.post(CHAT, json={**BODY, "stream": True}, headers={"x-request-id": "mine"})
    assert answer.status_code == 200 and "server_error" in answer.text
    assert until(lambda: "(mine)" in caplog.text), "a stream's books are closed after its last byte"
    lines = [record.getMessage() for record in caplog.records if "(mine)" in record.getMessage()]
    assert len(lines) == 1 and ": failed, prompt" in lines[0]


def test_the_log_cannot_be_forged():
    import logging

    from eyas.logs import OneLineFormatter

    record = logging.LogRecord("x", 20, "f", 1, "a %s", ("b\r\nINFO forged\x1b[31m\u2028",), None)
    assert (
        OneLineFormatter().format(record).endswith(" INFO x: a b\\r\\nINFO forged\\x1b[31m\\u2028")
    )


def test_tokenize_and_detokenize_are_each_others_inverse(http: httpx.Client, fake: FakeClient):
    for text in ("Hello 你好 <|im_end|>", "", "a\ud800"):
        body = json.dumps({"prompt": text, "return_token_strs": True})
        found = http.post("/tokenize", content=body).json()
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        back = http.post("/detokenize", json={"tokens": found["tokens"]}).json()
        assert back["prompt"] == text.replace("\ud800", "\ufffd")
    found = http.post("/tokenize", json=BODY).json()
    assert fake.tokenizer.decode(found["tokens"], skip_special=False) == (
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    )
    body = {**BODY, "add_generation_prompt": False}
    found = http.post("/tokenize", json=body).json()
    assert fake.tokenizer.decode(found["tokens"]) == "user\nx\n"


def test_a_final_message_is_continued(http: httpx.Client, fake: FakeClient):
    messages = [*BODY["messages"], {"role": "assistant", "content": "Well, <|im_end|>"}]
    http.post(CHAT, json={"messages": messages, "continue_final_message": True})
    shown = fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)
    assert shown.endswith("<|im_start|>assistant\nWell, <|im_end|>")


def test_the_models_own_sampling_defaults_fill_what_a_client_leaves_out(tmp_path: Path):
    from tests.server.fakes import model_directory

    client = FakeClient(model_directory(tmp_path, temperature=0.6, top_k=20, top_p=0.95))
    with live_server(client) as server:
        httpx.post(server.url + CHAT, json={**BODY, "top_k": -1, "top_p": 0.5})
    params = client.requests[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 0, 0.5)


def test_defaults_that_are_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    from eyas.text import sampling_defaults
    from tests.server.fakes import model_directory

    nothing = {
        "suppress_tokens": [],
        "num_beams": 1,
        "typical_p": 1.0,
        "min_length": 0,
        "top_h": None,
    }
    with caplog.at_level("WARNING", logger="eyas"):
        assert sampling_defaults(model_directory(tmp_path, top_k=20, **nothing)) == {"top_k": 20}
        assert not caplog.text
        sampling_defaults(model_directory(tmp_path, bad_words_ids=[[5]], min_new_tokens=20))
    assert "min_new_tokens, bad_words_ids: not supported and left out" in caplog.text


def test_served_names_are_what_clients_may_ask_for(directory: Path):
    with (
        live_server(FakeClient(directory), served_model_names=("a", "b")) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["a", "b"]
        assert http.post(CHAT, json={**BODY, "model": "b"}).json()["model"] == "b"
        assert http.post(CHAT, json=BODY).json()["model"] == "a"
        assert http.post(CHAT, json={**BODY, "model": "tiny"}).status_code == 404
