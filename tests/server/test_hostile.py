"""Whatever a client sends, it gets a 4xx in the shape of the route and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.fakes import FakeClient

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ALL_PATHS = (
    *(CHAT, TEXT, "/generate", "/tokenize", "/detokenize", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens"),
)
USER = [{"role": "user", "content": "x"}]


def chat(**fields: Any) -> tuple[str, bytes]:
    return CHAT, json.dumps({"model": "tiny", "messages": USER, **fields}).encode()


def text(**fields: Any) -> tuple[str, bytes]:
    return TEXT, json.dumps({"model": "tiny", "prompt": "x", **fields}).encode()


def respond(**fields: Any) -> tuple[str, bytes]:
    return "/v1/responses", json.dumps({"model": "tiny", "input": "x", **fields}).encode()


def anthropic(**fields: Any) -> tuple[str, bytes]:
    body = {"model": "tiny", "messages": USER, "max_tokens": 5, **fields}
    return "/v1/messages", json.dumps(body).encode()


def messages(*values: Any) -> tuple[str, bytes]:
    return chat(messages=list(values))


TOOL = {"type": "function", "function": {"name": "f"}}
NAMES_G = {"type": "function", "function": {"name": "g"}}
HUGE = 10**400
NESTED = '{"a":' * 50_000
INPUTS: list[Any] = [
    *(
        5,
        {},
        [],
        [[]],
        [None],
        ["x"],
        [{}],
        [{"type": []}],
        [{"type": "item_reference", "id": "x"}],
    ),
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "input_text"}]}],
    [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}],
    [{"role": "user", "content": "x", "type": "message", "x": 1}],
    [{"type": "function_call", "call_id": "x", "name": "f"}],
    [{"type": "function_call", "call_id": "x", "name": "f" * 999, "arguments": "{}"}],
    [{"type": "function_call_output", "call_id": "x", "output": {"a": 1}}],
    [{"type": "function_call_output", "call_id": 5, "output": "x"}],
    [{"type": "reasoning", "content": [{"type": "summary"}]}],
    [{"role": "user", "content": "x"}] * 4097,
    "x " * 100_000,
]
FIELDS: dict[str, list[Any]] = {
    "model": [1, [], {}, True, "other", "x" * 5000, "../../etc/passwd", "tiny\n", ""],
    "stream": [1, "true", [], "yes"],
    "stream_options": [
        *({}, {"include_usage": True}, [], "x", {"unknown": True}),
        {"continuous_usage_stats": True},
    ],
    "n": [0, -1, 129, 10**9, 1.5, "1", True, [1], HUGE],
    "temperature": [-0.1, 101, "0.5", True, [], {}, HUGE],
    "top_p": [-1, 1.1, "1", []],
    "top_k": [-2, 1.5, "5", 2**40, True],
    "min_p": [-0.1, 1.1, "0"],
    "repetition_penalty": [0, -1, 1000, "1"],
    "frequency_penalty": [101, -101, "x", HUGE],
    "presence_penalty": [101, -101, []],
    "logit_bias": [
        {"a": 1},
        {"-1": 1},
        {"1": 101},
        {"1": "x"},
        [],
        5,
        {"1.5": 1},
        {str(k): 1 for k in range(2000)},
        {"99999999999": 1},
        {"\u0661": 1},
    ],
    "seed": [1.5, "1", 2**64, -(2**63) - 1, [], HUGE],
    "max_tokens": [-1, 1.5, "10", 2**31, True, HUGE],
    "min_tokens": [-1, "1", 2**31],
    "stop": [5, [5], [""], ["x"] * 17, ["x" * 600], {}, [["x"]], [None]],
    "stop_token_ids": [5, ["a"], [-1], [1] * 200, [1.5], [2**40]],
    "ignore_eos": ["x", 1],
    "skip_special_tokens": ["x", 0],
    "include_stop_str_in_output": [2],
    "prompt_logprobs": [-1, 21, "1", True],
    "cache_salt": [1, "x" * 1000],
    "best_of": [2, "x", True, HUGE],
    "use_beam_search": [True, 1.5, "x"],
    "response_format": [
        "text",
        [],
        {},
        {"type": "text", "x": 1},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strnig"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "http://x/y"}}},
        {"type": "json_schema", "json_schema": {"name": "x" * 999, "schema": {}}},
        {"type": "structural_tag"},
        {"type": "structural_tag", "format": {"type": "any_text", "max_tokens": 5}},
        {"type": "structural_tag", "structures": [], "triggers": []},
    ],
    "unknown_field": [1, {}, False],
    "__class__": [1],
    "guided_json": [5, [], "", "{", "[]", "null", "\ud800", NESTED, {"enum": []}, {"type": {}}],
    "guided_regex": [5, "", [], {}, "x" * 100_000],
    "guided_choice": [5, "x", [], [5], [""], [["x"]], {}, ["x"] * 20_000],
    "guided_grammar": [5, "", " ", "{}", "{", '{"grammars": 5}', [], "x" * 1_100_000],
    "guided_decoding_backend": [5, "x" * 1000],
    "guided_whitespace_pattern": [5, " ", "(", "[ ]?"],
    "structured_outputs": [
        5,
        [],
        {},
        "x",
        {"regex": 5},
        {"regex": "x", "choice": ["y"]},
        {"json": []},
        {"json": ""},
        {"json": NESTED},
        {"choice": "xy"},
        {"grammar": ""},
        {"json_object": "yes"},
        {"structural_tag": 5},
        {"structural_tag": "x"},
        {"structural_tag": {"format": {"type": "token", "token": 5}}},
        {"unknown": 1},
        {"regex": "x", "whitespace_pattern": "x*"},
        {"json": {}, "whitespace_pattern": "("},
    ],
    "regex": [5, "", [], {}, "x" * 100_000],
    "ebnf": [5, "", " ", "{}", "{", [], "x" * 1_100_000],
    "json_schema": [5, [], "", "{", "[]", "true", NESTED, '{"a": NaN}', {"minimum": "x"}],
    "structural_tag": [5, [], "", "{", {}, NESTED, {"format": 5}, {"format": {"type": "xml"}}],
    "grammar": ["root ::= x", {"type": "json", "value": {}}],
    "format": ["json", {}],
    "lora_request": [{"x": 1}],
    "chat_template": ["{{ 1 }}"],
    "functions": [[]],
    "function_call": ["auto"],
}
CHAT_FIELDS: dict[str, list[Any]] = {
    "rid": [5, ["x"], "x" * 1000],
    "request_id": [5, ["x"], "x" * 1000],
    "messages": [None, [], {}, "x", 5, [5], [[]], ["x"], [None], [{}], [USER]],
    "tools": [{}, "x", [5], [{}], [{"type": "function"}], [TOOL | {"x": 1}], [TOOL] * 1000]
    + [[{"type": "function", "function": {"name": name}}] for name in ("", 5, None, "x" * 300)]
    + [
        [{"type": "function", "function": {"name": name}}]
        for name in ("a b", "f\n", "f\0", "\u00e9")
    ]
    + [[TOOL, TOOL], [{"type": "function", "function": {"name": "f", "strict": "yes"}}]]
    + [
        [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
        for schema in ({"type": "string"}, {"type": "strnig"}, {"properties": []}, {"not": {}})
    ]
    + [[{"type": "function", "function": {"name": "f", "parameters": "x"}}]],
    "tool_choice": [
        "required",
        "x",
        5,
        {"type": "function", "function": {"name": "f"}},
        [],
        True,
        {},
        {"type": "function"},
        {"type": "function", "function": {"name": 5}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": [TOOL]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}]}},
        {"type": "allowed_tools"},
    ],
    "parallel_tool_calls": ["x", 1],
    "max_reasoning_tokens": [-1, "x", 1.5, True, HUGE],
    "thinking_budget": [-1, "x"],
    "thinking_token_budget": [-1, "x"],
    "separate_reasoning": ["x", 1],
    "include_reasoning": ["x", 1],
    "stream_reasoning": ["x", 1],
    "logprobs": [1, "true", 5],
    "top_logprobs": [1, -1, 21, "x"],
    "verbosity": ["much", 5],
    "prediction": ["x", {"type": "content"}, {"type": "x", "content": "x"}],
    "max_completion_tokens": [0, -1, "x"],
    "chat_template_kwargs": [
        {"tokenize": True},
        {"chat_template": "x"},
        {"messages": "x"},
        {"nothing_like_it": True},
        {"enable_thinking": []},
        {"enable_thinking": None},
        {"enable_thinking": "x" * 5000},
        {"eos_token": "x"},
        {"__class__": 1},
        {"self": 1},
        [],
        "x",
    ],
    "reasoning_effort": ["hi", 5, True, "x" * 1000],
    "modalities": [["audio"], "text"],
    "audio": [{}],
    "echo": [True],
    "prompt": ["x"],
    "suffix": ["x"],
    "continue_final_message": ["x"],
    "add_generation_prompt": ["x"],
}
TEXT_FIELDS: dict[str, list[Any]] = {
    "rid": [5, ["x"], "x" * 1000],
    "request_id": [5, ["x"], "x" * 1000],
    "prompt": [
        None,
        "",
        [],
        [[]],
        [""],
        5,
        {},
        [-1],
        [1.5],
        [True],
        [10**9],
        [HUGE],
        ["x", 1],
        [1, "x"],
        [[1], ["x"]],
        [[[1]]],
        ["x"] * 200,
        "word " * 5000,
        [1] * 600,
        [499 + 1],
    ],
    "logprobs": [-1, 21, True, "x"],
    "suffix": ["x", "<|im_end|>", 5],
    "echo": [1, "x"],
    "max_tokens": [0],
    "messages": [USER],
}
MESSAGES = [
    {"role": "wizard", "content": "x"},
    {"role": "", "content": "x"},
    {"role": None, "content": "x"},
    {"role": ["user"], "content": "x"},
    {"role": "function", "content": "x"},
    {"role": "<|im_end|>", "content": "x"},
    {"content": "x"},
    {"role": "user", "content": 5},
    {"role": "user", "content": {}},
    {"role": "user", "content": [5]},
    {"role": "user", "content": ["x"]},
    {"role": "user", "content": [{}]},
    {"role": "user", "content": [{"type": "text"}]},
    {"role": "user", "content": [{"type": "text", "text": 5}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
    {"role": "user", "content": [[{"type": "text", "text": "x"}]]},
    {"role": "user", "content": "x", "unknown": 1},
    {"role": "user", "content": "x", "name": 5},
    {"role": "user", "content": "x", "name": "x" * 1000},
    {"role": "assistant", "tool_calls": {}},
    {"role": "assistant", "tool_calls": [{}]},
    {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
    {"role": "assistant", "tool_calls": [{"type": "x", "function": {"name": "f"}}]},
    {"role": "assistant", "tool_calls": [None]},
    {"role": "tool", "content": "x", "tool_call_id": 5},
    {"role": "user", "content": "word " * 5000},
]
BYTES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"5",
    b"true",
    b"\x00",
    b"\xff\xfe",
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": NaN}',
    b'{"temperature": Infinity, "messages": [{"role": "user", "content": "x"}]}',
    b'{"temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
    b'{"seed": ' + b"9" * 10_000 + b"}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"a":'
    + b"[" * 5000
    + b"]" * 5000
    + b"}}",
    b"{'model': 'tiny'}",
    b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}]} trailing',
    b'{"model": "tiny" "messages": []}',
    b"model=tiny&messages=x",
    b"<xml/>",
    b"\xef\xbb\xbf{}",
]


NATIVE_FIELDS: dict[str, list[Any]] = {
    "text": [None, 5, [], [5], [""], {}, "", "word " * 5000, ["x"] * 200],
    "sampling_params": [5, "x", [], [{}, {}], {"unknown": 1}, {"response_format": {}}],
    "stream": ["x", 1],
    "return_logprob": ["x", 1],
    "logprob_start_len": [-2, 1.5, "x"],
    "top_logprobs_num": [-1, 21, "x"],
    "rid": [5, ["x", "y"], [5], "x" * 1000],
    "image_data": ["x"],
    "lora_path": ["x"],
    "messages": [USER],
}
SAMPLING_PARAMS: dict[str, list[Any]] = {
    "max_new_tokens": [-1, "x", 2**31, True],
    "min_new_tokens": [-1, "x", 1000],
    "max_tokens": [5],
    "temperature": [-1, "x", 101],
    "top_p": [-1, 2],
    "top_k": [-2, "x"],
    "n": [0, 129],
    "stop": [5, [5], ["x"] * 17],
    "sampling_seed": ["x", 2**64],
    "regex": [5, ""],
    "ebnf": [5, "", "{}"],
    "json_schema": [5, "", "{", NESTED],
    "structural_tag": [5, "x", {"format": 5}],
    "logit_bias": [{"a": 1}],
    "custom_params": [{"a": 1}],
    "stop_regex": ["x"],
    "spaces_between_special_tokens": [False],
}


def generate(**fields: Any) -> tuple[str, bytes]:
    return "/generate", json.dumps({"text": "x", **fields}).encode()


def deep_tool() -> tuple[str, bytes]:
    deep: Any = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    return chat(tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])


def corpus() -> list[tuple[str, bytes]]:
    found = [chat(**{name: value}) for name, values in FIELDS.items() for value in values]
    found = [
        entry for entry in found if b'"stream_options": {"include_usage": true}' not in entry[1]
    ] + [chat(stream_options={"include_usage": True})]
    found += [respond(**{name: value}) for name, values in FIELDS.items() for value in values]
    found += [respond(input=value) for value in INPUTS]
    found += [anthropic(**{name: value}) for name, values in FIELDS.items() for value in values]
    found += [anthropic(messages=value) for value in CHAT_FIELDS["messages"]]
    found += [text(**{name: value}) for name, values in FIELDS.items() for value in values]
    found += [chat(**{name: value}) for name, values in CHAT_FIELDS.items() for value in values]
    found += [text(**{name: value}) for name, values in TEXT_FIELDS.items() for value in values]
    found += [messages(message) for message in MESSAGES]
    found += [(path, body) for body in BYTES for path in ALL_PATHS]
    found += [
        chat(max_tokens=1, max_completion_tokens=2),
        chat(min_tokens=5, max_tokens=2),
        chat(stream=True, prompt_logprobs=1),
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        chat(
            tools=[TOOL],
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [NAMES_G]},
            },
        ),
        chat(tools=[TOOL], separate_reasoning=False),
        chat(regex="a", ignore_eos=True),
        chat(tools=[TOOL], ignore_eos=True),
        chat(regex="a", ebnf='root ::= "a"'),
        chat(regex="a", response_format={"type": "json_object"}),
        chat(guided_json={"type": "object"}, json_schema={"type": "array"}),
        chat(max_reasoning_tokens=5, thinking_budget=6),
        text(regex="a", ignore_eos=True),
        text(guided_choice=["a"], structured_outputs={"choice": ["b"]}),
        chat(continue_final_message=True, add_generation_prompt=True),
        text(prompt=["x"] * 60, n=3),
        text(echo=True, stream=True, logprobs=1),
        deep_tool(),
        *(generate(**{name: value}) for name, values in NATIVE_FIELDS.items() for value in values),
        *(
            generate(sampling_params={name: value})
            for name, values in SAMPLING_PARAMS.items()
            for value in values
        ),
        ("/generate", b"{}"),
        generate(input_ids=[1]),
        generate(top_logprobs_num=2),
        generate(sampling_params={"regex": "a", "ignore_eos": True}),
        generate(sampling_params={"regex": "a", "ebnf": 'root ::= "a"'}),
        generate(text=["x"] * 60, sampling_params={"n": 3}),
        ("/tokenize", b"{}"),
        ("/tokenize", b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}'),
        ("/tokenize", b'{"prompt": 5}'),
        ("/detokenize", b"{}"),
        ("/detokenize", b'{"tokens": [-1]}'),
        ("/detokenize", b'{"tokens": [500]}'),
        ("/detokenize", b'{"tokens": ["x"]}'),
    ]
    return found


def test_the_corpus_is_large():
    assert len(corpus()) >= 300


def test_every_hostile_body_is_a_refusal_in_the_right_shape(http: httpx.Client, fake: FakeClient):
    for path, body in corpus():
        response = http.post(path, content=body, headers={"content-type": "application/json"})
        shown = (path, body[:300], response.status_code, response.text[:300])
        assert 400 <= response.status_code < 500, shown
        error = response.json()["error"]
        details = {"details"} if path.startswith("/v1/messages") else set()
        names = {"message", "type", "param", "code", "excerpt", "docs"}
        assert set(error) == names | details, shown
        assert error["message"] and "Traceback" not in error["message"], shown
        assert "Error(" not in error["message"] and len(error["message"]) < 1000, shown
    assert http.get("/ready").status_code == 200
    assert fake.requests == []


@pytest.mark.parametrize("field", [*FIELDS, *CHAT_FIELDS])
def test_a_refused_field_is_named(http: httpx.Client, fake: FakeClient, field: str):
    values = FIELDS.get(field) or CHAT_FIELDS[field]
    path, body = chat(**{field: values[0]})
    error = http.post(path, content=body).json()["error"]
    assert field in error["message"] or field in str(error["param"])


@pytest.mark.parametrize(
    "content",
    ["\x00", "\ud800", "a\udfffb", "\u2028", "\x1b[31m", "<|im_end|>", "\ufeff", "x" * 400, " "],
)
def test_odd_text_is_served(http: httpx.Client, fake: FakeClient, content: str):
    stop = [content.encode("utf-8", "replace").decode()]
    body = json.dumps({"messages": [{"role": "user", "content": content}], "stop": stop})
    response = http.post(CHAT, content=body)
    assert response.status_code == 200, response.text
    prompt = fake.requests[-1].prompt_token_ids
    assert sum(token in fake.tokenizer.control_ids for token in prompt) == 3
    body = json.dumps({"prompt": content, "echo": True})
    response = http.post(TEXT, content=body)
    assert response.status_code == 200, response.text


def test_odd_requests_are_refused(http: httpx.Client, fake: FakeClient):
    good = json.dumps({"messages": USER}).encode()
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/v1/models/%2e%2e%2fpasswd", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("TRACE", "/v1/models", 405),
    ):
        response = http.request(method, path, content=good)
        assert response.status_code == status, (method, path)
        assert response.json()["error"]["message"]
    response = http.post(CHAT, content=good, headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    response = http.post(CHAT, content=good, headers={"x-request-id": "a b\tc"})
    assert response.status_code == 200 and response.headers["x-request-id"] != "a b\tc"
    response = http.post(CHAT, content=good, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
