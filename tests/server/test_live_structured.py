"""What a request asks of its output holds, live: the built-in model, talked to with real clients."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import openai
import pydantic
import pytest

from tests.gaps import is_bounded
from tests.server.conftest import NEEDS_CHECKPOINT
from tests.server.test_chat_answers import WEATHER, added_up, shown
from tests.thorough import drawn, only_thorough

USER = [{"role": "user", "content": "Specify a random city as JSON."}]
SETTINGS = [{"temperature": 0}, {"temperature": 1, "seed": 5}, {"temperature": 1.5, "seed": 6}]
TWO_SETTINGS = pytest.mark.parametrize("settings", [*SETTINGS[:2], *only_thorough(SETTINGS[2])])
TIME = {"type": "function", "function": {"name": "get_time"}}

pytestmark = NEEDS_CHECKPOINT


class City(pydantic.BaseModel):
    name: str
    population: int


def chat(url: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": USER, "max_tokens": 300, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def streamed(url: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": USER, "max_tokens": 300, "stream": True, **fields}
    text = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).text
    lines = text.split("\n\n")[:-2]
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]


@TWO_SETTINGS
def test_the_client_parses_what_it_asked_for(live_api: openai.OpenAI, settings: dict[str, Any]):
    fields = {"model": "builtin", "messages": USER, "response_format": City, "max_tokens": 400}
    answer = live_api.chat.completions.parse(**fields, **settings).choices[0]
    assert answer.finish_reason == "stop"
    assert isinstance(answer.message.parsed, City)
    with live_api.chat.completions.stream(**fields, **settings) as stream:
        final = stream.get_final_completion()
    if "seed" in settings:
        assert final.choices[0].message.content == answer.message.content


def test_tools_may_be_as_deep_as_schemas(live_url: str):
    def nested(levels: int) -> dict[str, Any]:
        parameters: dict[str, Any] = {"type": "integer"}
        for _ in range(levels):
            parameters = {"type": "object", "properties": {"a": parameters}, "required": ["a"]}
        return {"type": "function", "function": {"name": "f", "parameters": parameters}}

    fields = {"tool_choice": "required", "max_tokens": 1}
    chat(live_url, tools=[nested(47)], **fields)  # 95 levels of JSON
    body = {"messages": USER, "tools": [nested(48)], **fields}
    error = httpx.post(f"{live_url}/v1/chat/completions", json=body).json()["error"]
    assert error["code"] == "grammar_too_complex"
    assert error["param"] == "tools[0].function.parameters"


LANGUAGES: list[tuple[dict[str, Any], str]] = [
    ({"regex": "(Paris|Amsterdam)"}, "Paris|Amsterdam"),
    ({"guided_choice": ["yes", "no, never"]}, "yes|no, never"),
    ({"ebnf": 'root ::= ("a" | "b") [0-9]{2}'}, "[ab][0-9]{2}"),
    ({"ebnf": 'start: "x" /[a-c]{2,4}/'}, "x[a-c]{2,4}"),
    ({"structured_outputs": {"regex": "[A-Z][a-z]{2,5}"}}, "[A-Z][a-z]{2,5}"),
    (
        {
            "structural_tag": {
                "format": {
                    "type": "tag",
                    "begin": "<n>",
                    "content": {"type": "regex", "pattern": "[0-9]{1,3}"},
                    "end": "</n>",
                }
            }
        },
        "<n>[0-9]{1,3}</n>",
    ),
]


@pytest.mark.parametrize(
    ("fields", "pattern", "settings"),
    [(*each, SETTINGS[turn % len(SETTINGS)]) for turn, each in enumerate(LANGUAGES)],
)
def test_answers_are_of_the_language(
    live_url: str, fields: dict[str, Any], pattern: str, settings: dict[str, Any]
):
    choice = chat(live_url, **fields, **settings)
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["message"]["content"])
    stream = streamed(live_url, **fields, **settings)
    assert shown(added_up(stream)) == shown(choice["message"])
    body = {"prompt": "The capital is ", "max_tokens": 60, **fields, **settings}
    raw = httpx.post(f"{live_url}/v1/completions", json=body).json()["choices"][0]
    assert raw["finish_reason"] == "stop" and re.fullmatch(pattern, raw["text"])


NAMED = {"name": {"type": "string", "maxLength": 9}, "tags": {"type": "array", "maxItems": 2}}
NAMED_SCHEMA = {
    "type": "object",
    "properties": NAMED,
    "required": ["name", "tags"],
    "additionalProperties": False,
}
BY_GUIDANCE = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
    "lenient": False,
}


@pytest.mark.parametrize("turn", range(len(SETTINGS)))
def test_white_space_in_json_is_bounded_and_chosen(live_url: str, turn: int):
    """By itself, by a field, by the schema, and in a grammar as guidance's client sends it, twice; each
    with one of the settings, and with all in `make laws`."""
    settings = SETTINGS[turn]
    own = {**NAMED_SCHEMA, "x-guidance": BY_GUIDANCE}
    text = f"%llguidance {{}}\n\nstart: p\n\np[capture]: %json {json.dumps(own, indent=2)}\n\n"
    tag = {"type": "json_schema", "json_schema": {**NAMED_SCHEMA, "x-guidance": BY_GUIDANCE}}
    usual: dict[str, Any] = {}
    ways: tuple[tuple[dict[str, Any], dict[str, Any] | None], ...] = (
        ({"json_schema": NAMED_SCHEMA}, None),
        ({"structured_outputs": {"json": own}}, usual),
        ({"structural_tag": {"format": tag}}, usual),
        (
            {
                "guided_decoding_backend": "guidance",
                "guided_grammar": text,
                "structured_outputs": {"grammar": text},
            },
            usual,
        ),
        (
            {"structured_outputs": {"json": NAMED_SCHEMA, "whitespace_pattern": ""}},
            {"separators": (",", ":")},
        ),
    )
    for fields, separators in drawn(ways[turn :: len(SETTINGS)], ways):
        choice = chat(live_url, **fields, **settings)
        content = choice["message"]["content"]
        assert is_bounded(content)
        if choice["finish_reason"] == "stop":
            value = json.loads(content)
            jsonschema.validate(value, NAMED_SCHEMA)
            if separators is not None:
                assert content == json.dumps(value, ensure_ascii=False, **separators)


def test_the_native_route_keeps_a_constraint(live_url: str):
    params = {"regex": "(Paris|Amsterdam)", "temperature": 0}
    body = {"text": ["The capital of France is ", "Going to "], "sampling_params": params}
    answers = httpx.post(f"{live_url}/generate", json=body).json()
    for answer in answers:
        assert answer["text"] in ("Paris", "Amsterdam")
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@TWO_SETTINGS
def test_tools_are_called_as_was_asked(live_url: str, settings: dict[str, Any]):
    fields = {"tools": [WEATHER, TIME], **settings}
    schemas = {
        "get_weather": WEATHER["function"]["parameters"],
        "get_time": {"type": "object", "maxProperties": 0},
    }
    required = chat(live_url, **fields, tool_choice="required", parallel_tool_calls=False)
    assert required["finish_reason"] == "tool_calls" and required["message"]["content"] is None
    [call] = required["message"]["tool_calls"]
    jsonschema.validate(
        json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]]
    )
    named = {"type": "function", "function": {"name": "get_time"}}
    chosen = chat(live_url, **fields, tool_choice=named)
    assert chosen["finish_reason"] == "stop"
    assert [call["function"]["name"] for call in chosen["message"]["tool_calls"]] == ["get_time"]
    several = chat(live_url, **fields, tool_choice="required")
    if several["finish_reason"] == "tool_calls":
        for call in several["message"]["tool_calls"]:
            schema = schemas[call["function"]["name"]]
            jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    if "seed" in settings:
        stream = streamed(live_url, **fields, tool_choice="required")
        assert shown(added_up(stream)) == shown(several["message"])


def test_a_budget_closes_reasoning_and_the_answer_still_holds(live_url: str):
    for limit in (0, 5, 20):
        body = {
            "messages": USER,
            "max_tokens": 300,
            "max_reasoning_tokens": limit,
            "regex": "(Paris|Amsterdam)",
            "temperature": 1,
            "seed": 3,
        }
        answer = httpx.post(f"{live_url}/v1/chat/completions", json=body, timeout=60).json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] in ("Paris", "Amsterdam")
        num_tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert num_tokens <= (limit + 4 if limit else 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "(Paris|Amsterdam}"}, "regex"),
        ({"guided_regex": "a{1,"}, "guided_regex"),
        ({"ebnf": 'root ::= "a'}, "ebnf"),
        ({"ebnf": "root ::= nowhere"}, "ebnf"),
        ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar"),
        ({"json_schema": {"type": "string", "pattern": "(a"}}, "json_schema"),
        ({"ebnf": '{"grammars": [{"lark_grammar": "start: ("}]}'}, "ebnf"),
    ],
)
def test_a_malformed_constraint_is_refused_and_the_next_request_served(
    live_url: str, fields: dict[str, Any], param: str
):
    for path, prompt in (
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        response = httpx.post(f"{live_url}{path}", json={**prompt, **fields}, timeout=120)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param and param in error["message"]
        assert error["code"] == "grammar_invalid"
    assert chat(live_url, regex="x")["message"]["content"] == "x"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a\0b"},
        {"regex": "(.{1,1000}){1,1000}"},
        {"regex": "(a*)*" * 500},
        {"json_schema": {"type": "string", "maxLength": 100_000}},
        {"json_schema": {"enum": [str(k) for k in range(100_000)]}},
        {"json_schema": {"type": "object", "properties": {f"p{k}": {} for k in range(2000)}}},
        {"json_schema": {"$ref": "#"}},
        {"json_schema": {"$ref": "https://example.com/schema"}},
        {"json_schema": deep(400)},
        {"json_schema": {"description": "x" * 1_000_000, "type": "integer"}},
        {"ebnf": "root ::= root"},
        {"ebnf": 'root ::= "a"{100000}'},
        {"guided_choice": [str(k) for k in range(10_000)]},
        {"json_schema": '{"const": "\\ud800"}'},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_hostile_constraint_is_a_clear_error_or_a_result_in_time(
    live_url: str, fields: dict[str, Any]
):
    body = {"messages": USER, "max_tokens": 8, **fields}
    response = httpx.post(f"{live_url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code in (200, 400), response.text[:300]
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["param"].partition(".")[0] == next(iter(fields))
        assert len(error["message"]) < 2000
    assert chat(live_url, regex="x")["message"]["content"] == "x"
