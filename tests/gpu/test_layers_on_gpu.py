"""Every kind of layer on a GPU: bit for bit, whoever drafts, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from eyas.outputs import Choice
from tests.laws.cases import walk_text
from tests.laws.world import LAYERS, write_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "ngram": DraftConfig(drafter="ngram", nodes=6),
    "chain": DraftConfig(drafter="model", model="SAME", steps=4, topk=1, nodes=5),
    "tree": DraftConfig(drafter="model", model="SAME", steps=3, topk=3, nodes=8),
}
PROMPTS = [walk_text(97 + 3 * i, 5 + 17 * i, [0, 1, 0, i % 2]) for i in range(9)]


def make(directory: Path, drafter: str, dtype: str, *, max_batch_tokens: int = 512) -> LLM:
    draft = DRAFTING[drafter]
    if draft.model is not None:
        draft = DraftConfig(
            drafter="model",
            model=str(directory),
            steps=draft.steps,
            topk=draft.topk,
            nodes=draft.nodes,
        )
    return LLM(config=make_config(directory, draft, dtype, max_batch_tokens=max_batch_tokens))


def make_config(
    directory: Path,
    draft: DraftConfig,
    dtype: str,
    *,
    max_batch_tokens: int = 512,
    num_slots: int = 20_000,
    max_num_seqs: int = 16,
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(directory), dtype=dtype, max_model_len=512),
        device=DeviceConfig(device="cuda", num_threads=4),
        draft=draft,
        cache=CacheConfig(num_slots=num_slots),
        scheduler=SchedulerConfig(
            flights=1, max_batch_tokens=max_batch_tokens, max_num_seqs=max_num_seqs
        ),
    )


def ask(llm: LLM, prompts: Sequence[list[int]], *, batch: int) -> list[Choice]:
    params = [
        SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=32, logprobs=1)
        for i in range(len(prompts))
    ]
    outputs = [
        output
        for first in range(0, len(prompts), batch)
        for output in llm.generate(prompts[first : first + batch], params[first : first + batch])
    ]
    llm.engine.check()
    assert llm.engine.metrics.num_failed_steps == 0
    return [output.choices[0] for output in outputs]


def shown(choices: Sequence[Choice]) -> list[object]:
    return [
        (one.token_ids, [(entry.token_id, entry.logprob) for entry in one.logprobs or ()])
        for one in choices
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layers", LAYERS)
def test_answers_are_the_same_however_they_are_made(
    layers: str, dtype: str, tmp_path: Path
) -> None:
    directory = write_layers(tmp_path, layers)
    with make(directory, "root", dtype) as llm:
        assert llm.info.exact, llm.info.exact_reason
        expected = shown(ask(llm, PROMPTS, batch=1))
        assert shown(ask(llm, PROMPTS, batch=len(PROMPTS))) == expected
    # a model with a state per sequence, or with compressed entries, cannot draft for itself
    for drafter in ("ngram",) if layers in ("state", "compressed") else ("ngram", "chain", "tree"):
        with make(directory, drafter, dtype, max_batch_tokens=100) as llm:
            for batch in (1, 4, len(PROMPTS)):
                assert shown(ask(llm, PROMPTS, batch=batch)) == expected, (drafter, batch)
            assert llm.engine.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("drafter", ["root", "tree"])
def test_states_go_on_after_prefix_hits_and_preemption(drafter: str, tmp_path: Path) -> None:
    directory = write_layers(tmp_path, "state")
    with make(directory, "root", "bfloat16") as llm:
        expected = shown(ask(llm, PROMPTS, batch=1))
    drafting = DraftConfig(drafter="ngram", nodes=6) if drafter == "tree" else DRAFTING["root"]
    config = make_config(directory, drafting, "bfloat16", num_slots=600, max_num_seqs=9)
    with LLM(config=config) as llm:
        for _ in range(2):
            assert shown(ask(llm, PROMPTS, batch=len(PROMPTS))) == expected
        stats = llm.engine.stats()
        assert stats.num_prefix_hit_tokens > 0 and stats.num_preemptions > 0
        graphs = llm.engine.launcher.graphs
        assert graphs is not None and graphs.num_replays > 0
