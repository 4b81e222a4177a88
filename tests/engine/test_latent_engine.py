"""A checkpoint with latent attention, experts and an MTP layer, through `LLM`, with the published sizes
of a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.config import CacheConfig, DeviceConfig, DraftConfig, EngineConfig, ModelConfig
from eyas.core import SamplingParams
from eyas.llm import LLM
from tests.models.tiny import make_model, save_model, tokens

HEADS = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 96,
}
SIZES = {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "hidden_size": 128,
    "intermediate_size": 96,
}
"""Multiples of 16, which products of one order ask for on a device."""
NUM_LAYERS = 3
NUM_PROMPTS = 3
DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "chain": DraftConfig(drafter="head", steps=3, topk=1, nodes=4),
    "tree": DraftConfig(drafter="head", steps=3, topk=3, nodes=8),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and an MTP layer which is its last layer again behind a projection of the embedding."""
    directory = tmp_path_factory.mktemp("latent")
    save_model(make_model("deepseek v3 experts", **HEADS, **SIZES), directory)
    path = directory / "model.safetensors"
    held = load_file(path)
    own, last = f"model.layers.{NUM_LAYERS}.", f"model.layers.{NUM_LAYERS - 1}."
    hidden = SIZES["hidden_size"]
    layer = {
        own + name.removeprefix(last): tensor.clone()
        for name, tensor in held.items()
        if name.startswith(last)
    }
    layer |= {
        f"{own}eh_proj.weight": torch.cat([torch.eye(hidden), 0.1 * torch.eye(hidden)], dim=1),
        f"{own}enorm.weight": torch.ones(hidden),
        f"{own}hnorm.weight": torch.ones(hidden),
        f"{own}shared_head.norm.weight": held["model.norm.weight"].clone(),
    }
    save_file(held | layer, path)
    return directory


def opened(directory: Path, drafter: str, device: str, dtype: str, **cache: Any) -> LLM:
    return LLM(
        config=EngineConfig(
            model=ModelConfig(path=str(directory), dtype=dtype, max_model_len=512),
            device=DeviceConfig(device=device),
            draft=DRAFTING[drafter],
            cache=CacheConfig(num_slots=4096, **cache),
        )
    )


def answers(llm: LLM, batch: int) -> list[list[tuple[int, float]]]:
    """Tokens and their log-probabilities of `NUM_PROMPTS` prompts."""
    prompts = [tokens(5 + 17 * i, seed=i) for i in range(NUM_PROMPTS)]
    params = [
        SamplingParams(temperature=0.7 * (i % 2), seed=i, max_tokens=8, logprobs=0, ignore_eos=True)
        for i in range(NUM_PROMPTS)
    ]
    found = []
    for first in range(0, NUM_PROMPTS, batch):
        several = slice(first, first + batch)
        for output in llm.generate(prompts[several], params[several]):
            (choice,) = output.choices
            assert choice.error is None and choice.logprobs is not None
            found.append([(entry.token_id, entry.logprob) for entry in choice.logprobs])
    llm.engine.check()
    assert llm.engine.metrics.num_failed_steps == 0
    return found


def check(directory: Path, device: str, dtype: str) -> None:
    with opened(directory, "root", device, dtype) as llm:
        assert llm.info.exact, llm.info.exact_reason
        expected = answers(llm, NUM_PROMPTS)
        assert answers(llm, 1) == expected
    for drafter in ("chain", "tree"):
        with opened(directory, drafter, device, dtype, prefix_cache=False) as llm:
            assert answers(llm, 3) == expected, drafter


def test_drafts_of_the_mtp_layer_change_nothing(directory: Path) -> None:
    check(directory, "cpu", "float32")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_drafts_of_the_mtp_layer_change_nothing_on_a_gpu(directory: Path) -> None:
    check(directory, "cuda", "bfloat16")
