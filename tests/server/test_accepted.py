"""Fields of the clients' that are taken: those that say something do it, those that say nothing may."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.server.fakes import FakeClient
from tests.server.test_chat_answers import TIME, WEATHER
from tests.server.test_golden import USER

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    named = [{"type": "function", "function": {"name": tool["function"]["name"]}} for tool in tools]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tools_that_are_allowed_are_all_that_can_be_called(
    api: openai.OpenAI, fake: FakeClient, mode: str
):
    def asked(**fields: Any) -> Any:
        api.chat.completions.create(model="tiny", messages=USER, **fields)
        return fake.requests[-1]

    both, choice = [WEATHER, TIME], allowed(mode, WEATHER)
    restricted = asked(tools=both, tool_choice=choice)
    assert restricted.output == asked(tools=[WEATHER], tool_choice=mode).output
    unrestricted = asked(tools=both, tool_choice=mode)
    assert restricted.output != unrestricted.output
    assert restricted.prompt_token_ids == unrestricted.prompt_token_ids, "all of them are shown"
    assert asked(tools=both, tool_choice=allowed(mode, TIME, WEATHER)).output == unrestricted.output


@pytest.mark.parametrize(
    "fields",
    [
        {"verbosity": "medium"},
        {"verbosity": "high"},
        {"prediction": {"type": "content", "content": "Paris"}},
        {"prediction": {"type": "content", "content": [{"type": "text", "text": "Paris"}]}},
    ],
)
def test_hints_change_nothing(http: httpx.Client, fake: FakeClient, fields: dict[str, Any]):
    for more in ({}, fields):
        assert http.post(CHAT, json={"messages": USER, "seed": 1, **more}).status_code == 200
    first, second = fake.requests[-2:]
    assert (first.prompt_token_ids, first.params) == (second.prompt_token_ids, second.params)


def test_what_old_clients_send_for_nothing_is_nothing(http: httpx.Client, fake: FakeClient):
    for more in ({}, {"logprobs": False}, {"suffix": ""}):
        answer = http.post(TEXT, json={"prompt": "x", "seed": 1, **more})
        assert answer.json()["choices"][0]["logprobs"] is None
    assert len({repr(request.params) for request in fake.requests[-3:]}) == 1
    assert http.post(TEXT, json={"prompt": "x", "logprobs": 0}).json()["choices"][0]["logprobs"]


def test_a_call_cannot_be_continued(http: httpx.Client, fake: FakeClient):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    last = {"role": "assistant", "content": "Let me see", "tool_calls": [call]}
    body = {"messages": [*USER, last], "continue_final_message": True}
    for path in (CHAT, "/tokenize"):
        error = http.post(path, json=body).json()["error"]
        assert error["param"] == "messages[1].tool_calls"
        assert "leave out its calls, or continue_final_message" in error["message"]
        body["messages"][1]["tool_calls"] = []
        assert http.post(path, json=body).status_code == 200
        body["messages"][1]["tool_calls"] = [call]


@pytest.mark.parametrize(("path", "prefix"), [(CHAT, "chatcmpl-"), (TEXT, "cmpl-")])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_shows_the_id_of_its_client(
    http: httpx.Client, fake: FakeClient, path: str, prefix: str, stream: bool
):
    """SGLang shows rid as it is, vLLM puts the route's prefix before request_id. Within the server,
    equal ids of two clients are two answers."""
    prompt: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "x"}
    for fields, shown in (({"rid": "mine"}, "mine"), ({"request_id": "mine"}, f"{prefix}mine")):
        for _ in range(2):
            answer = http.post(path, json={**prompt, **fields, "stream": stream})
            assert f'"id":"{shown}"' in answer.text.replace('"id": ', '"id":')
    assert len({request.id for request in fake.requests[-4:]}) == 4
    assert not any("mine" in request.id for request in fake.requests[-4:])
