"""What `LLM.chat` and `generate` give back for `output=` and tools, with the built-in model."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal

import pydantic
import pytest

from eyas import Grammar, JsonSchema, OutputIncomplete, Regex, RequestError, SamplingParams
from eyas.llm import LLM

QUESTION = [{"role": "user", "content": "Extract as JSON: Maria is 34 and lives in Porto."}]
GREEDY = SamplingParams(temperature=0, max_tokens=120)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int


@dataclasses.dataclass
class Place:
    city: Literal["Porto", "Oslo"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_num_seqs=4, num_slots=3000)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (Person, Person),
        (Place, Place),
        (Colour, Colour),
        (Literal["yes", "no"], str),
        (Regex("[0-9]{3}"), str),
        (Grammar('root ::= "a" | "b"'), str),
        (JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}), list),
    ],
)
def test_values_come_back(llm: LLM, output: Any, kind: type) -> None:
    assert isinstance(llm.chat(QUESTION, GREEDY, output=output), kind)
    both = llm.generate(["As JSON: ", "Or: "], GREEDY, output=output)
    assert [isinstance(value, kind) for value in both] == [True, True]


def test_what_is_not_whole_says_so(llm: LLM) -> None:
    short = SamplingParams(temperature=0, max_tokens=8)
    with pytest.raises(OutputIncomplete, match="max_tokens") as cut:
        llm.chat(QUESTION, short, output=Person)
    assert cut.value.reason == "length"
    stopped = SamplingParams(temperature=0, max_tokens=120, stop=('"age"',))
    with pytest.raises(OutputIncomplete):
        llm.chat(QUESTION, stopped, output=Person, enable_thinking=False)
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    with pytest.raises(OutputIncomplete, match="get_weather") as called:
        llm.chat(asked, GREEDY, tools=[TOOL], tool_choice="required", output=Person)
    assert called.value.choice.tool_calls[0].arguments.startswith("{")


def test_a_function_may_be_named_as_openai_names_it(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    asked = [{"role": "user", "content": "Hello!"}]
    answer = llm.chat(asked, GREEDY, tools=[TOOL], tool_choice=choice)[0].choices[0]
    assert [call.name for call in answer.tool_calls] == ["get_weather"]
    with pytest.raises(RequestError, match="tool_choice"):
        llm.chat(asked, GREEDY, tools=[TOOL], tool_choice={"name": 3})


def test_a_stream_is_held_to_the_same(llm: LLM) -> None:
    deltas = llm.stream_chat(QUESTION, GREEDY, output=Regex("yes|no"), enable_thinking=False)
    assert "".join(delta.text for delta in deltas) in ("yes", "no")


@pytest.mark.parametrize("output", [3, "a text", object()])
def test_what_is_no_type_is_refused(llm: LLM, output: object) -> None:
    with pytest.raises(RequestError, match="output"):
        llm.chat(QUESTION, GREEDY, output=output)


def test_an_option_that_no_template_reads_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="enable_thinkin"):
        llm.chat(QUESTION, GREEDY, enable_thinkin=True)
