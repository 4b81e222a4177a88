"""langchain-openai: chat models with structured output and tools, streams, batches, completions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

langchain = pytest.importorskip("langchain_openai")
tools = pytest.importorskip("langchain_core.tools")
messages = pytest.importorskip("langchain_core.messages")

JSON_PROMPT = "Specify a random city as JSON."
WEATHER_PROMPT = "What is the weather in Oslo?"


class City(BaseModel):
    """A city."""

    name: str
    population: int


@pytest.fixture
def chat(base_url: str, model: str) -> Any:
    return langchain.ChatOpenAI(
        model=model, base_url=base_url, api_key="none", temperature=0, max_retries=0, max_tokens=120
    )


def test_an_answer_has_usage_and_a_finish_reason(chat: Any) -> None:
    answer = chat.invoke("Say hello.")
    assert answer.content and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def test_a_stream_adds_up_to_the_answer(chat: Any) -> None:
    whole = chat.invoke("Say hello.")
    pieces = list(chat.stream("Say hello.", stream_usage=True))
    assert "".join(piece.content for piece in pieces) == whole.content
    assert any(piece.usage_metadata for piece in pieces)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_returns_the_type(chat: Any, method: str) -> None:
    assert isinstance(chat.with_structured_output(City, method=method).invoke(JSON_PROMPT), City)


def test_json_mode_returns_an_object(chat: Any) -> None:
    output = chat.with_structured_output(method="json_mode").invoke(JSON_PROMPT)
    assert isinstance(output, dict)


def test_structured_output_is_streamed(chat: Any) -> None:
    partials = list(chat.with_structured_output(City, method="json_schema").stream(JSON_PROMPT))
    assert isinstance(partials[-1], City)


def test_tools_are_called_and_their_results_are_read(chat: Any) -> None:
    @tools.tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"cloudy in {city}"

    question = messages.HumanMessage(WEATHER_PROMPT)
    with_tool = chat.bind_tools([get_weather], tool_choice="get_weather")
    answer = with_tool.invoke([question])
    assert answer.tool_calls and not answer.invalid_tool_calls
    results = [get_weather.invoke(call) for call in answer.tool_calls]
    again = chat.bind_tools([get_weather], tool_choice="none").invoke([question, answer, *results])
    assert again.content is not None and not again.tool_calls


def test_batches_and_the_asynchronous_calls(chat: Any) -> None:
    prompts = [f"Specify a random city, number {k}." for k in range(4)]
    together = [answer.content for answer in chat.batch(prompts)]

    async def one_by_one() -> list[str]:
        return [(await chat.ainvoke(prompt)).content for prompt in prompts]

    assert asyncio.run(one_by_one()) == together


def test_completions(base_url: str, model: str) -> None:
    complete = langchain.OpenAI(
        model=model, base_url=base_url, api_key="none", temperature=0, max_tokens=8
    )
    whole = complete.invoke("The capital of France")
    assert whole and "".join(complete.stream("The capital of France")) == whole
