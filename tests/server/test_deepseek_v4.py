"""DeepSeek-V4 through the server: a tiny random model in published files, without a chat template,
that drafts with its MTP layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.models.tiny_v4 import save_v4
from tests.server.conftest import serving
from tests.server.test_chat_answers import added_up
from tests.server.test_gpt_oss import PERSON, WEATHER
from tests.text.small_tokenizers import byte_level, write_model_directory
from tests.text.test_encodings import END, SPECIAL

USER = [{"role": "user", "content": "How warm is it in <｜Assistant｜> Oslo?"}]
CALLS: dict[str, Any] = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "parallel_tool_calls": False,  # a random model would call on and on
    "max_reasoning_tokens": 8,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("v4")
    spec = byte_level(SPECIAL, vocab_size=300)
    ids = {entry["content"]: entry["id"] for entry in spec["added_tokens"]}
    dsml = max(ids.values()) + 1
    spec["added_tokens"].append(
        {**spec["added_tokens"][-1], "id": dsml, "content": "｜DSML｜", "special": False}
    )
    save_v4(
        directory,
        vocab_size=dsml + 1,
        eos_token_id=ids[END],
        bos_token_id=None,
        max_position_embeddings=2048,
    )
    write_model_directory(directory, spec, eos_token=END)
    with serving("--model", str(directory)) as address:
        yield address


def chat(url: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": USER, "max_tokens": 300, "temperature": 1, "seed": 1, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"max_reasoning_tokens": 9}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
    ],
)
def test_reasoning_is_on_and_off(url: str, fields: dict[str, Any], reasons: bool) -> None:
    choice = chat(url, response_format=SCHEMA, **fields)
    message = choice["message"]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(message["content"]), PERSON)
    assert bool(message.get("reasoning_content")) == reasons
    assert "think>" not in message["content"]


def test_a_tool_is_called_and_its_result_is_read(url: str) -> None:
    messages = list(USER)
    for _ in range(2):
        choice = chat(url, messages=messages, **CALLS)
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        jsonschema.validate(
            json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"]
        )
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "11 degrees"})


def test_a_stream_has_the_same_parts(url: str) -> None:
    whole = chat(url, **CALLS)["message"]
    body = {"messages": USER, "max_tokens": 300, "temperature": 1, "seed": 1, "stream": True}
    text = httpx.post(f"{url}/v1/chat/completions", json={**body, **CALLS}, timeout=120).text
    lines = text.split("\n\n")[:-2]
    message = added_up([json.loads(line.removeprefix("data: "))["choices"][0] for line in lines])
    assert message["reasoning_content"] == whole["reasoning_content"]
    functions = [[call["function"] for call in found["tool_calls"]] for found in (message, whole)]
    assert functions[0] == functions[1]
