"""Golden transcripts: the bytes on the wire, but for ids and times."""

from __future__ import annotations

import json
import re

import httpx

from eyas.server.http.errors import DOCS
from tests.server.fakes import FakeClient

USER = [{"role": "user", "content": "x"}]
SEED = {"seed": 1}


def golden(text: str) -> str:
    text = re.sub(r'"id":"(chatcmpl|cmpl)-[0-9a-f]{24}"', r'"id":"\1-ID"', text)
    return re.sub(r'"created":\d+', '"created":0', text)


def chunk(choice: str, usage: str = "") -> str:
    head = '{"id":"chatcmpl-ID","created":0,"model":"tiny","object":"chat.completion.chunk"'
    return f'data: {head},"choices":[{choice}]{usage}}}\n\n'


def text_chunk(choice: str) -> str:
    head = '{"id":"cmpl-ID","object":"text_completion","created":0,"model":"tiny"'
    return f'data: {head},"choices":[{choice}]}}\n\n'


def test_a_chat_stream(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: "Paris city"
    response = http.post(
        "/v1/chat/completions",
        json={
            "messages": USER,
            "stream": True,
            "stream_options": {"include_usage": True},
            **SEED,
        },
    )
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    num_prompt = len(fake.requests[-1].prompt_token_ids)
    assert golden(response.text) == (
        chunk(
            '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            '"finish_reason":null}',
            ',"usage":null',
        )
        + chunk(
            '{"index":0,"delta":{"content":"Paris"},"logprobs":null,"finish_reason":null}',
            ',"usage":null',
        )
        + chunk(
            '{"index":0,"delta":{"content":" city"},"logprobs":null,"finish_reason":null}',
            ',"usage":null',
        )
        + chunk(
            '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,'
            '"seed":1}',
            ',"usage":null',
        )
        + chunk("", f',"usage":{usage(num_prompt, 2)}')
        + "data: [DONE]\n\n"
    )


def usage(num_prompt: int, num_output: int, num_reasoning: int | None = 0) -> str:
    """num_reasoning: None where reasoning is not told apart."""
    details = f',"completion_tokens_details":{{"reasoning_tokens":{num_reasoning}}}'
    return (
        f'{{"prompt_tokens":{num_prompt},"completion_tokens":{num_output},'
        f'"total_tokens":{num_prompt + num_output},"prompt_tokens_details":{{"cached_tokens":1}}'
        f"{'' if num_reasoning is None else details}}}"
    )


def test_a_whole_chat_answer(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: "Paris"
    response = http.post(
        "/v1/chat/completions",
        json={"messages": USER, "logprobs": True, "top_logprobs": 1, **SEED},
    )
    token = fake.tokenizer.encode_text("Paris")[0]
    logprob = -(token % 7) / 8
    entry = f'"token":"Paris","logprob":{logprob},"bytes":[80,97,114,105,115]'
    num_prompt = len(fake.requests[-1].prompt_token_ids)
    assert golden(response.text) == (
        '{"id":"chatcmpl-ID","created":0,"model":"tiny","object":"chat.completion","choices":['
        '{"index":0,"message":{"role":"assistant","content":"Paris","refusal":null},'
        f'"logprobs":{{"content":[{{{entry},"top_logprobs":[{{{entry}}}]}}],"refusal":null}},'
        '"finish_reason":"stop","stop_reason":null,"seed":1}],'
        f'"usage":{usage(num_prompt, 1)}}}'
    )


def test_a_completion_stream(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: "Paris city"
    response = http.post(
        "/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 1, **SEED}
    )
    assert golden(response.text) == (
        text_chunk('{"index":0,"text":"Paris","logprobs":null,"finish_reason":null}')
        + text_chunk(
            '{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null,'
            '"seed":1}'
        )
        + "data: [DONE]\n\n"
    )


def test_a_whole_completion(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: "Paris"
    response = http.post("/v1/completions", json={"prompt": "x", "logprobs": 1, **SEED})
    token = fake.tokenizer.encode_text("Paris")[0]
    logprob = -(token % 7) / 8
    assert golden(response.text) == (
        '{"id":"cmpl-ID","object":"text_completion","created":0,"model":"tiny","choices":['
        '{"index":0,"text":"Paris","logprobs":{"tokens":["Paris"],'
        f'"token_logprobs":[{logprob}],"top_logprobs":[{{"Paris":{logprob}}}],"text_offset":[0]}},'
        '"finish_reason":"stop","stop_reason":null,"seed":1}],'
        f'"usage":{usage(1, 1, None)}}}'
    )


DETAILS = {
    "steps": 6,
    "steps_with_draft": 4,
    "draft_tokens": 15,
    "accepted_tokens": 5,
    "accepted_tokens_per_step": 0.8333,
    "drafted_by_depth": [4, 3, 1],
    "accepted_by_depth": [3, 2],
    "drafted_by_source": {"ngram": 5, "head": 10},
    "accepted_by_source": {"head": 5},
    "endings": {"leaf": 1, "target": 2, "stop": 1},
}


def test_usage_says_what_became_of_drafts_where_that_is_asked_for(
    http: httpx.Client, fake: FakeClient
):
    fake.answer = lambda request, index: "Paris"
    chat = {"messages": USER, "return_draft_details": True}
    usage = http.post("/v1/chat/completions", json=chat).json()["usage"]
    assert usage["draft_details"] == DETAILS
    text = {"prompt": ["x", "y"], "return_draft_details": True}
    twice = http.post("/v1/completions", json=text).json()["usage"]["draft_details"]
    assert (twice["steps"], twice["accepted_tokens_per_step"]) == (12, 0.8333)
    assert twice["drafted_by_depth"] == [8, 6, 2]
    assert twice["endings"] == {"leaf": 2, "target": 4, "stop": 2}
    for asked in ({"return_draft_details": False}, {"return_draft_details": None}, {}):
        usage = http.post("/v1/chat/completions", json={"messages": USER, **asked}).json()["usage"]
        assert "draft_details" not in usage


def test_a_stream_says_what_became_of_drafts_in_its_usage(http: httpx.Client, fake: FakeClient):
    for path, prompt in (
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        body = {**prompt, "stream": True, "return_draft_details": True}
        options = {"stream_options": {"include_usage": True}}
        lines = http.post(path, json={**body, **options}).text.split("\n\n")
        assert json.loads(lines[-3].removeprefix("data: "))["usage"]["draft_details"] == DETAILS
        refused = http.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "return_draft_details"
        assert "include_usage" in refused.json()["error"]["message"]
    refused = http.post("/v1/completions", json={"prompt": "x", "return_draft_details": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "return_draft_details"


def test_an_error(http: httpx.Client, fake: FakeClient):
    response = http.post("/v1/chat/completions", json={"messages": USER, "suffix": "x"})
    assert response.headers["content-type"] == "application/json"
    assert response.text == (
        '{"error":{"message":"suffix: is not a field of this request; leave it out",'
        '"type":"invalid_request_error","param":"suffix","code":"unknown_parameter",'
        f'"excerpt":"\\"x\\"","docs":"{DOCS}#unknown_parameter"}}}}'
    )


def test_a_stream_that_fails(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: "Paris city"
    fake.error_after = 1
    body = {"prompt": "x", "stream": True, **SEED}
    response = http.post("/v1/completions", json=body)
    assert golden(response.text) == (
        text_chunk('{"index":0,"text":"Paris","logprobs":null,"finish_reason":null}')
        + 'data: {"error":{"message":"a fake error","type":"server_error","param":null,'
        f'"code":"engine_error","excerpt":null,"docs":"{DOCS}#engine_error"}}}}\n\n'
        + "data: [DONE]\n\n"
    )
