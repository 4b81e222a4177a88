"""openai: `parse`, `stream`, tools, log-probabilities, errors, both of its clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

openai = pytest.importorskip("openai")

JSON_PROMPT = [{"role": "user", "content": "Specify a random city as JSON."}]
WEATHER_PROMPT = [{"role": "user", "content": "What is the weather in Paris?"}]


class City(BaseModel):
    name: str
    population: int


class Trip(BaseModel):
    """Optional and nested parts, which strict schemas spell with anyOf and $defs."""

    start: City
    end: City | None
    means: Literal["train", "bicycle"]


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str


@pytest.fixture
def api(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("kind", [City, Trip])
def test_parse_returns_the_type(api: Any, model: str, kind: type[BaseModel]) -> None:
    answer = api.chat.completions.parse(
        model=model, messages=JSON_PROMPT, response_format=kind, temperature=1.0, seed=1
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, kind) and message.refusal is None
    assert json.loads(message.content) == message.parsed.model_dump()


def test_an_answer_that_is_cut_is_told(api: Any, model: str) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        api.chat.completions.parse(
            model=model, messages=JSON_PROMPT, response_format=City, max_completion_tokens=2
        )


def test_tool_calls_have_parsed_arguments(api: Any, model: str) -> None:
    answer = api.chat.completions.parse(
        model=model,
        messages=WEATHER_PROMPT,
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice="required",
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, GetWeather)


def test_a_conversation_goes_on_after_a_tool(api: Any, model: str) -> None:
    tools = [openai.pydantic_function_tool(GetWeather)]
    messages: list[Any] = list(WEATHER_PROMPT)
    answer = api.chat.completions.create(
        model=model, messages=messages, tools=tools, tool_choice="required", temperature=0
    )
    message = answer.choices[0].message
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "cloudy, 12 degrees"}
        for call in message.tool_calls
    ]
    again = api.chat.completions.create(
        model=model, messages=messages, tools=tools, tool_choice="none", max_tokens=40
    )
    assert again.choices[0].message.tool_calls is None
    assert again.usage.completion_tokens > 0


def test_stream_gives_the_events_of_the_content(api: Any, model: str) -> None:
    kinds: list[str] = []
    with api.chat.completions.stream(
        model=model, messages=JSON_PROMPT, response_format=City, temperature=0
    ) as stream:
        deltas = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "content.delta":
                deltas.append(event.delta)
            elif event.type == "content.done":
                assert isinstance(event.parsed, City)
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert "".join(deltas) == final.choices[0].message.content
    assert isinstance(final.choices[0].message.parsed, City)


def test_stream_gives_the_events_of_tool_calls(api: Any, model: str) -> None:
    with api.chat.completions.stream(
        model=model,
        messages=WEATHER_PROMPT,
        tools=[openai.pydantic_function_tool(GetWeather)],
        tool_choice={"type": "function", "function": {"name": "GetWeather"}},
    ) as stream:
        events = list(stream)
    pieces = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert pieces and done
    assert isinstance(done[0].parsed_arguments, GetWeather)
    of_first = [piece for piece in pieces if piece.index == done[0].index]
    assert "".join(piece.arguments_delta for piece in of_first) == done[0].arguments


def test_stream_gives_the_events_of_logprobs(api: Any, model: str) -> None:
    with api.chat.completions.stream(
        model=model, messages=WEATHER_PROMPT, logprobs=True, top_logprobs=2, max_tokens=8
    ) as stream:
        events = list(stream)
    (done,) = [e for e in events if e.type == "logprobs.content.done"]
    chunks = [e.chunk.choices[0] for e in events if e.type == "chunk"]
    pieces = [entry for each in chunks if each.logprobs for entry in each.logprobs.content]
    assert [entry.token for entry in done.content] == [entry.token for entry in pieces]
    assert len(pieces) == 8 and all(len(entry.top_logprobs) == 2 for entry in pieces)


def test_the_asynchronous_client_works_alike(base_url: str, model: str) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            fields = {"model": model, "messages": WEATHER_PROMPT, "temperature": 0}
            whole = await client.chat.completions.create(max_tokens=12, **fields)
            stream = await client.chat.completions.create(max_tokens=12, stream=True, **fields)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return [whole.choices[0].message.content, "".join(pieces)]

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_errors_have_their_classes(api: Any, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(
            model=model, messages=WEATHER_PROMPT, extra_body={"regex": "(Paris|Amsterdam}"}
        )
    assert refused.value.code == "grammar_invalid" and refused.value.param == "regex"
    with pytest.raises(openai.NotFoundError) as unknown:
        api.chat.completions.create(model="another", messages=WEATHER_PROMPT)
    assert unknown.value.code == "model_not_found"
