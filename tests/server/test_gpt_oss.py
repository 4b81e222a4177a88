"""gpt-oss through the server: a tiny random model of the family, whose template writes Harmony."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from eyas.dialect import find_dialect
from eyas.text import ChatTemplate, Tokenizer
from tests.dialect.cases import HARMONY_MARKERS
from tests.models.tiny import ROPE_YARN, make_model, save_model
from tests.server.conftest import serving
from tests.server.test_chat_answers import added_up
from tests.text.small_tokenizers import byte_level, write_model_directory

TEMPLATE = """\
{{- '<|start|>system<|message|>Reasoning: ' ~ (reasoning_effort or 'medium') -}}
{{- '\\n# Valid channels: analysis, commentary, final.<|end|>' -}}
{%- if tools -%}
    {{- '<|start|>developer<|message|># Tools\\nnamespace functions {' -}}
    {%- for tool in tools -%}
        {{- '\\ntype ' ~ tool.function.name ~ ' = (_: ' -}}
        {{- tool.function.parameters | tojson ~ ') => any;' -}}
    {%- endfor -%}
    {{- '\\n}<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' -}}
        {{- message.content ~ '<|end|>' -}}
    {%- elif message.tool_calls -%}
        {%- if message.thinking -%}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' ~ message.thinking ~ '<|end|>' -}}
        {%- endif -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- '<|start|>assistant to=functions.' ~ call.name -}}
        {{- '<|channel|>commentary json<|message|>' ~ call.arguments | tojson ~ '<|call|>' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|start|>assistant<|channel|>final<|message|>' ~ message.content ~ '<|end|>' -}}
    {%- else -%}
        {{- '<|start|>' ~ message.role ~ '<|message|>' ~ message.content ~ '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SPECIAL = ["<|startoftext|>", "<|endoftext|>", *HARMONY_MARKERS]
USER = [{"role": "user", "content": "How warm is it in <|end|> Oslo?"}]
CALLED = [
    *USER,
    {
        "role": "assistant",
        "reasoning_content": "look it up",
        "content": None,
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "11 degrees"},
]
PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def write_checkpoint(directory: Path) -> Path:
    spec = byte_level(SPECIAL, vocab_size=300)
    ids = {entry["content"]: entry["id"] for entry in spec["added_tokens"]}
    ends = [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]]
    model = make_model(
        "gpt-oss",
        vocab_size=max(ids.values()) + 1,
        eos_token_id=ends,
        bos_token_id=None,
        max_position_embeddings=1024,
        rope_parameters={
            **ROPE_YARN,
            "original_max_position_embeddings": 256,
            "truncate": False,
        },
    )
    save_model(model, directory)
    return write_model_directory(directory, spec, template=TEMPLATE, eos_token="<|return|>")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("gpt-oss"))


@pytest.fixture(scope="module")
def url(checkpoint: Path) -> Iterator[str]:
    with serving("--model", str(checkpoint), "--drafter", "ngram") as address:
        yield address


def chat(url: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": USER, "max_tokens": 300, "temperature": 1, "seed": 1, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_its_template_is_rendered_and_its_dialect_is_harmony(checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_directory_if_there(checkpoint)
    template = ChatTemplate.from_directory(checkpoint, tokenizer)
    assert tokenizer is not None and template is not None
    assert find_dialect(tokenizer, template.source, "GptOssForCausalLM").name == "harmony"
    ids = template.render_ids(template.normalize(CALLED), [WEATHER], add_generation_prompt=True)
    text = tokenizer.decode(ids, False)
    assert text.startswith("<|start|>system<|message|>Reasoning: medium\n")
    assert "<|channel|>analysis<|message|>look it up<|end|>" in text
    assert '<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>' in text
    assert text.endswith("<|message|>11 degrees<|end|><|start|>assistant")
    ends = ids.count(tokenizer.control_id("<|end|>"))
    assert ends == text.count("<|end|>") - 1, "the user's text holds no control token"


def test_an_answer_after_analysis_is_of_the_schema(url: str) -> None:
    for limit in (0, 12):
        answer = chat(
            url,
            response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
            max_reasoning_tokens=limit,
        )
        message = answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "stop"
        jsonschema.validate(json.loads(message["content"]), PERSON)
        assert bool(message.get("reasoning_content")) == (limit > 0)
        assert "<|" not in message["content"]


def test_a_tool_is_called_and_its_result_is_read(url: str, checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_directory_if_there(checkpoint)
    assert tokenizer is not None
    fields = {
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_reasoning_tokens": 8,
        "logit_bias": {tokenizer.control_id("<|end|>"): 10},  # a preamble may be long
    }
    for messages in (USER, CALLED):
        choice = chat(url, messages=messages, **fields)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        jsonschema.validate(
            json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"]
        )


def test_a_stream_has_the_same_parts(url: str) -> None:
    fields = {"regex": "(Paris|Amsterdam)", "max_reasoning_tokens": 12}
    whole = chat(url, **fields)["choices"][0]["message"]
    body = {"messages": USER, "max_tokens": 300, "temperature": 1, "seed": 1, "stream": True}
    text = httpx.post(f"{url}/v1/chat/completions", json={**body, **fields}, timeout=120).text
    lines = text.split("\n\n")[:-2]
    parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    message = added_up(parts)
    assert message["content"] == whole["content"]
    assert re.fullmatch("Paris|Amsterdam", whole["content"])
    assert message["reasoning_content"] == whole["reasoning_content"]
