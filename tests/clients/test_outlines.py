"""outlines: its models for vLLM, SGLang and OpenAI, with each kind of output type."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from pydantic import BaseModel

outlines = pytest.importorskip("outlines")
openai = pytest.importorskip("openai")
types = pytest.importorskip("outlines.types")

LARK = 'start: ("yes" | "no") " " /[a-z]{3}/'
SAMPLING = {"max_tokens": 200, "temperature": 1.0, "seed": 3}


class City(BaseModel):
    name: str
    population: int


@pytest.fixture(params=["from_vllm", "from_sglang"])
def peer(request: pytest.FixtureRequest, base_url: str, model: str) -> Any:
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    return getattr(outlines, request.param)(client, model)


def test_choices(peer: Any) -> None:
    answer = peer("What is the capital of France?", Literal["Paris", "Amsterdam"], **SAMPLING)
    assert answer in ("Paris", "Amsterdam")


def test_objects(peer: Any) -> None:
    City.model_validate_json(peer("A city as JSON", City, **SAMPLING))


def test_numbers(peer: Any) -> None:
    assert re.fullmatch(r"[+-]?\d+", peer("How old are you?", int, **SAMPLING))


def test_patterns(peer: Any) -> None:
    pattern = r"[A-Z][a-z]{2,9}"
    assert re.fullmatch(pattern, peer("A name", types.Regex(pattern), **SAMPLING))


def test_grammars(peer: Any) -> None:
    assert re.fullmatch(r"(yes|no) [a-z]{3}", peer("Yes or no?", types.CFG(LARK), **SAMPLING))


def test_streams(peer: Any) -> None:
    City.model_validate_json("".join(peer.stream("A city as JSON", City, **SAMPLING)))


def test_generators_are_used_twice(peer: Any) -> None:
    generator = outlines.Generator(peer, Literal["Paris", "Amsterdam"])
    for _ in range(2):
        assert generator("What is the capital of France?", **SAMPLING) in ("Paris", "Amsterdam")


def test_the_model_for_openai(base_url: str, model: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    answer = outlines.from_openai(client, model)("A city as JSON", City, max_tokens=200)
    City.model_validate_json(answer)
