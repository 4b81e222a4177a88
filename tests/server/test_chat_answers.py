"""Reasoning, content and tool calls, told apart in streams and whole answers as clients expect."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pydantic
import pytest

from eyas.grammar import Json, Regex, leaves
from eyas.server.options import ServerOptions
from tests.server.fakes import FakeClient, live_server
from tests.server.test_golden import USER, chunk, golden

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
REASONED = "<think>\nParis, please\n</think>\n\nIt is Rome"


def ids_hidden(text: str) -> str:
    return re.sub(r'"call_[0-9a-f]{24}"', '"call_ID"', golden(text))


def whole(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={"messages": USER, "seed": 1, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The choice of each chunk of a stream."""
    body = {"messages": USER, "seed": 1, "stream": True, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    return [choice for each in chunks for choice in each["choices"]]


def added_up(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's deltas make."""
    message: dict[str, Any] = {}
    for choice in choices:
        for name, value in choice["delta"].items():
            if name != "tool_calls":
                message[name] = (message.get(name) or "") + value if value is not None else None
                continue
            for piece in value:
                calls = message.setdefault("tool_calls", [])
                if "id" in piece:
                    assert piece["index"] == len(calls)
                    calls.append({"id": piece["id"], "function": dict(piece["function"])})
                else:
                    assert piece["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return message


def shown(message: dict[str, Any]) -> dict[str, Any]:
    """What counts of a message: ids are drawn anew each time."""
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", [])
    ]
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning_content"),
        "again": message.get("reasoning"),
        "calls": calls,
    }


def test_a_stream_with_reasoning(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: "<think>\nParis\n</think>\n\ncity"
    body = {"messages": USER, "stream": True, "seed": 1}
    response = http.post("/v1/chat/completions", json=body)
    reasoning = '"delta":{"reasoning_content":"Paris","reasoning":"Paris"}'
    assert golden(response.text) == (
        chunk(
            '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            '"finish_reason":null}'
        )
        + chunk(f'{{"index":0,{reasoning},"logprobs":null,"finish_reason":null}}')
        + chunk(
            '{"index":0,"delta":{"content":"city"},"logprobs":null,"finish_reason":null}',
        )
        + chunk(
            '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,'
            '"seed":1}'
        )
        + "data: [DONE]\n\n"
    )


def test_a_whole_answer_that_calls(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: CALL
    response = http.post(
        "/v1/chat/completions", json={"messages": USER, "tools": [WEATHER], "seed": 1}
    )
    assert '"message":{"role":"assistant","content":null,"refusal":null,"tool_calls":[' in (
        response.text
    )
    assert (
        '{"id":"call_ID","type":"function","function":{"name":"get_weather",'
        '"arguments":"{\\"city\\": \\"Paris\\"}"}}]},"logprobs":null,"finish_reason":"tool_calls"'
    ) in ids_hidden(response.text)


def test_a_stream_that_calls(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: CALL + "\n" + SECOND
    choices = streamed(http, tools=[WEATHER, TIME])
    assert choices[0]["delta"] == {"role": "assistant", "content": None}
    first, *pieces = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
    assert re.fullmatch("call_[0-9a-f]{24}", first["id"])
    assert first == {
        "id": first["id"],
        "index": 0,
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert all(piece.keys() == {"index", "function"} for piece in pieces if piece["index"] == 0)
    message = added_up(choices)
    assert shown(message)["calls"] == [
        ("get_weather", '{"city": "Paris"}'),
        ("get_time", "{}"),
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert len({call["id"] for call in message["tool_calls"]}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        REASONED,
        CALL,
        CALL + "\n" + SECOND,
        "Let me see.\n" + CALL,
        "<think>\nI call\n</think>\n\n" + CALL,
        "<think>\nnever ends",
        "<think></think>",
        "a < b and <thi and <tool_cal",
        "",
    ],
)
@pytest.mark.parametrize("skips", [True, False])
def test_a_stream_adds_up_to_the_whole_answer(
    http: httpx.Client, fake: FakeClient, text: str, skips: bool
):
    fake.answer = lambda request, index: text
    fields = {
        "tools": [WEATHER, TIME],
        "n": 2,
        "logprobs": True,
        "skip_special_tokens": skips,
    }
    answer = whole(http, **fields)
    num_tokens = len(fake.ids_of(text))
    choices = streamed(http, **fields)
    for choice in answer["choices"]:
        own = [each for each in choices if each["index"] == choice["index"]]
        assert shown(added_up(own)) == shown(choice["message"])
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        entries = [e for each in own for e in (each["logprobs"] or {}).get("content", ())]
        assert entries == choice["logprobs"]["content"] and len(entries) == num_tokens
        for each in own:
            assert len({"content", "reasoning", "tool_calls"} & set(each["delta"])) <= 1


def test_the_logprobs_of_a_content_chunk_spell_its_text(http: httpx.Client, fake: FakeClient):
    for text in (REASONED, "a < b and <thi", "Let me see.\n" + CALL):
        fake.answer = lambda request, index, text=text: text
        for choice in streamed(http, logprobs=True, tools=[WEATHER], stream_reasoning=False):
            if choice["delta"].get("content"):
                tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
                assert "".join(tokens) == choice["delta"]["content"]


def test_reasoning_tokens_are_counted(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: REASONED
    before, _, after = REASONED.partition("\n</think>")
    expected = len(fake.ids_of(before))
    for n in (1, 3):
        usage = whole(http, n=n)["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": n * expected}
        body = {
            "messages": USER,
            "n": n,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        lines = http.post("/v1/chat/completions", json=body).text.split("\n\n")
        usage = json.loads(lines[-3].removeprefix("data: "))["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": n * expected}
    fake.answer = lambda request, index: after
    details = whole(http)["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 0}


def test_reasoning_may_be_left_out_held_back_or_left_in(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: REASONED
    hidden = whole(http, include_reasoning=False)["choices"][0]["message"]
    assert hidden == {"role": "assistant", "content": "It is Rome", "refusal": None}
    held = streamed(http, stream_reasoning=False)
    pieces = [c["delta"]["reasoning"] for c in held if "reasoning" in c["delta"]]
    assert pieces == ["Paris, please"]
    assert shown(added_up(held)) == shown(whole(http)["choices"][0]["message"])
    raw = whole(http, separate_reasoning=False)
    assert raw["choices"][0]["message"]["content"] == REASONED
    assert "completion_tokens_details" not in raw["usage"]
    assert not fake.requests[-1].with_marks
    fake.answer = lambda request, index: "<think>\nonly"
    held = streamed(http, stream_reasoning=False)
    assert shown(added_up(held))["reasoning"] == "only"


def test_finish_reasons_are_truthful(http: httpx.Client, fake: FakeClient):
    fake.answer = lambda request, index: CALL
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, expected in (("auto", "tool_calls"), ("required", "tool_calls"), (named, "stop")):
        answer = whole(http, tools=[WEATHER], tool_choice=choice)["choices"][0]
        assert answer["finish_reason"] == expected
        assert answer["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    num_tokens = len(fake.ids_of(CALL))
    cut = whole(http, tools=[WEATHER], max_tokens=num_tokens - 4)["choices"][0]
    assert cut["finish_reason"] == "length"
    arguments = cut["message"]["tool_calls"][0]["function"]["arguments"]
    assert '{"city": "Paris"}'.startswith(arguments)
    fake.answer = lambda request, index: "no call"
    assert whole(http, tools=[WEATHER])["choices"][0]["finish_reason"] == "stop"


def test_tools_that_must_not_be_called_are_neither_shown_nor_split_off(
    http: httpx.Client, fake: FakeClient
):
    fake.answer = lambda request, index: CALL
    message = whole(http, tools=[WEATHER], tool_choice="none")["choices"][0]["message"]
    assert "tool_calls" not in message
    assert message["content"] == CALL
    prompt = fake.requests[-1].prompt_token_ids
    assert "get_weather" not in fake.tokenizer.decode(prompt, skip_special=False)


class City(pydantic.BaseModel):
    name: str
    population: int


def test_parse_returns_the_object(api: openai.OpenAI, fake: FakeClient):
    fake.answer = lambda request, index: '<think>\nhm\n</think>\n\n{"name":"Paris","population":2}'
    answer = api.chat.completions.parse(model="tiny", messages=USER, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Paris", population=2)
    output = fake.requests[-1].output
    assert output.param == "response_format.json_schema.schema"
    [schema] = [leaf.schema for leaf in leaves(output.root) if isinstance(leaf, Json)]
    assert json.loads(schema)["required"] == ["name", "population"]
    with api.chat.completions.stream(model="tiny", messages=USER, response_format=City) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == City(name="Paris", population=2)
    with pytest.raises(openai.LengthFinishReasonError):
        api.chat.completions.parse(model="tiny", messages=USER, response_format=City, max_tokens=12)


def test_the_client_parses_tool_calls(api: openai.OpenAI, fake: FakeClient):
    fake.answer = lambda request, index: CALL + "\n" + SECOND
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    empty = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    time = {"name": "get_time", "strict": True, "parameters": empty}
    tools = [strict, {"type": "function", "function": time}]
    for choice in ("auto", "required"):
        answer = api.chat.completions.parse(
            model="tiny", messages=USER, tools=tools, tool_choice=choice
        )
        first, second = answer.choices[0].message.tool_calls
        assert first.function.parsed_arguments == {"city": "Paris"}
        assert (second.function.name, second.function.arguments) == ("get_time", "{}")
        assert answer.choices[0].message.content is None
    with api.chat.completions.stream(model="tiny", messages=USER, tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert [e.arguments for e in done] == ['{"city": "Paris"}', "{}"]
    assert final.choices[0].finish_reason == "tool_calls"


def test_constraint_tools_and_budget_reach_the_engine_as_one_output(
    http: httpx.Client, fake: FakeClient
):
    whole(http, regex="a+", max_reasoning_tokens=7)
    output = fake.requests[-1].output
    assert Regex("a+") in leaves(output.root) and output.param == "regex"
    assert output.budget is not None and output.budget.max_tokens >= 7
    whole(http, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert fake.requests[-1].output.param == "tools"
    whole(http, thinking_budget=3)
    assert fake.requests[-1].output.param == "max_reasoning_tokens"
    whole(http)
    assert fake.requests[-1].output is None and fake.requests[-1].with_marks
    http.post("/v1/completions", json={"prompt": "x", "guided_choice": ["a"]})
    assert fake.requests[-1].output.param == "guided_choice"
    assert not fake.requests[-1].with_marks


def prompt_of(http: httpx.Client, fake: FakeClient, messages: list[Any], **fields: Any) -> str:
    whole(http, messages=messages, **fields)
    return fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)


def test_history_is_told_as_the_template_wants_it(http: httpx.Client, fake: FakeClient):
    call = {"name": "get_time", "arguments": "{}"}
    for content, key in (
        ("old</think>\n\nnew", None),
        ("new", "reasoning"),
        ("new", "reasoning_content"),
    ):
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        if key is not None:
            answer[key] = "old"
        prompt = prompt_of(http, fake, [*USER, answer, *USER])
        assert "<|im_start|>assistant\n<think>\nold\n</think>\nnew<|im_end|>" in prompt
    answer = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": call}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "noon"}
    prompt = prompt_of(http, fake, [*USER, answer, result], tools=[TIME])
    assert '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>' in prompt
    assert "<tool_response>\nnoon\n</tool_response>" in prompt


def test_leading_system_messages_are_one(http: httpx.Client, fake: FakeClient):
    system = [{"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}]
    parts = [{"type": "text", "text": "Three."}]
    prompt = prompt_of(http, fake, [*system, {"role": "system", "content": parts}, *USER])
    assert prompt.startswith("<|im_start|>system\nOne.\n\nTwo.\n\nThree.<|im_end|>")
    prompt = prompt_of(http, fake, [*USER, *system])
    assert prompt.count("<|im_start|>system") == 2


def test_reasoning_effort_does_what_the_template_can(http: httpx.Client, fake: FakeClient):
    for effort in ("none", "minimal"):
        prompt = prompt_of(http, fake, USER, reasoning_effort=effort)
        assert prompt.endswith("<think>\n\n</think>\n\n")
    prompt = prompt_of(http, fake, USER, reasoning_effort="high")
    assert prompt.endswith("<|im_start|>assistant\n")
    kwargs = {"enable_thinking": True}
    prompt = prompt_of(http, fake, USER, reasoning_effort="none", chat_template_kwargs=kwargs)
    assert prompt.endswith("<|im_start|>assistant\n")


def test_parsers_may_be_named_and_must_be_known(fake: FakeClient):
    with live_server(fake, reasoning_parser="deepseek-r1", tool_call_parser="hermes") as server:
        fake.answer = lambda request, index: CALL
        with httpx.Client(base_url=server.url, timeout=120) as http:
            message = whole(http, tools=[WEATHER])["choices"][0]["message"]
            assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    with pytest.raises(ValueError, match=r"reasoning-parser nobody.*qwen3"):
        ServerOptions(reasoning_parser="nobody")
    with pytest.raises(ValueError, match="tool-call-parser"):
        ServerOptions(tool_call_parser="nobody")
