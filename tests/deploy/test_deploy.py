"""What a deployment is made of, without a cluster manager."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from eyas.deploy.http_call import HttpCall, prompt_prefix, read_call, run_call
from eyas.deploy.settings import read_settings
from eyas.server.app import create_app
from eyas.server.options import ServerOptions
from eyas.server.service import Service
from tests.server.fakes import FakeClient

RECIPE = Path(__file__).parents[2] / "deploy" / "ray" / "eyas.yaml"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"max_replica": 2}, "settings of the deployment: .*max_replica"),
        ({"min_replicas": 3}, "max_replicas: must be between 3"),
        ({"engine": {"modell": "x"}}, "engine: .*modell"),
        ({"engine": {"max_num_seqs": 0}}, "scheduler.max_num_seqs"),
        ({"server": {"keys": ["x"]}}, "server: .*keys"),
        ({"gpus": "many"}, "settings of the deployment: .*gpus"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_settings(given)


def test_settings_of_a_command_line_are_texts() -> None:
    settings = read_settings({"max_replicas": "4", "target_requests": "8", "gpus": "0.5"})
    assert (settings.max_replicas, settings.target, settings.gpus) == (4, 8, 0.5)
    assert read_settings({"engine": {"max_num_seqs": 10}}).target == 5


def test_the_recipe_has_settings_that_exist() -> None:
    (application,) = yaml.safe_load(RECIPE.read_text())["applications"]
    settings = read_settings(application["args"])
    assert settings.gpus == 1 and settings.server_options().served_model_names == ("builtin",)
    assert application["import_path"] == "eyas.deploy.ray:app"


CHAT = {"messages": [{"role": "system", "content": "Rules"}, {"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("body", "prefix"),
    [
        (CHAT, "Rules\nHi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, "Hi"),
        ({"prompt": "Once upon a time"}, "Once upon a time"),
        ({"prompt": [[1, 2], [3]]}, "1\n2\n3"),
        ({"input": "Hello", "instructions": "Be brief"}, "Be brief\nHello"),
        ({"text": "generate"}, "generate"),
        ({**CHAT, "cache_salt": "tenant"}, "tenant\nRules\nHi"),
        ({"prompt": "a" * 100_000}, "a" * 64),
        ({"messages": {"role": 1}}, ""),
        ({}, ""),
        ([], ""),
    ],
)
def test_prompts_begin_with_their_first_text(body: Any, prefix: str) -> None:
    assert prompt_prefix(msgspec.json.encode(body), 64) == prefix


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"prompt": ' + b"[" * 10_000])
def test_what_cannot_be_read_has_no_beginning(body: bytes) -> None:
    assert prompt_prefix(body, 64) == ""


def call_of(body: bytes, path: str = "/v1/completions") -> HttpCall:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return HttpCall("POST", path, path.encode(), b"", headers, ("127.0.0.1", 9), body, "")


async def collected(app: Any, call: HttpCall) -> tuple[int, bytes]:
    status, body = 0, b""
    async for message in run_call(app, call):
        status = message.get("status", status)
        body += message.get("body", b"")
    return status, body


def test_the_application_answers_a_call_as_a_connection(directory: Path) -> None:
    fake = FakeClient(directory)
    config = read_settings({"engine": {"model": "tiny"}}).engine_config()

    async def run() -> None:
        service = Service(config, ServerOptions(), fake)
        await service.load_text_processor()
        app = create_app(service)
        status, body = await collected(app, call_of(b'{"prompt": "x", "stream": true}'))
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        status, body = await collected(app, call_of(b'{"prompt": 5.5}'))
        assert status == 400 and msgspec.json.decode(body)["error"]["param"] == "prompt"
        service.close()

    asyncio.run(run())


def test_closing_a_response_ends_its_request() -> None:
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"x" and scope["path"] == "/v1/completions"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"y", "more_body": True})
        finally:
            ended.set()

    async def run() -> None:
        messages = run_call(endless, call_of(b"x"))
        assert (await anext(messages))["status"] == 200
        await messages.aclose()
        assert ended.is_set()

    asyncio.run(run())


def test_an_application_that_fails_is_no_end_of_a_response() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(collected(broken, call_of(b"")))


@pytest.mark.parametrize(("size", "kept"), [(5, 5), (11, 11), (500, 11)])
def test_a_body_is_read_up_to_what_is_refused(size: int, kept: int) -> None:
    parts = [b"z" * 3] * (size // 3) + [b"z" * (size % 3)]

    async def receive() -> Message:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    scope = {
        "type": "http", "method": "POST", "path": "/a b", "raw_path": b"/a%20b",
        "query_string": b"q=1", "headers": [(b"x", b"y")], "client": ["10.0.0.1", 5],
    }  # fmt: skip
    call = asyncio.run(read_call(Request(scope, receive), 10, 64))
    assert call.body == b"z" * kept
    assert (call.raw_path, call.query, call.client) == (b"/a%20b", b"q=1", ("10.0.0.1", 5))
