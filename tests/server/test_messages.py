"""/v1/messages: streams that add up to the whole, turns, thinking, endings, refusals, errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import from_json

from eyas.core import Request, SamplingParams
from eyas.dialect import Wanted
from eyas.dialect.choose import family_dialect
from eyas.server.chat import PreparedChat
from eyas.server.formats import ChoiceOutput, usage_object
from eyas.server.messages.conversion import field_name
from eyas.server.messages.format import MessagesFormat
from eyas.server.messages.models import AssistantTurn
from tests.server.conftest import NEEDS_CHECKPOINT
from tests.server.fakes import ANSWER, FakeClient
from tests.server.test_answer_stream_law import (
    EOS,
    PIECES,
    STOPS,
    THOROUGH,
    cuts,
    deltas_of,
    ids_of,
    tokenizer,
)
from tests.server.test_responses import CALL, events_of, shown
from tests.thorough import drawn

PATH = "/v1/messages"
USER = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
DELTAS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream add up to; asserts their order."""
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    message, blocks, is_open = events[0]["message"], [], False
    assert message["content"] == [] and message["stop_reason"] is None
    for event in events[2:-2]:
        name = event["type"].removeprefix("content_block_")
        if name == "start":
            assert not is_open
            block, text, is_open = event["content_block"], "", True
            blocks.append(block)
        assert is_open and event["index"] == len(blocks) - 1
        if name == "delta":
            piece = event["delta"][DELTAS[block["type"]]]
            assert piece and event["delta"]["type"].removesuffix("_delta") in (
                block["type"],
                "input_json",
            )
            text += piece
        elif name == "stop":
            is_open = False
            if block["type"] != "tool_use":
                block[block["type"]] = text
            elif text:
                block["input"] = from_json(text, allow_partial=True)
    assert not is_open
    last = events[-2]
    message["usage"] |= last["usage"]
    return {**message, **last["delta"], "content": blocks}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


def both(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The whole message; asserts that the one that the stream adds up to is the same."""
    body = {"messages": USER, "max_tokens": 100, "seed": 5, **fields}
    whole = http.post(PATH, json=body)
    streamed = http.post(PATH, json={**body, "stream": True})
    assert whole.status_code == streamed.status_code == 200, whole.text + streamed.text
    assert streamed.headers["content-type"].startswith("text/event-stream")
    added = rebuilt(events_of(streamed.text))
    for message in (whole.json(), added):
        usage = message["usage"]
        assert usage.pop("cache_read_input_tokens") + usage["input_tokens"] > 0
        del usage["input_tokens"]  # the second one finds the prompt of the first one in the cache
    assert without_ids(whole.json())["content"] == without_ids(added)["content"]
    return whole.json()


@pytest.mark.parametrize("granularity", ["step", "token"])
def test_a_stream_adds_up_to_the_whole_message(
    http: httpx.Client, fake: FakeClient, granularity: str
):
    message = both(http, stream_granularity=granularity)
    assert message["content"] == [{"type": "text", "text": ANSWER}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage = message["usage"]
    assert usage["output_tokens"] == len(fake.tokenizer.encode_text(ANSWER))
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert prompt == len(fake.requests[-1].prompt_token_ids)
    counted = http.post(f"{PATH}/count_tokens", json={"messages": USER})
    assert counted.json() == {"input_tokens": prompt}


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@settings(THOROUGH, max_examples=drawn(30, 60))
@given(data=st.data())
def test_any_cutting_gives_the_same_message(kind: str, data: st.DataObject) -> None:
    names = tokenizer(kind)
    pieces = data.draw(st.lists(st.sampled_from([*PIECES, EOS]), max_size=10))
    reasoning = data.draw(st.sampled_from([[], ["<think>", "\n", "a", "\n", "</think>"]]))
    ids = ids_of(names, [*reasoning, *pieces])
    params = SamplingParams(stop=tuple(data.draw(STOPS)), max_tokens=1000)
    request = Request(id="r", prompt_token_ids=[1], params=params, with_marks=True)
    dialect = family_dialect("qwen3", names)

    def answer_format() -> MessagesFormat:
        chat = PreparedChat(request, lambda: dialect.segmenter(Wanted(), [1]))
        return MessagesFormat(names, "r", "tiny", chat)

    deltas = deltas_of(names, params, ids, data.draw(cuts(len(ids))))
    usage = usage_object([[]])
    stream = answer_format()
    events = [event for delta in deltas for event in stream.chunks(0, delta)]
    encoded = b"".join(map(stream.encode, [*events, *stream.ending(usage)]))
    choice = ChoiceOutput(0)
    for delta in deltas:
        choice.add(delta)
    whole = answer_format().response([choice], usage)
    assert whole == rebuilt(events_of(encoded.decode()))
    AssistantTurn.model_validate({"role": "assistant", "content": whole["content"]})


@pytest.mark.parametrize("num_tokens", [None, 6, 10, 14, 17])
def test_a_call_is_a_block_even_if_it_is_cut_off(
    http: httpx.Client, fake: FakeClient, num_tokens: int | None
):
    fake.answer = lambda request, index: "Well:\n\n" + CALL
    fields = {"tools": [TOOL], "max_tokens": num_tokens or 100}
    message = both(http, **fields)
    blocks = message["content"]
    if num_tokens is None:
        assert [block["type"] for block in blocks] == ["text", "tool_use"]
        assert blocks[1] | {"id": ""} == {
            "type": "tool_use",
            "id": "",
            "name": "f",
            "input": {"a": 1},
        }
        assert blocks[1]["id"].startswith("toolu_")
    assert message["stop_reason"] == ("max_tokens" if num_tokens else "tool_use")
    TypeAdapter(AssistantTurn).validate_python({"role": "assistant", "content": blocks})


def test_the_text_ends_at_a_stop_sequence_which_is_named(http: httpx.Client, fake: FakeClient):
    body = {"messages": USER, "max_tokens": 100, "stop_sequences": ["x", "Zebras"]}
    assert http.post(PATH, json=body).status_code == 200
    assert fake.requests[-1].params.stop == ("x", "Zebras")


def test_fields_reach_the_engine(http: httpx.Client, fake: FakeClient):
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "max_tokens": 3, "regex": "[a-z]+"}
    ignored = {"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "x"}}
    answer = http.post(
        PATH,
        json={"messages": USER, **fields, **ignored},
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x", "x-api-key": "y"},
    )
    assert answer.json()["stop_reason"] == "max_tokens"
    request = fake.requests[-1]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.25, 7, 3)
    assert request.output is not None and request.output.param == "regex"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    http.post(PATH, json={"messages": USER, "max_tokens": 3, "output_config": config})
    output = fake.requests[-1].output
    assert output is not None and output.param == "output_config.format.schema"


def test_turns_become_the_conversation(http: httpx.Client, fake: FakeClient):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "text", "text": "two", "citations": None},
            ],
        },
        {"role": "user", "content": "three"},
    ]
    system = [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]
    body = {"messages": messages, "system": system, "max_tokens": 5}
    assert http.post(PATH, json=body).status_code == 200
    turns = (("system", "be kind"), ("user", "one"), ("assistant", "two"), ("user", "three"))
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert shown(fake) == f"{expected}<|im_start|>assistant\n"
    assert http.post(PATH, json={**body, "messages": messages[:2]}).status_code == 200
    assert shown(fake).endswith("<|im_start|>assistant\ntwo")


def test_a_conversation_reads_as_that_of_a_chat(http: httpx.Client, fake: FakeClient):
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}
    messages = [
        *USER,
        {"role": "assistant", "content": [{"type": "text", "text": "Well"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    function = {"name": "f", "arguments": '{"a":1}'}
    as_chat = [
        *USER,
        {"role": "assistant", "content": "Well", "tool_calls": [{"id": "c", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "user", "content": "And?"},
    ]
    assert http.post(PATH, json={"messages": messages, "max_tokens": 5}).status_code == 200
    prompt = shown(fake)
    assert http.post("/v1/chat/completions", json={"messages": as_chat}).status_code == 200
    assert prompt == shown(fake)


def test_a_failure_in_a_stream_is_its_last_event(http: httpx.Client, fake: FakeClient):
    fake.error_after = 2
    body = {"messages": USER, "max_tokens": 100}
    events = events_of(http.post(PATH, json={**body, "stream": True}).text)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["error"]["code"] == "engine_error"
    assert http.post(PATH, json=body).json()["error"]["type"] == "api_error"


DEEP: Any = "x"
for _ in range(200):
    DEEP = [DEEP]
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [*USER, {"role": "assistant", "content": list(blocks)}, *USER]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": DEEP}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": []}]}, "messages"),
        (user(), "messages[0].content"),
        (user(5), "messages[0].content[0]"),
        (user({"type": ["text"]}), "messages[0].content[0]"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({"type": "text", "text": "x"}, IMAGE), "messages[0].content[1]"),
        (user(DOCUMENT), "messages[0].content[0]"),
        (user({"type": "thinking", "thinking": "x"}), "messages[0].content[0]"),
        (
            user({"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}),
            "messages[0].content[0].content[0]",
        ),
        (user({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id"),
        (assistant(IMAGE), "messages[1].content[0]"),
        (assistant({"type": "redacted_thinking", "data": "x"}), "messages[1].content[0]"),
        (
            assistant({"type": "tool_use", "id": "c", "name": "f", "input": "{}"}),
            "messages[1].content[0].input",
        ),
        (
            {
                "messages": assistant({"type": "tool_use", "id": "c", "name": "f", "input": {}})[
                    "messages"
                ][:2]
            },
            "messages[1]",
        ),
        (
            assistant(*[{"type": "tool_use", "id": "c", "name": "f", "input": {}}] * 513),
            "messages[1].content",
        ),
        (
            user(*[{"type": "tool_result", "tool_use_id": "c"}] * 4096),
            "messages",
        ),
        ({"chat_template_kwargs": {str(key): 1 for key in range(31)}}, "chat_template_kwargs"),
        ({"system": 5}, "system"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"min_tokens": 10_000}, "min_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
        ({"stop": "x"}, "stop"),
        ({"n": 2}, "n"),
        ({"metadata": {str(key): "x" for key in range(17)}}, "metadata"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        (
            {"tools": [{**TOOL, "input_schema": {"type": "x"}, "strict": True}]},
            "tools[0].input_schema",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "f"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}},
            "output_config.format.schema",
        ),
        ({"regex": ""}, "regex"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"stream": "yes"}, "stream"),
        ({"stream_granularity": "word"}, "stream_granularity"),
        ({"prompt": "x"}, "prompt"),
        ({"\ud800": 1}, '["\\ud800"]'),
    ],
)
def test_a_bad_field_is_named_as_it_was_sent(
    http: httpx.Client, fake: FakeClient, fields: dict[str, Any], param: str
):
    body = {"messages": USER, "max_tokens": 5, **fields}
    response = http.post(PATH, content=json.dumps(body))
    assert response.status_code == 400, response.text
    answer = response.json()
    assert answer["type"] == "error" and answer["request_id"] == response.headers["x-request-id"]
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param and error["message"].startswith(param), error
    assert error["code"] == error["details"]["error_code"]
    assert error["docs"].endswith(error["code"]) and len(error["excerpt"] or "") < 110


def test_text_with_half_a_character_is_read(http: httpx.Client, fake: FakeClient):
    body = {
        "system": "\ud800",
        "max_tokens": 5,
        **user({"type": "text", "text": "x\udfff"}),
    }
    assert http.post(PATH, content=json.dumps(body)).status_code == 200
    assert shown(fake).count("\ufffd") == 2


def test_a_path_is_the_one_that_was_sent() -> None:
    assert (
        field_name("tools[3].function.parameters.properties") == "tools[3].input_schema.properties"
    )
    assert field_name("tools[3].function.parametersx") == "tools[3].parametersx"
    assert field_name("stop[1]") == "stop_sequences[1]"
    assert field_name("stop_sequences") == "stop_sequences"


def test_errors_have_the_shape_of_the_api(http: httpx.Client):
    unknown = {"messages": USER, "max_tokens": 5, "model": "another"}
    for response, kind in (
        (http.get(PATH), "invalid_request_error"),
        (http.post(f"{PATH}/batches"), "not_found_error"),
        (http.post(PATH, json=unknown), "not_found_error"),
        (http.post(PATH, content=b"{"), "invalid_request_error"),
    ):
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == kind
    assert "type" not in http.post("/v1/messagesx").json()


@NEEDS_CHECKPOINT
def test_thinking_is_turned_on_limited_hidden_and_off(live_url: str):
    with httpx.Client(base_url=live_url, timeout=300) as http:
        fields = {"temperature": 0, "max_tokens": 120}
        answers = {
            kind: both(http, **fields, thinking=thinking)
            for kind, thinking in {
                "on": {"type": "enabled", "budget_tokens": 20},
                "hidden": {"type": "enabled", "budget_tokens": 20, "display": "omitted"},
                "off": {"type": "disabled"},
            }.items()
        }
    types = {kind: [block["type"] for block in a["content"]] for kind, a in answers.items()}
    assert types == {"on": ["thinking", "text"], "hidden": ["text"], "off": ["text"]}
    assert answers["on"]["content"][0]["signature"] == ""
    assert answers["on"]["content"][1] == answers["hidden"]["content"][0]
    thinking = {kind: a["usage"]["output_tokens_details"] for kind, a in answers.items()}
    assert thinking["on"] == thinking["hidden"] and 0 < thinking["on"]["thinking_tokens"] <= 22
    assert thinking["off"] == {"thinking_tokens": 0}


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_system_prompt_is_none(http: httpx.Client, fake: FakeClient, empty: object):
    messages = [{"role": "user", "content": "x"}]
    counts = [
        http.post("/v1/messages/count_tokens", json={"messages": messages, **fields}).json()
        for fields in ({}, {"system": empty})
    ]
    assert counts[0] == counts[1] and counts[0]["input_tokens"] > 0
