"""/v1/responses: the real openai client, streams that add up to the whole, the store, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from eyas.core import Request, SamplingParams
from eyas.dialect import Wanted
from eyas.dialect.choose import family_dialect
from eyas.server.chat import PreparedChat
from eyas.server.formats import ChoiceOutput, usage_object
from eyas.server.responses.format import ResponsesFormat
from eyas.server.responses.models import InputItem, ResponseBody
from eyas.server.responses.store import ENTRY_BYTES, ResponseStore, StoredResponse
from tests.server.conftest import NEEDS_CHECKPOINT
from tests.server.fakes import ANSWER, FakeClient, live_server
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

PATH = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def shown(fake: FakeClient) -> str:
    """The prompt that the model read last."""
    return fake.tokenizer.decode(fake.requests[-1].prompt_token_ids, skip_special=False)


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that the events of a stream add up to; asserts their order."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:2] == ["created", "in_progress"]
    items: list[dict[str, Any]] = []
    logprobs: list[Any] = []
    for name, event in zip(names[2:-1], events[2:-1], strict=True):
        if name == "output_item.added":
            assert all(item["status"] != "in_progress" for item in items)
            assert event["output_index"] == len(items)
            items.append(event["item"])
            text = ""
            continue
        item = items[-1]
        assert event["output_index"] == len(items) - 1
        if "item_id" in event:
            assert event["item_id"] == item["id"]
        if name == "content_part.added":
            assert event["content_index"] == 0
            item["content"].append(event["part"])
        elif name.endswith(".delta"):
            text += event["delta"]
            logprobs = event.get("logprobs", [])
            if item["type"] == "function_call":
                item["arguments"] += event["delta"]
            else:
                item["content"][0]["text"] += event["delta"]
            if item["type"] == "message":
                item["content"][0]["logprobs"] += logprobs
        elif name == "content_part.done":
            assert event["part"] == item["content"][0]
        elif name == "output_item.done":
            assert event["item"] == {**item, "status": event["item"]["status"]}
            items[-1] = event["item"]
        else:
            assert name.endswith(".done")
            assert text == event.get("text", event.get("arguments"))
    last = events[-1]["response"]
    assert last["output"] == items and names[-1] == last["status"]
    return last


def without_ids(value: Any) -> Any:
    """A response without what is drawn or of the clock."""
    drawn = {"id", "call_id", "created_at", "completed_at"}
    if isinstance(value, dict):
        return {name: without_ids(item) for name, item in value.items() if name not in drawn}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    events = [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]
    assert [lines[0] for lines in blocks] == [f"event: {event['type']}" for event in events]
    return events


def both(http: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole response and the one that the stream adds up to."""
    whole = http.post(PATH, json=body)
    streamed = http.post(PATH, json={**body, "stream": True})
    assert whole.status_code == streamed.status_code == 200, whole.text + streamed.text
    assert streamed.headers["content-type"].startswith("text/event-stream")
    return whole.json(), rebuilt(events_of(streamed.text))


@pytest.mark.parametrize("granularity", ["step", "token"])
def test_a_stream_adds_up_to_the_whole_response(
    http: httpx.Client, fake: FakeClient, granularity: str
):
    body = {"input": "Hi", "seed": 5, "include": [LOGPROBS], "top_logprobs": 1}
    whole, streamed = both(http, {**body, "stream_granularity": granularity})
    assert without_ids(whole) == without_ids(streamed)
    assert whole["output"][0]["content"][0]["text"] == ANSWER
    num_tokens = len(fake.tokenizer.encode_text(ANSWER))
    assert len(whole["output"][0]["content"][0]["logprobs"]) == num_tokens
    assert whole["usage"]["output_tokens"] == num_tokens
    assert whole["status"] == "completed" and whole["seed"] == 5


def test_an_answer_that_is_cut_off_is_incomplete(http: httpx.Client, fake: FakeClient):
    whole, streamed = both(http, {"input": "Hi", "max_output_tokens": 3, "seed": 1})
    assert without_ids(whole) == without_ids(streamed)
    assert whole["status"] == whole["output"][0]["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@THOROUGH
@given(data=st.data())
def test_any_cutting_gives_the_same_response(kind: str, data: st.DataObject) -> None:
    names = tokenizer(kind)
    pieces = data.draw(st.lists(st.sampled_from([*PIECES, EOS]), max_size=10))
    reasoning = data.draw(st.sampled_from([[], ["<think>", "\n", "a", "\n", "</think>"]]))
    ids = ids_of(names, [*reasoning, *pieces])
    params = SamplingParams(stop=tuple(data.draw(STOPS)), logprobs=0)
    request = Request(id="r", prompt_token_ids=[1], params=params, with_marks=True)
    dialect = family_dialect("qwen3", names)
    body = ResponseBody(input="x")

    def answer_format() -> ResponsesFormat:
        chat = PreparedChat(request, lambda: dialect.segmenter(Wanted(), [1]))
        options = {"is_stored": False, "finished": lambda written, items: None}
        return ResponsesFormat(names, "r", "tiny", body, chat, **options)

    deltas = deltas_of(names, params, ids, data.draw(cuts(len(ids))))
    usage = usage_object([[]])
    stream = answer_format()
    events = [event for delta in deltas for event in stream.chunks(0, delta)]
    encoded = b"".join(map(stream.encode, [*events, *stream.ending(usage)]))
    choice = ChoiceOutput(0)
    for delta in deltas:
        choice.add(delta)
    whole = json.loads(bytes(answer_format().response([choice], usage)))
    assert without_ids(whole) == without_ids(rebuilt(events_of(encoded.decode())))
    items = TypeAdapter(list[InputItem]).validate_python(whole["output"])
    assert len(items) == len(whole["output"])


def test_items_become_the_conversation(http: httpx.Client, fake: FakeClient):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two"}],
        },
        {"role": "user", "content": "three"},
    ]
    body = {"input": items, "instructions": "be kind"}
    assert http.post(PATH, json=body).status_code == 200
    turns = (("system", "be kind"), ("user", "one"), ("assistant", "two"), ("user", "three"))
    expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert shown(fake) == f"{expected}<|im_start|>assistant\n"


def test_a_response_is_read_continued_and_deleted(api: openai.OpenAI, fake: FakeClient):
    first = api.responses.create(
        model="tiny", input="Hi", instructions="first", metadata={"a": "b"}
    )
    assert first.output_text == ANSWER and first.metadata == {"a": "b"}
    assert api.responses.retrieve(first.id).to_dict() == first.to_dict()
    second = api.responses.create(model="tiny", input="More", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert "first" not in shown(fake)
    assert shown(fake).count("<|im_start|>") == 4 and ANSWER in shown(fake)
    with api.responses.stream(
        model="tiny", input="And?", previous_response_id=second.id, instructions="third"
    ) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        third = stream.get_final_response()
    assert "".join(texts) == third.output_text == ANSWER
    assert shown(fake).count("<|im_start|>") == 7 and "third" in shown(fake)
    assert api.responses.retrieve(third.id).output_text == ANSWER
    api.responses.delete(first.id)
    for refused in (
        lambda: api.responses.retrieve(first.id),
        lambda: api.responses.delete(first.id),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    with pytest.raises(openai.BadRequestError) as caught:
        api.responses.create(model="tiny", input="x", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    unstored = api.responses.create(model="tiny", input="Hi", store=False)
    assert unstored.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(unstored.id)


def test_a_key_reads_its_own_responses_only(directory: Path):
    def of(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    with (
        live_server(FakeClient(directory), api_keys=("one", "two")) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        made = http.post(PATH, json={"input": "secret"}, headers=of("one")).json()["id"]
        follow = {"input": "x", "previous_response_id": made}
        place = f"{PATH}/{made}"
        assert http.get(place, headers=of("two")).status_code == 404
        assert http.delete(place, headers=of("two")).status_code == 404
        assert http.post(PATH, json=follow, headers=of("two")).status_code == 400
        assert http.post(PATH, json=follow, headers=of("one")).status_code == 200
        assert http.get(place, headers=of("one")).status_code == 200
        assert http.get(place).status_code == 401


def test_a_server_that_stores_nothing_says_so(directory: Path):
    with (
        live_server(FakeClient(directory), response_store_bytes=0) as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        made = http.post(PATH, json={"input": "x"}).json()
        assert made["store"] is False
        assert http.get(f"{PATH}/{made['id']}").status_code == 404
        refused = http.post(PATH, json={"input": "x", "store": True})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "store"


def test_a_full_store_takes_from_whoever_holds_most():
    now = 0.0
    store = ResponseStore(10 * ENTRY_BYTES, 5, 100, lambda: now)
    small, large = StoredResponse(b"", b""), StoredResponse(b"x" * 3 * ENTRY_BYTES, b"")
    store.put("quiet", "a", small)
    for name in "bcd":
        store.put("loud", name, large)
    assert store.get("quiet", "a") == small
    assert [store.get("loud", name) for name in "bcd"] == [None, large, large]
    assert store.num_bytes <= 10 * ENTRY_BYTES
    for name in "efghij":
        store.put("other", name, small)
    assert sum(store.get("other", name) is not None for name in "efghij") < 5
    store.put("other", "k", StoredResponse(b"x" * 11 * ENTRY_BYTES, b""))
    assert store.get("other", "k") is None
    now = 101.0
    assert store.get("quiet", "a") is None and store.get("other", "j") is None
    assert store.num_bytes == 0


def test_truncation_drops_the_earliest_turns(http: httpx.Client, fake: FakeClient):
    turns = [
        {"role": role, "content": f"{text} {index} " + "x " * 30}
        for index in range(20)
        for role, text in (("user", "question"), ("assistant", "answer"))
    ]
    items = [{"role": "system", "content": "rules"}, *turns, {"role": "user", "content": "last"}]
    refused = http.post(PATH, json={"input": items, "instructions": "kept"})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input"
    body = {"input": items, "instructions": "kept", "truncation": "auto"}
    assert http.post(PATH, json=body).status_code == 200
    prompt = shown(fake)
    assert all(text in prompt for text in ("kept", "rules", "question 19", "last"))
    assert "question 0" not in prompt
    first = prompt.index("question")
    assert prompt.rindex("<|im_start|>user", 0, first) > prompt.index("rules")
    limit = fake.info.max_model_len
    assert limit * 5 // 8 < len(fake.requests[-1].prompt_token_ids) <= limit * 7 // 8
    alone = {"input": "x " * 5000, "truncation": "auto"}
    assert http.post(PATH, json=alone).json()["error"]["code"] == "context_length_exceeded"


def test_a_failure_in_a_stream_is_its_last_event(http: httpx.Client, fake: FakeClient):
    fake.error_after = 2
    events = events_of(http.post(PATH, json={"input": "x", "stream": True}).text)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    error = events[-1]["response"]["error"]
    assert (error["code"], error["reason"]) == ("server_error", "engine_error")
    deltas = [e["delta"] for e in events if e["type"].endswith(".delta")]
    items = events[-1]["response"]["output"]
    assert "".join(part["text"] for item in items for part in item["content"]) == "".join(deltas)
    assert deltas and items[-1]["status"] == "incomplete"
    assert http.post(PATH, json={"input": "x"}).status_code == 500


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
DEEP: Any = "x"
for _ in range(200):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("fields", "param", "excerpt"),
    [
        ({"input": None}, "input", "null"),
        ({"input": []}, "input", "[]"),
        ({"input": [5]}, "input[0]", "5"),
        ({"input": [{"type": "reasoning"}]}, "input", None),
        (
            {
                "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}]
                * 513
            },
            "input[0]",
            None,
        ),
        ({"input": DEEP}, "input[0]", None),
        ({"input": [{"type": "web_search_call"}]}, "input[0]", '{"type": "web_search_call"}'),
        ({"input": [{"type": ["x"]}]}, "input[0]", '{"type": ["x"]}'),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", '"tool"'),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            '{"type": "input_image"}',
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]},
            "input[0].content",
            '[{"type": "refusal", "refusal": "x"}]',
        ),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "abc"}]},
            "input[0].encrypted_content",
            '"abc"',
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", '{"type": "web_search"}'),
        (
            {"tools": [{**TOOL, "parameters": {"type": "x"}, "strict": True}]},
            "tools[0].parameters",
            None,
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", None),
        ({"tool_choice": "required"}, "tool_choice", '"required"'),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", None),
        ({"text": {"format": {"type": "text", "name": "x"}}}, "text.format.name", '"x"'),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}},
            "text.format.schema",
            None,
        ),
        ({"text": {"verbosity": "much"}}, "text.verbosity", '"much"'),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort", '"much"'),
        ({"background": True}, "background", "true"),
        ({"conversation": "conv_1"}, "conversation", '"conv_1"'),
        ({"prompt": {"id": "x"}}, "prompt", '{"id": "x"}'),
        ({"top_logprobs": 3}, "top_logprobs", "3"),
        ({"include": ["everything"]}, "include[0]", '"everything"'),
        ({"metadata": {"a": 5}}, "metadata.a", "5"),
        ({"metadata": {str(k): "x" for k in range(17)}}, "metadata", None),
        ({"max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"min_tokens": 10_000}, "min_tokens", "10000"),
        ({"n": 2}, "n", "2"),
        ({"temperature": -1}, "temperature", "-1.0"),
        ({"truncation": "some"}, "truncation", '"some"'),
        ({"stream_granularity": "word"}, "stream_granularity", '"word"'),
        ({"messages": []}, "messages", "[]"),
        ({"\ud800": 1}, '["\\ud800"]', None),
    ],
)
def test_a_bad_field_is_named_as_it_was_sent(
    http: httpx.Client, fake: FakeClient, fields: dict[str, Any], param: str, excerpt: str | None
):
    response = http.post(PATH, content=json.dumps({"input": "x", **fields}))
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == param and error["message"].startswith(param), error
    assert error["docs"].endswith(error["code"])
    assert len(error["excerpt"] or "") < 110
    if excerpt is not None:
        assert error["excerpt"] == excerpt


class Capital(BaseModel):
    city: str


@NEEDS_CHECKPOINT
def test_the_client_parses_and_streams_a_live_response(live_api: openai.OpenAI):
    fields: dict[str, Any] = {
        "model": "builtin",
        "input": "What is the capital of France?",
        "temperature": 0,
        "max_output_tokens": 100,
    }
    parsed = live_api.responses.parse(**fields, text_format=Capital)
    assert isinstance(parsed.output_parsed, Capital)
    with live_api.responses.stream(**fields, text_format=Capital) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed
    assert final.usage.output_tokens == parsed.usage.output_tokens
    assert final.output_text == parsed.output_text


@NEEDS_CHECKPOINT
def test_a_live_response_reasons_calls_and_goes_on(live_api: openai.OpenAI):
    tool = {
        "type": "function",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
    fields: dict[str, Any] = {
        "model": "builtin",
        "input": "How is the weather in Paris?",
        "temperature": 0,
        "max_output_tokens": 200,
        "tools": [tool],
        "tool_choice": "required",
        "reasoning": {"effort": "low"},
        "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
    }
    whole = live_api.responses.create(**fields)
    call = next(item for item in whole.output if item.type == "function_call")
    assert call.name == "get_weather" and isinstance(json.loads(call.arguments)["city"], str)
    assert whole.output[0].type == "reasoning" and whole.output[0].content[0].text
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    events = [event.to_dict() for event in live_api.responses.create(**fields, stream=True)]
    streamed = rebuilt(events)
    expected = without_ids(whole.to_dict())
    assert without_ids(streamed)["output"] == expected["output"]
    assert streamed["usage"]["output_tokens"] == whole.usage.output_tokens
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    last = {"model": "builtin", "temperature": 0, "max_output_tokens": 40}
    linked = live_api.responses.create(**last, input=[result], previous_response_id=whole.id)
    user = {"role": "user", "content": fields["input"]}
    sent_back = [user, *(item.to_dict() for item in whole.output), result]
    assert linked.output_text == live_api.responses.create(**last, input=sent_back).output_text
