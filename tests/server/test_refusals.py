"""What an error says: the field that was sent, in bounds, in OpenAI's shape, whatever went wrong."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.fakes import FakeClient
from tests.server.test_limits import until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "x"}]


def error_of(http: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = http.post(path, content=content)
    assert response.status_code == 400, response.text[:500]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "excerpt", "docs"}
    return error


FORMS = "prompt: must be a string, a list of token ids, or a list of either"


JSON_OBJECT = 'must be an object such as {"type": "json_object"}'
BIG = 10**300


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (TEXT, {"prompt": None}, "prompt", FORMS),
        (TEXT, {"prompt": 5}, "prompt", FORMS),
        (TEXT, {"prompt": []}, "prompt", "at least 1 item"),
        (TEXT, {"prompt": [[]]}, "prompt[0]", "at least 1 item"),
        (TEXT, {"prompt": [[1], [1, "x"]]}, "prompt[1][1]", "valid integer"),
        (TEXT, {"prompt": ["x"] * 129}, "prompt", "at most 128 items"),
        (TEXT, {"prompt": [1, -1]}, "prompt[1]", "greater than or equal to 0"),
        (TEXT, {"prompt": ["x", 1]}, "prompt[1]", "valid string"),
        (TEXT, {"prompt": "x", "stop": ["x"] * 17}, "stop", "at most 16 items"),
        (TEXT, {"prompt": "x", "stop": 5}, "stop", "must be a string or a list of strings"),
        (TEXT, {"prompt": "x", "stop": ["x", 5]}, "stop[1]", "valid string"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a string"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "must be a text part",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
            "valid string",
        ),
        (TEXT, {"prompt": "x", "logit_bias": {"5": None}}, 'logit_bias["5"]', "valid number"),
        (CHAT, {"messages": [{**USER[0], "x-y": 1}]}, 'messages[0]["x-y"]', "is not a field"),
        (CHAT, {"messages": USER, "x-y": 1}, "x-y", "is not a field"),
        (CHAT, {"messages": USER, "": 1}, '[""]', "is not a field"),
        (TEXT, {"prompt": ["x", ""]}, "prompt[1]", "is empty"),
        (TEXT, {"prompt": [[1], [1_000_000]]}, "prompt[1]", "beyond the vocabulary"),
        (TEXT, {"prompt": [[1], [1] * 600]}, "prompt[1]", "context holds"),
        (TEXT, {"prompt": [1_000_000]}, "prompt", "beyond the vocabulary"),
        ("/generate", {"text": ["x", ""]}, "text[1]", "is empty"),
        ("/generate", {"input_ids": [[1], [1_000_000]]}, "input_ids[1]", "beyond the vocabulary"),
        (
            CHAT,
            {"messages": USER, "response_format": "json_object"},
            "response_format",
            JSON_OBJECT,
        ),
        (CHAT, {"messages": ["x"]}, "messages[0]", 'must be an object such as {"role": "user"'),
        (CHAT, {"messages": "x"}, "messages", "must be a list"),
        (CHAT, {"messages": USER, "stream_options": 5}, "stream_options", "must be an object such"),
        (
            CHAT,
            {"messages": USER, "stream": True, "stream_options": {"include": True}},
            "stream_options.include",
            "is not a field",
        ),
        (
            CHAT,
            {"messages": USER, "stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "needs include_usage: true",
        ),
        (CHAT, {"messages": USER, "metadata": 5}, "metadata", "must be an object"),
        (CHAT, {"messages": USER, "seed": BIG}, "seed", "less than or equal to"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        *(
            (CHAT, {"messages": [*USER, {"role": role, **more}]}, "messages[1].content", "required")
            for role in ("user", "system", "developer", "tool", "assistant")
            for more in ({}, {"content": None})
        ),
        (
            CHAT,
            {"messages": [{"role": "system", "content": "x"}, {"role": "system"}, *USER]},
            "messages[1].content",
            "is required",
        ),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        (CHAT, {"messages": USER, "min_tokens": 600}, "min_tokens", "context holds 512"),
        (TEXT, {"prompt": "x", "min_tokens": 17}, "min_tokens", "is above max_tokens"),
        (
            TEXT,
            {"prompt": [5] * 500, "min_tokens": 13, "max_tokens": 20},
            "min_tokens",
            "12 or fewer",
        ),
        (
            "/generate",
            {"text": "x", "sampling_params": {"min_new_tokens": 600, "max_new_tokens": 600}},
            "sampling_params.min_new_tokens",
            "context holds 512",
        ),
        (CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens", "at least 1"),
        (CHAT, {"messages": USER, "kv_transfer_params": {"a": 1}}, "kv_transfer_params", "neither"),
        (CHAT, {"messages": USER, "top_K": 1}, "top_K", "did you mean top_k?"),
        (CHAT, {"messages": USER, "return_token_ids": True}, "return_token_ids", "must be false"),
        (CHAT, {"messages": USER, "bad_words": ["x"]}, "bad_words", "logit_bias"),
        (TEXT, {"prompt": "x", "max_completion_tokens": 5}, "max_completion_tokens", "max_tokens"),
        (TEXT, {"prompt": "x", "logit_bias": {"5": 1, "05": 2}}, "logit_bias", "token ids"),
        (TEXT, {"prompt": "x", "n": 2, "best_of": 1}, "best_of", "leave it out"),
        (
            "/generate",
            {"text": ["x y z", "x"], "return_logprob": True, "logprob_start_len": 9},
            "logprob_start_len",
            "below",
        ),
        (TEXT, {"prompt": [5] * 513, "max_tokens": 0, "echo": True}, "prompt", "context holds"),
        (TEXT, {"prompt": [5] * 512, "max_tokens": 1, "echo": True}, "prompt", "context holds"),
        ("/generate", {"text": {}}, "text", "must be a string or a list of strings"),
        ("/generate", {"input_ids": ["x"]}, "input_ids", "must be a list of token ids, or"),
        ("/generate", {"input_ids": [[1], [None]]}, "input_ids[1][0]", "valid integer"),
    ],
)
def test_a_field_of_several_forms_is_judged_by_the_one_that_was_sent(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, said: str
):
    error = error_of(http, path, fields)
    assert error["param"] == param
    assert said in error["message"] and "instance of" not in error["message"]
    assert error["message"].startswith(f"{param}: ") or error["code"] == "context_length_exceeded"


SHORT, LONG = "x", "x " * 3000
TOOLS = [{"name": f"f{i}", "description": "word " * 90, "parameters": {}} for i in range(20)]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/messages", {"messages": USER, "system": LONG, "max_tokens": 1}, "system"),
        (
            "/v1/messages",
            {"messages": [*USER, {**USER[0], "content": LONG}], "system": SHORT, "max_tokens": 1},
            "messages",
        ),
        ("/v1/responses", {"input": SHORT, "instructions": LONG}, "instructions"),
        (
            "/v1/responses",
            {"input": SHORT, "instructions": LONG, "truncation": "auto"},
            "instructions",
        ),
        ("/v1/responses", {"input": [{**USER[0], "content": LONG}], "instructions": "x"}, "input"),
        (CHAT, {"messages": [{**USER[0], "content": LONG}]}, "messages"),
        (
            CHAT,
            {"messages": USER, "tools": [{"type": "function", "function": tool} for tool in TOOLS]},
            "tools",
        ),
        (
            "/v1/responses",
            {"input": SHORT, "tools": [{"type": "function", **tool} for tool in TOOLS]},
            "tools",
        ),
    ],
)
def test_a_prompt_that_is_too_long_names_the_field_with_the_most_text(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
):
    response = http.post(path, json=fields)
    assert response.status_code == 400, response.text[:500]
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_no_alternatives_need_no_log_probabilities(http: httpx.Client):
    assert http.post(CHAT, json={"messages": USER, "top_logprobs": 0}).status_code == 200


def test_an_assistant_may_call_refuse_or_reason_without_content(
    http: httpx.Client, fake: FakeClient
):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for said in ({"tool_calls": [call]}, {"refusal": "No."}, {"reasoning_content": "Well."}):
        for content in ({}, {"content": None}):
            messages = [*USER, {"role": "assistant", **said, **content}, *USER]
            assert http.post(CHAT, json={"messages": messages}).status_code == 200
    empty = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    assert http.post(CHAT, json={"messages": empty}).status_code == 200


def test_a_prompt_that_fills_the_context_is_scored(http: httpx.Client, fake: FakeClient):
    fields = {"max_tokens": 0, "echo": True, "logprobs": 1}
    body = http.post(TEXT, json={"prompt": [5] * 512, **fields}).json()
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 512
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 500])
def test_a_number_that_is_not_finite_or_too_large_is_named(http: httpx.Client, number: str):
    for text, param in (
        ('{"messages": [{"role": "user"}, {}], "temperature": %s}', "temperature"),
        ('{"messages": [{"role": "user", "content": "x"}], "seed": %s}', "seed"),
        ('{"a": [1, {"b": [2, %s]}, []]}', "a[1].b[1]"),
        ('{"json_schema": {"x y": {"minimum": %s}}}', 'json_schema["x y"].minimum'),
    ):
        error = error_of(http, CHAT, (text % number).encode())
        assert error["param"] == param
        assert error["message"] == f"{param}: holds a number that is not finite or too large"


def test_what_is_no_utf8_is_refused(http: httpx.Client, fake: FakeClient):
    body = json.dumps({"messages": USER})
    for encoding in ("utf-16", "utf-32-le"):
        assert "not valid JSON" in error_of(http, CHAT, body.encode(encoding))["message"]
    assert http.post(CHAT, content=body.encode("utf-8-sig")).status_code == 200


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temprature", "temprature: is not a field of this request; did you mean temperature?"),
        ("max_token", "did you mean max_tokens?"),
        ("zzz", "is not a field of this request; leave it out"),
        ("enable_thinking", "send chat_template_kwargs"),
        ("extra_body", "send its members as fields"),
        ("reasoning", "send reasoning_effort"),
    ],
)
def test_an_unknown_field_has_a_remedy(http: httpx.Client, fake: FakeClient, name: str, words: str):
    body = {"messages": [{"role": "user", "content": "x"}], name: {"a": 1}}
    error = http.post("/v1/chat/completions", json=body).json()["error"]
    assert words in error["message"] and error["param"] == name
    assert error["code"] in ("unknown_parameter", "unsupported_parameter")


def test_an_error_repeats_little_of_the_request(http: httpx.Client, fake: FakeClient):
    long = "k" * 3_000_000
    for path, body in (
        (CHAT, {"messages": USER, long: 1}),
        (CHAT, {"messages": [{**USER[0], long: 1}]}),
        (CHAT, {"messages": USER, "stream": True, "stream_options": {long: True}}),
        (CHAT, {"messages": USER, "chat_template_kwargs": {long: True}}),
        (CHAT, {"messages": USER, "logit_bias": {long: 1}}),
        (CHAT, {"messages": USER, "response_format": {"type": long}}),
        (CHAT, {"messages": USER, "json_schema": {"type": "object", long: long}}),
        (CHAT, {"messages": USER, "json_schema": {"type": long}}),
        (CHAT, {"messages": USER, "json_schema": {"$ref": "#/" + long}}),
        (CHAT, {"messages": USER, "structural_tag": {"format": {"type": long}}}),
        (CHAT, {"messages": [{"role": long, "content": "x"}]}),
        (TEXT, {"prompt": "x", long: 1}),
    ):
        error = error_of(http, path, body)
        assert len(json.dumps(error)) < 1500, error["message"][:300]


def test_a_bug_of_ours_is_an_error_in_the_right_shape(
    http: httpx.Client, fake: FakeClient, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("ERROR", logger="eyas.server")
    fake.failure = RuntimeError("secret detail")
    for stream in (False, True):
        headers = {"x-request-id": "mine"}
        body = {"messages": USER, "stream": stream}
        response = http.post(CHAT, json=body, headers=headers)
        assert response.status_code == 500
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-request-id"] == "mine"
        assert set(response.json()["error"]) == {
            "message",
            "type",
            "param",
            "code",
            "excerpt",
            "docs",
        }
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
    assert until(lambda: caplog.text.count("request mine failed") == 2)
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("penalty", [1e-38, 1e-5, 0.009])
def test_a_penalty_that_nothing_survives_is_refused(http: httpx.Client, penalty: float):
    error = error_of(http, CHAT, {"messages": USER, "repetition_penalty": penalty})
    assert error["param"] == "repetition_penalty"
    limits = f"must be a number between 0.01 and 100, not {penalty!r}; 1 is off"
    assert error["message"] == f"repetition_penalty: {limits}"


def test_more_answers_than_ever_fit_are_refused_for_good(directory):
    from tests.server.fakes import live_server

    with (
        live_server(FakeClient(directory), max_queued=4) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for path, body, param in (
            (CHAT, {"messages": USER, "n": 5}, "n"),
            (TEXT, {"prompt": ["x", "y"], "n": 3}, "n"),
            (TEXT, {"prompt": ["x"] * 5}, "prompt"),
            ("/generate", {"text": ["x"] * 5}, "text"),
            ("/generate", {"input_ids": [[1]] * 5}, "input_ids"),
            ("/generate", {"text": "x", "sampling_params": {"n": 5}}, "sampling_params.n"),
        ):
            error = error_of(http, path, body)
            assert error["message"].startswith(f"{param}: a client may have at most 4 answers at")
            assert error["param"] == param
        assert http.post(CHAT, json={"messages": USER, "n": 4}).status_code == 200
