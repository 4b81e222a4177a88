"""litellm: as OpenAI's API and as a hosted vLLM; answers, streams, tools, structured output, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

litellm = pytest.importorskip("litellm")

JSON_PROMPT = [{"role": "user", "content": "Specify a random city as JSON."}]
HELLO = [{"role": "user", "content": "Say hello."}]
GET_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class City(BaseModel):
    name: str
    population: int


@pytest.fixture(params=["openai", "hosted_vllm"])
def fields(request: pytest.FixtureRequest, base_url: str, model: str) -> dict[str, Any]:
    return {
        "model": f"{request.param}/{model}",
        "api_base": base_url,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 120,
        "num_retries": 0,
    }


def test_an_answer_and_its_stream_are_equal(fields: dict[str, Any]) -> None:
    whole = litellm.completion(messages=HELLO, **fields)
    assert whole.choices[0].message.content and whole.usage.completion_tokens > 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(messages=HELLO, **options, **fields))
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_structured_output_follows_the_type(fields: dict[str, Any]) -> None:
    answer = litellm.completion(messages=JSON_PROMPT, response_format=City, **fields)
    City.model_validate_json(answer.choices[0].message.content)


def test_tools_are_called(fields: dict[str, Any]) -> None:
    answer = litellm.completion(
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[GET_WEATHER],
        tool_choice="required",
        **fields,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls and all(call.function.name == "get_weather" for call in calls)


def test_the_asynchronous_call(fields: dict[str, Any]) -> None:
    answer = asyncio.run(litellm.acompletion(messages=HELLO, **fields))
    assert answer.choices[0].message.content


def test_completions(fields: dict[str, Any]) -> None:
    fields = {**fields, "model": fields["model"].replace("openai/", "text-completion-openai/")}
    answer = litellm.text_completion(prompt="The capital of France", **{**fields, "max_tokens": 8})
    assert answer.choices[0].text


def test_errors_have_their_classes(fields: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="regex"):
        litellm.completion(messages=HELLO, extra_body={"regex": "(Paris|Amsterdam}"}, **fields)
    unknown = fields["model"].rpartition("/")[0] + "/another"
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HELLO, **{**fields, "model": unknown})
