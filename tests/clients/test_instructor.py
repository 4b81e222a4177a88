"""instructor: its modes for OpenAI's API, partial objects, retries."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_validator

instructor = pytest.importorskip("instructor")
openai = pytest.importorskip("openai")

PROMPT = [{"role": "user", "content": "Specify a random city as JSON."}]
MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON")


class City(BaseModel):
    name: str
    population: int


@pytest.fixture
def plain(base_url: str) -> Any:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_returns_the_type(plain: Any, model: str, mode: str) -> None:
    client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
    city = client.chat.completions.create(
        model=model, messages=PROMPT, response_model=City, max_tokens=200, temperature=0
    )
    assert isinstance(city, City)


def test_a_provider_is_found_by_its_name(base_url: str, model: str) -> None:
    client = instructor.from_provider(f"openai/{model}", base_url=base_url, api_key="none")
    assert isinstance(client.create(messages=PROMPT, response_model=City, temperature=0), City)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_partial_objects_grow_to_the_whole(plain: Any, model: str, mode: str) -> None:
    client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
    partials = list(
        client.chat.completions.create_partial(
            model=model, messages=PROMPT, response_model=City, max_tokens=200, temperature=0
        )
    )
    assert len(partials) > 1
    last = City.model_validate(partials[-1].model_dump())
    assert all(partial.name is None or last.name.startswith(partial.name) for partial in partials)


def test_a_validator_that_fails_is_told_to_the_model(plain: Any, model: str) -> None:
    seen: list[str] = []

    class Picky(City):
        @field_validator("name")
        @classmethod
        def refuse_the_first(cls, name: str) -> str:
            seen.append(name)
            if len(seen) == 1:
                raise ValueError("say it again")
            return name

    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    city = client.chat.completions.create(
        model=model,
        messages=PROMPT,
        response_model=Picky,
        max_retries=2,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(city, Picky) and len(seen) == 2
