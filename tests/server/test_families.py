"""GLM-4.5, DeepSeek-R1, Qwen3, Qwen3.5 and two of Mistral's formats through the server: tiny random
models, each with its family's tokens and a template of its format. gpt-oss and DeepSeek-V4 have files
of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.dialect.cases import DEEPSEEK_MARKERS, GLM_MARKERS, MISTRAL_THINK, THINK
from tests.models.tiny import make_model, save_model
from tests.server.conftest import serving
from tests.server.test_chat_answers import added_up
from tests.server.test_gpt_oss import PERSON, WEATHER
from tests.text.small_tokenizers import (
    CHATML_MARKERS,
    CHATML_TEMPLATE,
    CHATML_TOKENS,
    byte_level,
    write_model_directory,
)

GLM_TEMPLATE = """\
[gMASK]<sop>
{%- if tools %}
    {{- '<|system|>\\n# Tools\\n' }}
    {%- for tool in tools %}{{ tool | tojson ~ '\\n' }}{% endfor %}
    {{- 'Call: <tool_call>name\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>\\n<think>' ~ (message.reasoning_content or '') ~ '</think>' }}
        {%- if message.content %}{{ '\\n' ~ message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' ~ call.function.name ~ '\\n' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '<arg_key>' ~ key ~ '</arg_key>\\n<arg_value>' }}
                {{- value if value is string else value | tojson }}
                {{- '</arg_value>\\n' }}
            {%- endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '<|observation|>\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
    {%- else %}
        {{- '<|' ~ message.role ~ '|>\\n' ~ message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking }}
{%- endif %}
"""
DEEPSEEK_TEMPLATE = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}{{ '\\n' ~ tool | tojson }}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<｜User｜>' ~ message.content }}
    {%- elif message.role == 'tool' %}
        {{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' ~ message.content }}
        {{- '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
    {%- elif message.tool_calls %}
        {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
        {%- for call in message.tool_calls %}
            {{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' ~ call.function.name ~ '\\n```json\\n' }}
            {{- call.function.arguments | tojson ~ '\\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<｜Assistant｜>' ~ message.content.split('</think>')[-1] ~ '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}
"""
MISTRAL_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST]' ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}{{ raise_exception('9 characters') }}{% endif %}
        {{- '[TOOL_RESULTS]' ~ {'content': message.content, 'call_id': message.tool_call_id} | tojson }}
        {{- '[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('9 characters') }}{% endif %}
            {{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' }}
            {{- ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' ~ eos_token }}
    {%- else %}
        {{- message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}
"""
MAGISTRAL_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST]' ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' ~ message.content ~ '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
"""
CALLS_IN_JSON = """\
        {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
        {{- call.arguments if call.arguments is string else call.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
"""
CALLS_IN_TAGS = """\
        {{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
        {%- for key, value in call.arguments.items() %}
            {{- '<parameter=' + key + '>\\n' }}
            {{- value if value is string else value | tojson }}
            {{- '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
"""


MISTRAL_TOKENS = (
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)


@dataclass(frozen=True)
class Family:
    """model: the tiny one. special: its tokens, the last of which ends a turn. switches: whether the
    template can close reasoning. reasons: whether the model reasons."""

    model: str
    template: str
    special: tuple[str, ...]
    markers: tuple[str, ...]
    switches: bool = True
    reasons: bool = True


FAMILIES = {
    "GLM-4.5": Family(
        "glm4 moe",
        GLM_TEMPLATE,
        (
            *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            "<|endoftext|>",
        ),
        (*THINK, *GLM_MARKERS, "<tool_response>", "</tool_response>"),
    ),
    "DeepSeek-R1": Family(
        "deepseek v3 experts",
        DEEPSEEK_TEMPLATE,
        (
            *("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            *("<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
            *("<｜tool▁outputs▁end｜>", "<｜end▁of▁sentence｜>"),
        ),
        (*THINK, *DEEPSEEK_MARKERS),
        switches=False,
    ),
    "Qwen3": Family("qwen3 moe", CHATML_TEMPLATE, tuple(CHATML_TOKENS), tuple(CHATML_MARKERS)),
    "Qwen3.5": Family(
        "qwen3.5",
        CHATML_TEMPLATE.replace(CALLS_IN_JSON, CALLS_IN_TAGS),
        tuple(CHATML_TOKENS),
        tuple(CHATML_MARKERS),
    ),
    "Mistral": Family(
        "mistral",
        MISTRAL_TEMPLATE,
        ("<s>", *MISTRAL_TOKENS, "[TOOL_CALLS]", "</s>"),
        (),
        switches=False,
        reasons=False,
    ),
    "Magistral": Family(
        "mistral",
        MAGISTRAL_TEMPLATE,
        ("<s>", *MISTRAL_TOKENS, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", *MISTRAL_THINK, "</s>"),
        (),
        switches=False,
    ),
}
USER = [{"role": "user", "content": "How warm is it in </think> Oslo?"}]
CALLS: dict[str, Any] = {
    "tools": [WEATHER],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_reasoning_tokens": 8,
}


@pytest.fixture(scope="module", params=FAMILIES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Family, str]]:
    family = FAMILIES[request.param]
    directory: Path = tmp_path_factory.mktemp("model")
    spec = byte_level(list(family.special), list(family.markers), vocab_size=300)
    ids = {entry["content"]: entry["id"] for entry in spec["added_tokens"]}
    end = family.special[-1]
    model = make_model(
        family.model,
        vocab_size=max(ids.values()) + 1,
        eos_token_id=ids[end],
        bos_token_id=None,
        max_position_embeddings=2048,
    )
    save_model(model, directory)
    write_model_directory(
        directory, spec, template=family.template, eos_token=end, bos_token=family.special[0]
    )
    with serving("--model", str(directory), "--drafter", "ngram") as url:
        yield family, url


def post(url: str, **fields: Any) -> httpx.Response:
    body = {"messages": USER, "max_tokens": 300, "temperature": 1, "seed": 1, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response


def test_reasoning_answers_and_calls_come_apart(served: tuple[Family, str]) -> None:
    family, url = served
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    asked: list[dict[str, Any]] = [{"max_reasoning_tokens": 9} if family.reasons else {}]
    if family.switches:
        asked.append({"chat_template_kwargs": {"enable_thinking": False}})
    for fields in asked:
        choice = post(url, response_format=schema, **fields).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        has_reasoned = bool(choice["message"].get("reasoning_content"))
        assert has_reasoned == ("max_reasoning_tokens" in fields)
    messages = list(USER)
    for _ in range(2):
        whole = post(url, messages=messages, **CALLS).json()["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        [call] = whole["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        schema = WEATHER["function"]["parameters"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
        lines = post(url, messages=messages, stream=True, **CALLS).text.split("\n\n")[:-2]
        parts = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
        streamed = added_up(parts)
        reasoning = whole["message"].get("reasoning_content")
        assert streamed.get("reasoning_content") == reasoning
        assert bool(reasoning) == family.reasons
        assert [each["function"] for each in streamed["tool_calls"]] == [call["function"]]
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "11 degrees"})
