"""llama-index (llama-index-llms-openai-like): chats, completions, streams, tools, structured output."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

openai_like = pytest.importorskip("llama_index.llms.openai_like")
llms = pytest.importorskip("llama_index.core.llms")
prompts = pytest.importorskip("llama_index.core.prompts")
tools = pytest.importorskip("llama_index.core.tools")


class City(BaseModel):
    """A city."""

    name: str
    population: int


@pytest.fixture
def llm(base_url: str, model: str) -> Any:
    return openai_like.OpenAILike(
        model=model,
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1024,
        max_tokens=120,
        temperature=0,
        max_retries=0,
    )


def question(text: str) -> list[Any]:
    return [llms.ChatMessage(role="user", content=text)]


def test_a_chat_and_its_stream_are_equal(llm: Any) -> None:
    whole = llm.chat(question("Say hello.")).message.content
    pieces = [piece.delta or "" for piece in llm.stream_chat(question("Say hello."))]
    assert whole and "".join(pieces) == whole


def test_completions(base_url: str, model: str) -> None:
    llm = openai_like.OpenAILike(
        model=model, api_base=base_url, api_key="none", is_chat_model=False, max_tokens=8,
        temperature=0, context_window=1024,
    )  # fmt: skip
    whole = llm.complete("The capital of France").text
    pieces = [piece.delta or "" for piece in llm.stream_complete("The capital of France")]
    assert whole and "".join(pieces) == whole


def test_tools_are_called(llm: Any) -> None:
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"cloudy in {city}"

    tool = tools.FunctionTool.from_defaults(fn=get_weather)
    answer = llm.chat_with_tools(
        [tool], user_msg="What is the weather in Oslo?", tool_required=True
    )
    calls = llm.get_tool_calls_from_response(answer)
    assert calls and calls[0].tool_name == "get_weather"
    assert isinstance(calls[0].tool_kwargs["city"], str)


def test_structured_output_returns_the_type(llm: Any) -> None:
    template = prompts.PromptTemplate("Specify a random {thing} as JSON.")
    assert isinstance(llm.structured_predict(City, template, thing="city"), City)


def test_a_structured_model_returns_the_type(llm: Any) -> None:
    answer = llm.as_structured_llm(City).complete("Specify a random city as JSON.")
    assert isinstance(answer.raw, City)
