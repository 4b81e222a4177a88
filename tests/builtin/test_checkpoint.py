"""The shipped checkpoint: small enough, complete, loadable, and it answers."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from builtin_model.families import FAMILIES, ChatRequest
from builtin_model.families.kinds import KINDS
from builtin_model.model import BuiltinShape
from eyas import builtin
from eyas.llm import LLM
from eyas_bench.answers import engine_answers
from eyas_bench.builtin import evaluate, heldout_examples

MEGABYTE = 1_000_000


def test_checkpoint_leaves_room_for_a_draft_head() -> None:
    sizes = {file.name: file.stat().st_size for file in builtin.path().iterdir()}
    assert sizes["model.safetensors"] <= 18.75 * MEGABYTE
    assert sum(sizes.values()) <= 19 * MEGABYTE


def test_checkpoint_has_the_files_of_a_hugging_face_model() -> None:
    names = {file.name for file in builtin.path().iterdir()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    config = json.loads((builtin.path() / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config == {**config, **BuiltinShape().config()}
    generation = json.loads((builtin.path() / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [4089, 4087]


def test_checkpoint_loads_with_transformers() -> None:
    config = AutoConfig.from_pretrained(builtin.path())
    assert (config.model_type, config.tie_word_embeddings) == ("qwen3", True)
    model = AutoModelForCausalLM.from_pretrained(builtin.path(), dtype=torch.bfloat16)
    assert 8e6 < model.num_parameters() < 12e6


def test_model_names_a_city_and_uses_a_tool() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "get_weather", "description": "Get the weather.", "parameters": parameters}
    requests = [
        ChatRequest(({"role": "user", "content": "Specify a random city."},), (), False),
        ChatRequest(
            ({"role": "user", "content": "What is the weather in Oslo?"},),
            ({"type": "function", "function": function},),
            False,
        ),
    ]
    with LLM("builtin", drafter="root") as llm:
        city, call = engine_answers(llm)(requests)
    assert city in KINDS["city"][1]
    assert '{"name": "get_weather", "arguments": {"city": "Oslo"}}' in call


def test_evaluation_counts_right_answers_by_family() -> None:
    examples = heldout_examples(3, "count")
    answers = [example.reference() for example in examples]
    assert evaluate(lambda requests: answers, 3, "count").overall == 1.0
    wrong = [answer if i % 3 else "" for i, answer in enumerate(answers)]
    report = evaluate(lambda requests: wrong, 3, "count")
    assert report.overall == pytest.approx(2 / 3)
    assert set(report.families) == set(FAMILIES)
    assert len(report.misses) == len(FAMILIES)


def test_evaluation_refuses_missing_answers() -> None:
    with pytest.raises(ValueError, match="answers"):
        evaluate(lambda requests: [], 1)
