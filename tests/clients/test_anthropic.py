"""anthropic: `create`, `stream`, `parse`, tools, thinking, `count_tokens`, errors, both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

anthropic = pytest.importorskip("anthropic")

JSON_PROMPT = [{"role": "user", "content": "Specify a random city as JSON."}]
WEATHER_PROMPT = [{"role": "user", "content": "What is the weather in Paris?"}]
GET_WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


GREEDY = {"extra_body": {"temperature": 0}}
"""Current clients have no argument for it."""
OFF = {"type": "disabled"}


class City(BaseModel):
    name: str
    population: int


@pytest.fixture
def api(server_url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0) as client:
        yield client


def contents(message: Any) -> list[dict[str, Any]]:
    """The blocks of a message without their ids."""
    blocks = [block.to_dict() for block in message.content]
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


def test_a_stream_gives_the_message_that_create_gives(api: Any, model: str) -> None:
    fields = {"model": model, "max_tokens": 24, "system": "Be brief.", "extra_body": {"seed": 1}}
    fields["thinking"] = OFF
    whole = api.messages.create(messages=WEATHER_PROMPT, **fields)
    with api.messages.stream(messages=WEATHER_PROMPT, **fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert contents(final) == contents(whole)
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens > 0
    counted = api.messages.count_tokens(
        model=model, messages=WEATHER_PROMPT, system=fields["system"], thinking=OFF
    )
    for usage in (whole.usage, final.usage):
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


def test_parse_returns_the_type(api: Any, model: str) -> None:
    answer = api.messages.parse(
        model=model, messages=JSON_PROMPT, max_tokens=200, output_format=City
    )
    assert isinstance(answer.parsed_output, City)
    with api.messages.stream(
        model=model, messages=JSON_PROMPT, max_tokens=200, output_format=City
    ) as stream:
        assert isinstance(stream.get_final_message().parsed_output, City)


def test_a_conversation_goes_on_after_a_tool(api: Any, model: str) -> None:
    fields = {"model": model, "max_tokens": 100, "tools": [GET_WEATHER], **GREEDY}
    choice = {"type": "tool", "name": "get_weather"}
    answer = api.messages.create(messages=WEATHER_PROMPT, tool_choice=choice, **fields)
    assert answer.stop_reason == "tool_use"
    with api.messages.stream(messages=WEATHER_PROMPT, tool_choice=choice, **fields) as stream:
        assert contents(stream.get_final_message()) == contents(answer)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert all(isinstance(call.input["city"], str) for call in calls)
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "cloudy, 12 degrees"}
        for call in calls
    ]
    again = api.messages.create(
        messages=[
            *WEATHER_PROMPT,
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": results},
        ],
        tool_choice={"type": "none"},
        thinking=OFF,
        **fields,
    )
    assert [block.type for block in again.content] == ["text"]


def test_thinking_comes_first_and_is_read_again(api: Any, model: str) -> None:
    fields = {"model": model, "max_tokens": 200, **GREEDY}
    thinking = {"type": "enabled", "budget_tokens": 40}
    answer = api.messages.create(messages=WEATHER_PROMPT, thinking=thinking, **fields)
    with api.messages.stream(messages=WEATHER_PROMPT, thinking=thinking, **fields) as stream:
        deltas = [event.thinking for event in stream if event.type == "thinking"]
        assert contents(stream.get_final_message()) == contents(answer)
    assert answer.content[0].type == "thinking"
    assert "".join(deltas) == answer.content[0].thinking
    assert 0 < answer.usage.output_tokens_details.thinking_tokens <= 42
    more = [
        *WEATHER_PROMPT,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": "And in Rome?"},
    ]
    last = api.messages.create(messages=more, thinking=OFF, **fields)
    assert [block.type for block in last.content] == ["text"]


def test_a_stop_sequence_is_named(api: Any, model: str) -> None:
    fields = {"model": model, "messages": WEATHER_PROMPT, "max_tokens": 40, **GREEDY}
    fields["thinking"] = OFF
    text = api.messages.create(**fields).content[0].text
    sequence = text[4:7]
    answer = api.messages.create(**fields, stop_sequences=[sequence])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", sequence)
    assert answer.content[0].text == text[: text.index(sequence)]


def test_the_asynchronous_client_works_alike(server_url: str, model: str) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=server_url, api_key="none") as client:
            fields = {"model": model, "messages": WEATHER_PROMPT, "thinking": OFF, **GREEDY}
            whole = await client.messages.create(max_tokens=12, **fields)
            async with client.messages.stream(max_tokens=12, **fields) as stream:
                pieces = [text async for text in stream.text_stream]
            return [whole.content[0].text, "".join(pieces)]

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_errors_have_their_classes(api: Any, model: str) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    with pytest.raises(anthropic.BadRequestError) as refused:
        api.messages.create(
            model=model, max_tokens=5, messages=[{"role": "user", "content": [image]}]
        )
    assert refused.value.error_code == "invalid_value"
    assert "images" in refused.value.message
    with pytest.raises(anthropic.NotFoundError) as unknown:
        api.messages.create(model="another", max_tokens=5, messages=WEATHER_PROMPT)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    assert unknown.value.error_code == "model_not_found"
