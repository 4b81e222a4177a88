"""Halves of surrogate pairs: JSON can spell them, no text can hold them. Where a field tells things
apart they are refused; what the model only reads has U+FFFD in their place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest

from eyas import LLM, Grammar, JsonSchema, Regex, RequestError, SamplingParams
from eyas.server.http.errors import ApiError
from eyas.server.http.json_text import json_object
from tests.server.conftest import NEEDS_CHECKPOINT
from tests.server.fakes import FakeClient

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HIGH, LOW = "\ud83d", "\ude00"
USER = [{"role": "user", "content": "x"}]
TWO = {"type": "object", "properties": {HIGH: {"type": "integer"}, LOW: {"type": "string"}}}


def tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **function}}]


def tag(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "tag", "begin": "a", "content": {"type": "any_text"}, **fields}}


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": TWO}, r'json_schema.properties["\ud83d"]'),
    ({"guided_json": {"required": [LOW]}}, "guided_json.required[0]"),
    ({"guided_json": {"pattern": f"a{LOW}"}}, "guided_json.pattern"),
    ({"guided_json": {"patternProperties": {LOW: {}}}}, r'guided_json.patternProperties["\ude00"]'),
    ({"structured_outputs": {"json": {"enum": ["a", LOW]}}}, "structured_outputs.json.enum[1]"),
    ({"structured_outputs": {"choice": ["a", HIGH]}}, "structured_outputs.choice[1]"),
    ({"structured_outputs": {"regex": HIGH}}, "structured_outputs.regex"),
    ({"regex": f"{HIGH}|{LOW}"}, "regex"),
    ({"regex": f"[{HIGH}-\udfff]"}, "regex"),
    ({"guided_regex": LOW}, "guided_regex"),
    ({"guided_choice": [HIGH, LOW]}, "guided_choice[0]"),
    ({"ebnf": f'root ::= "{HIGH}"'}, "ebnf"),
    ({"guided_grammar": f'start: "{LOW}"'}, "guided_grammar"),
    ({"structural_tag": tag(end=HIGH)}, "structural_tag.format.end"),
    ({"stop": HIGH}, "stop"),
    ({"stop": ["a", f"b{LOW}"]}, "stop[1]"),
    ({"logit_bias": {HIGH: 1}}, r'logit_bias["\ud83d"]'),
]
OF_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": TWO}}},
        r'response_format.json_schema.schema.properties["\ud83d"]',
    ),
    ({"cache_salt": HIGH}, "cache_salt"),
    ({"model": HIGH}, "model"),
    ({HIGH: None}, r'["\ud83d"]'),
]
OF_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"tools": tool(name=HIGH)}, "tools[0].function.name"),
    ({"tools": tool(parameters=TWO)}, r'tools[0].function.parameters.properties["\ud83d"]'),
    ({"tools": tool(description=LOW), "tool_choice": "none"}, "tools[0].function.description"),
    ({"chat_template_kwargs": {"enable_thinking": LOW}}, "chat_template_kwargs.enable_thinking"),
    ({"messages": [{**USER[0], LOW: 1}]}, r'messages[0]["\ude00"]'),
    ({"messages": [{**USER[0], "name": HIGH}]}, "messages[0].name"),
]


def requests() -> Iterator[tuple[str, dict[str, Any], str]]:
    for fields, place in (*SHARED, *OF_COMPLETIONS, *OF_CHATS):
        yield CHAT, {"messages": USER, **fields}, place
    for fields, place in (*SHARED, *OF_COMPLETIONS):
        yield TEXT, {"prompt": "x", **fields}, place
    for fields, place in SHARED:
        yield GENERATE, {"text": "x", "sampling_params": fields}, f"sampling_params.{place}"


def refused(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, str]:
    response = http.post(path, content=json.dumps(body).encode("ascii"))
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize(("path", "body", "place"), list(requests()))
def test_half_a_pair_is_refused_where_it_stands(
    http: httpx.Client, fake: FakeClient, path: str, body: dict[str, Any], place: str
) -> None:
    error = refused(http, path, body)
    assert error["param"] == place
    assert error["message"].startswith(f"{place}: holds half of a surrogate pair")
    assert fake.requests == []


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"guided_json": json.dumps({"const": [HIGH]})}, "guided_json.const[0]"),
        ({"json_schema": json.dumps(TWO)}, r'json_schema.properties["\ud83d"]'),
        ({"structural_tag": json.dumps(tag(end=[LOW]))}, "structural_tag.format.end[0]"),
        ({"guided_json": {"pattern": r"^\ud83d$"}}, "guided_json"),
        ({"guided_json": {"pattern": r"[\ud83d-\ud83f]"}}, "guided_json"),
    ],
)
def test_half_a_pair_is_refused_that_is_spelled_inside_of_a_string(
    http: httpx.Client, fake: FakeClient, fields: dict[str, Any], place: str
) -> None:
    error = refused(http, CHAT, {"messages": USER, **fields})
    assert error["param"] == place and "surrogate pair" in error["message"]
    assert fake.requests == []


def test_whole_pairs_are_characters(http: httpx.Client, fake: FakeClient) -> None:
    spelled = r'{"messages": [{"role": "user", "content": "x"}], "stop": "\ud83d\ude00", '
    spelled += r'"json_schema": {"const": "\ud83d\ude00"}}'
    assert http.post(CHAT, content=spelled.encode()).status_code == 200
    assert fake.requests[-1].params.stop == ("😀",)


def test_what_the_model_reads_has_replacement_characters(
    http: httpx.Client, fake: FakeClient
) -> None:
    arguments = {"a": [HIGH]}
    function = {"name": "f", "arguments": arguments}
    messages = [
        {"role": "user", "content": f"a{HIGH}"},
        {"role": "user", "content": [{"type": "text", "text": LOW}]},
        {"role": "assistant", "content": "", "reasoning_content": HIGH},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
    ]
    for path, body in (
        (CHAT, {"messages": messages}),
        ("/tokenize", {"messages": messages}),
        (TEXT, {"prompt": f"a{LOW}"}),
        (TEXT, {"prompt": ["a", HIGH]}),
        (GENERATE, {"text": HIGH}),
        ("/tokenize", {"prompt": LOW}),
    ):
        response = http.post(path, content=json.dumps(body).encode("ascii"))
        assert response.status_code == 200, response.text
    prompt = fake.tokenizer.decode(fake.requests[0].prompt_token_ids, skip_special=False)
    assert prompt.count("\ufffd") == 4
    two = {"name": "f", "arguments": {HIGH: 1, LOW: 2}}
    messages[-1]["tool_calls"][0]["function"] = two
    place = r'messages[3].tool_calls[0].function.arguments["\ud83d"]'
    assert refused(http, CHAT, {"messages": messages})["param"] == place


def test_the_way_to_a_half_is_the_way_through_everything_before() -> None:
    deep: Any = [LOW]
    for k in range(300):
        deep = {"a": [], "b": {"c": k}, "d": deep, "e": HIGH} if k % 2 else [[], {"x": ""}, deep]
    with pytest.raises(ApiError) as caught:
        json_object(json.dumps({"first": {"n": [1, {}]}, "deep": deep}))
    assert caught.value.message.startswith("deep.d[2].d[2].d[2]")
    assert json_object(json.dumps({"a": [{}, "\U0001f600"], "b": "\\ud800"})) == {
        "a": [{}, "😀"],
        "b": "\\ud800",
    }


@NEEDS_CHECKPOINT
def test_python_strings_are_held_to_the_same() -> None:
    with LLM("builtin") as llm:
        params = SamplingParams(max_tokens=2, temperature=0)
        for output in (
            *(Regex(HIGH), Regex(f"[{HIGH}-\udfff]"), Regex(r"\ud83d"), Regex(r"\u{d83d}")),
            *(
                Grammar(f'start: "{LOW}"'),
                Grammar(f'root ::= "{LOW}"'),
                Grammar(r'root ::= "\ud83d"'),
            ),
            *(Grammar(r"start: /\ud83d/"), Grammar(r"root ::= [\ud83d]")),
            *(JsonSchema(TWO), JsonSchema(json.dumps(TWO)), JsonSchema({"pattern": HIGH})),
            *(JsonSchema({"pattern": r"\ud83d"}), Literal["a", "\ud83d"]),
        ):
            for ask in (
                lambda output=output: llm.chat(USER, params, output=output),
                lambda output=output: llm.generate("x", params, output=output),
            ):
                with pytest.raises(RequestError) as caught:
                    ask()
                assert caught.value.param == "output"
        for tools, param in (
            (tool(name=HIGH), "tools[0].function.name"),
            (tool(parameters=TWO), "tools[0].function.parameters"),
        ):
            with pytest.raises(RequestError) as caught:
                llm.chat(USER, params, tools=tools)
            assert caught.value.param == param
        with pytest.raises(RequestError, match="stop: holds half of a surrogate pair"):
            SamplingParams(stop=("a", LOW))
        assert llm.chat([{"role": "user", "content": HIGH}], params)
        assert llm.generate(LOW, params)


@NEEDS_CHECKPOINT
@pytest.mark.parametrize(
    "fields",
    [
        {"regex": r"\ud83d"},
        {"regex": r"[\x{d800}-\x{dfff}]"},
        {"ebnf": r'root ::= "\ud83d"'},
        {"ebnf": r"root ::= [\ud83d-\ud83f]"},
        {"guided_grammar": r"start: /\ud83d/"},
        {"guided_grammar": r'start: "\ud83d"'},
        {"guided_grammar": r'start: %json {"const": "\ud83d"}'},
        {"guided_grammar": r'start: %json {"properties": {"\ud83d": {}, "\ude00": {}}}'},
    ],
)
def test_half_a_pair_is_no_character_of_a_grammar(live_url: str, fields: dict[str, str]) -> None:
    body = {"model": "builtin", "messages": USER, "max_tokens": 2, **fields}
    response = httpx.post(f"{live_url}{CHAT}", json=body, timeout=60)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == next(iter(fields))
