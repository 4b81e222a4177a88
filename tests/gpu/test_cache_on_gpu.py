"""A cache of FP8, and layers with a window that have fewer slots, on the device: bit for bit as ever.

gpt-oss's kinds of layers in sizes that kernels take: sinks, windows in every second layer, experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eyas import LLM, SamplingParams
from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from tests.models.tiny import make_model, save_model, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
NUM_SLOTS = 3000
PARAMS = SamplingParams(temperature=0.8, seed=4, max_tokens=60, min_tokens=60, logprobs=0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("gpt-oss", **SIZES), tmp_path_factory.mktemp("windows"))


def make(directory: Path, drafter: str, kv_dtype: str, **more: Any) -> LLM:
    settings = {"max_num_seqs": 4, "max_batch_tokens": 128, "max_graph_batch": 4} | more
    return LLM(
        config=EngineConfig(
            model=ModelConfig(path=str(directory), dtype="bfloat16", max_model_len=1200),
            device=DeviceConfig(device="cuda", num_threads=4),
            draft=DraftConfig(drafter=drafter, **({} if drafter == "root" else {"nodes": 6})),
            cache=CacheConfig(num_slots=NUM_SLOTS, dtype=kv_dtype),
            scheduler=SchedulerConfig(**settings),
        )
    )


def answers(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    return [
        (answer.token_ids, answer.choices[0].logprobs) for answer in llm.generate(prompts, PARAMS)
    ]


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
def test_neither_drafts_nor_batches_nor_recycled_slots_change_a_bit(
    directory: Path, kv_dtype: str
) -> None:
    prompts = [tokens(count, seed=count) for count in (7, 130, 400, 650)]
    prompts[0] = prompts[1][:40] * 3  # prompt lookup finds something
    with make(directory, "root", kv_dtype) as llm:
        assert llm.info.exact, llm.info.exact_reason
        kv = llm.engine.runner.backend.kv  # type: ignore[attr-defined]
        fewer = {layer.shape[0] - 1 for layer in kv.layers} - {NUM_SLOTS}
        assert len(fewer) == 1 and max(fewer) < NUM_SLOTS // 4
        expected = [answers(llm, [prompt])[0] for prompt in prompts]
        windows = llm.engine.cache.windows
        assert windows is not None and windows.num_recycled > 500
        again = answers(llm, prompts)
        assert again == expected, "prefix hits and batches"
    for drafter, more in (("ngram", {}), ("root", {"max_batch_tokens": 40, "flights": 0})):
        with make(directory, drafter, kv_dtype, **more) as llm:
            assert llm.info.exact, llm.info.exact_reason
            assert answers(llm, prompts) == expected
            assert answers(llm, prompts) == expected
