"""What the owner of a server chose for all requests: a chat template, a bound on alternatives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas.config import EngineConfig
from eyas.server.options import ServerOptions
from eyas.server.service import Service
from eyas.server.text_processor import TextProcessor
from tests.server.engine_info import engine_info
from tests.server.fakes import FakeClient, LiveServer, live_server

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def chosen(directory: Path) -> Iterator[tuple[LiveServer, FakeClient]]:
    client = FakeClient(directory)
    with live_server(client, chat_template=TEMPLATE, max_top_logprobs=3) as server:
        yield server, client


def post(chosen: tuple[LiveServer, FakeClient], route: str, body: Any) -> httpx.Response:
    return httpx.post(chosen[0].url + route, json=body, timeout=60)


def test_the_given_template_is_rendered(chosen: tuple[LiveServer, FakeClient]) -> None:
    assert post(chosen, "/v1/chat/completions", CHAT).status_code == 200
    client = chosen[1]
    prompt = client.tokenizer.decode(client.requests[-1].prompt_token_ids, skip_special=False)
    assert prompt == "[user] Hi\n"


SWITCH = "{{ mood }}/{{ enable_thinking }}: {{ messages[0].content }}"


def test_variables_of_the_template_have_the_servers_defaults(directory: Path) -> None:
    """A request's own values take precedence, and so does its reasoning effort."""
    client = FakeClient(directory)
    given = {"mood": "calm", "enable_thinking": True}
    with live_server(client, chat_template=SWITCH, default_chat_template_kwargs=given) as server:
        for fields, expected in (
            ({}, "calm/True"),
            ({"chat_template_kwargs": {"mood": "sad"}}, "sad/True"),
            ({"chat_template_kwargs": {"enable_thinking": False}}, "calm/False"),
            ({"reasoning_effort": "none"}, "calm/False"),
        ):
            url = f"{server.url}/v1/chat/completions"
            assert httpx.post(url, json={**CHAT, **fields}, timeout=60).status_code == 200
            prompt = client.requests[-1].prompt_token_ids
            assert client.tokenizer.decode(prompt, skip_special=False) == f"{expected}: Hi"


def test_a_variable_that_the_template_does_not_read_is_refused_at_the_start(
    directory: Path,
) -> None:
    options = ServerOptions(chat_template=SWITCH, default_chat_template_kwargs={"mod": 1})
    service = Service(EngineConfig(), options, FakeClient(directory))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"default_chat_template_kwargs\.mod: is nothing that"):
        asyncio.run(service.load_text_processor())


def test_a_template_that_cannot_be_compiled_is_named(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"chat_template: .*cannot be compiled"):
        TextProcessor(directory, engine_info(directory), chat_template="{% if %}")


@pytest.mark.parametrize(
    ("route", "body", "name"),
    [
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 4}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "prompt_logprobs": 4}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x", "logprobs": 4}, "logprobs"),
        (
            "/generate",
            {"text": "x", "return_logprob": True, "top_logprobs_num": 4},
            "top_logprobs_num",
        ),
    ],
)
def test_alternatives_are_bounded(
    chosen: tuple[LiveServer, FakeClient], route: str, body: dict[str, Any], name: str
) -> None:
    refused = post(chosen, route, body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == name and "at most 3 alternatives" in error["message"]
    assert post(chosen, route, {**body, name: 3}).status_code == 200


def test_the_bound_is_within_what_the_engine_gives() -> None:
    for most in (-1, 21):
        with pytest.raises(ValueError, match="max_top_logprobs: must be between 0 and 20"):
            ServerOptions(max_top_logprobs=most)
