"""guidance: its experimental models for vLLM and SGLang, which send llguidance's grammars."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel

guidance = pytest.importorskip("guidance")
experimental = pytest.importorskip("guidance.models.experimental")


class City(BaseModel):
    name: str
    population: int


@pytest.fixture
def vllm(base_url: str, model: str) -> Any:
    return experimental.VLLMModel(model, base_url=base_url, api_key="none", echo=False)


@pytest.fixture
def sglang(base_url: str, model: str) -> Any:
    return experimental.SglangModel(model, base_url=base_url, api_key="none", echo=False)


def ask(model: Any, grammar: Any) -> str:
    with guidance.user():
        asked = model + "Specify a random city."
    with guidance.assistant():
        return (asked + grammar)["city"]


def test_choices_of_vllm(vllm: Any) -> None:
    answer = ask(vllm, guidance.select(["Paris", "Amsterdam"], name="city"))
    assert answer in ("Paris", "Amsterdam")


def test_objects_of_vllm(vllm: Any) -> None:
    City.model_validate_json(ask(vllm, guidance.json(name="city", schema=City)))


def test_patterns_of_vllm(vllm: Any) -> None:
    answer = ask(vllm, guidance.gen(regex="[A-Z][a-z]{2,9}", name="city"))
    assert re.fullmatch("[A-Z][a-z]{2,9}", answer)


def test_text_around_parts_of_vllm(vllm: Any) -> None:
    grammar = "It is " + guidance.gen(regex="[a-z]{3}", name="city") + ", I think."
    assert re.fullmatch("[a-z]{3}", ask(vllm, grammar))


def test_objects_of_sglang(sglang: Any) -> None:
    City.model_validate_json(ask(sglang, guidance.json(name="city", schema=City)))


def test_patterns_of_sglang(sglang: Any) -> None:
    answer = ask(sglang, guidance.gen(regex="[A-Z][a-z]{2,9}", name="city"))
    assert re.fullmatch("[A-Z][a-z]{2,9}", answer)
