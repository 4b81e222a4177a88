"""What the offline API's annotations tell a checker; read by `test_checkers.py`, never run."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Optional, TypedDict, Union, assert_type

import pydantic

from eyas import LLM, Delta, GenerationOutput, Grammar, JsonSchema, PartialOutput, Regex
from eyas.grammar import Literal as Text


class Person(pydantic.BaseModel):
    name: str


@dataclasses.dataclass
class Place:
    city: str


class Film(TypedDict):
    title: str


class Colour(enum.Enum):
    RED = "red"


def chats(llm: LLM) -> None:
    one = [{"role": "user", "content": "Who?"}]
    assert_type(llm.chat(one), list[GenerationOutput])
    assert_type(llm.chat([one, one], tools=[], enable_thinking=False), list[GenerationOutput])
    assert_type(llm.chat(one, output=Person), Person)
    assert_type(llm.chat([one, one], output=Person), list[Person])
    assert_type(llm.chat(one, output=list[Person]), list[Person])
    assert_type(llm.chat(one, output=Place), Place)
    assert_type(llm.chat(one, output=Film), Film)
    assert_type(llm.chat(one, output=Colour), Colour)
    assert_type(llm.chat(one, output=int), int)
    assert_type(llm.chat(one, output=Regex("a|b")), str)
    assert_type(llm.chat(one, output=re.compile("a|b")), str)
    assert_type(llm.chat(one, output=Grammar('start: "a"')), str)
    assert_type(llm.chat(one, output='start: "a"'), str)
    assert_type(llm.chat(one, output=Text("yes")), str)
    assert_type(llm.chat([one], output=re.compile("a|b")), list[str])
    assert_type(llm.chat(one, output=JsonSchema({"type": "array"})), Any)
    assert_type(llm.chat([one], output=JsonSchema({"type": "array"})), Any)
    assert_type(llm.chat(one, output=Literal["yes", "no"]), Literal["yes", "no"])
    assert_type(llm.chat(one, output=int | None), int | None)
    assert_type(llm.chat(one, output=Optional[int]), int | None)  # noqa: UP045
    assert_type(llm.chat(one, output=Union[Person, Place]), Person | Place)  # noqa: UP007
    assert_type(llm.chat([one], output=Person | None), list[Person | None])
    assert_type(llm.chat(one, output=Annotated[int, pydantic.Field(ge=0)]), int)


def chats_of_any_values(llm: LLM, one: list[dict[str, Any]]) -> None:
    assert_type(llm.chat(one), list[GenerationOutput])
    assert_type(llm.chat(one, output=Person), Person)
    assert_type(llm.chat([one], output=Person), list[Person])
    assert_type(llm.chat(one, output=list[Person]), list[Person])
    assert_type(llm.chat(one, output=re.compile("a|b")), str)


def continuations(llm: LLM) -> None:
    assert_type(llm.generate("The"), list[GenerationOutput])
    assert_type(llm.generate("The", {"temperature": 0}), list[GenerationOutput])
    assert_type(llm.generate(["a", "b"], [{"n": 2}, {}]), list[GenerationOutput])
    assert_type(llm.generate([1, 2]), list[GenerationOutput])
    assert_type(llm.generate("The", output=Person), Person)
    assert_type(llm.generate([1, 2], output=Person), Person)
    assert_type(llm.generate(["The", "A"], output=Person), list[Person])
    assert_type(llm.generate([[1, 2], [3]], output=Person), list[Person])
    assert_type(llm.generate("The", output=re.compile("a")), str)
    assert_type(llm.generate("The", output=int | None), int | None)
    assert_type(llm.generate(["The", "A"], output=Literal["a"]), list[Literal["a"]])
    assert_type(llm.generate(["The", "A"], output='start: "a"'), list[str])


def streams(llm: LLM) -> None:
    one = [{"role": "user", "content": "Who?"}]
    assert_type(llm.stream("The"), Iterator[Delta])
    assert_type(llm.stream("The", output=Person), Iterator[PartialOutput[Person]])
    assert_type(llm.stream("The", output=Person | None), Iterator[PartialOutput[Person | None]])
    assert_type(llm.stream_chat(one, output=int | str), Iterator[PartialOutput[int | str]])
    assert_type(llm.stream("The", output=re.compile("a")), Iterator[PartialOutput[str]])
    assert_type(llm.stream_chat(one), Iterator[Delta])
    assert_type(llm.stream_chat(one, output=Person), Iterator[PartialOutput[Person]])
    schema = JsonSchema({"type": "array"})
    mapping = {"temperature": 0}
    assert_type(llm.stream_chat(one, mapping, output=schema), Iterator[PartialOutput[Any]])
    for partial in llm.stream_chat(one, output=list[Person]):
        assert_type(partial.text, str)
        assert_type(partial.value, list[Person] | None)
