"""Several ranks on GPUs of one machine: the tokens of one rank, from CUDA graphs and without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas import SamplingParams
from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from eyas.core import Request
from eyas.engine.engine import Engine
from eyas.engine.startup.build import build_engine
from tests.laws.world import Answers, run
from tests.models.quantised import CASES, write_quantised
from tests.models.tiny import make_model, save_model, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 512,
}
"""Sums over features that the pieces of the tree divide on a GPU."""
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "dense": ("qwen3", {}, 1),
    "packed": ("qwen3", {}, 1),
    "experts": ("qwen3 moe in some layers", {"moe_intermediate_size": 64}, 2),
}
"""Of each kind: the tiny model, its own sizes, and the ranks that divide its experts."""


def requests() -> list[Request]:
    """Half of them are captured; of log-probabilities and penalties no graphs are made."""
    params = (
        SamplingParams(seed=1, temperature=0.0, max_tokens=40),
        SamplingParams(seed=5, temperature=0.8, max_tokens=60, top_p=0.95),
        SamplingParams(seed=9, temperature=1.0, max_tokens=50, n=2),
        SamplingParams(seed=2, temperature=0.6, max_tokens=40, logprobs=3, prompt_logprobs=2),
        SamplingParams(seed=3, temperature=0.9, max_tokens=40, repetition_penalty=1.3),
    )
    return [
        Request(id=f"r{i}", prompt_token_ids=tokens(5 + 29 * i), params=each)
        for i, each in enumerate(params)
    ]


@contextmanager
def engine_of(
    directory: Path, *, tp: int, ep: int = 1, captures: bool, drafter: str = "root", exact: bool
) -> Iterator[Engine]:
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(path=str(directory), dtype="bfloat16", max_model_len=400),
            cache=CacheConfig(num_slots=4096),
            scheduler=SchedulerConfig(
                max_num_seqs=6, max_batch_tokens=128, max_graph_batch=None if captures else 0
            ),
            draft=DraftConfig(drafter=drafter, nodes=5),
            device=DeviceConfig(device="cuda", exact=True),
            parallel=ParallelConfig(tp=tp, ep=ep, exact_across_tp=exact, timeout_seconds=100),
        )
    )
    try:
        assert engine.info.exact, engine.info.exact_reason
        yield engine
        assert engine.metrics.num_failed_steps == 0
    finally:
        engine.shutdown()


def answers(engine: Engine, *, captures: bool) -> tuple[Answers, Answers]:
    """Of requests one after the other, and together. Checks that graphs were used, or not."""
    alone: Answers = {}
    for request in requests():
        alone |= run(engine, [request])
    together = run(engine, requests())
    graphs = engine.launcher.graphs
    if captures:
        assert graphs is not None
        assert graphs.num_replays > 100
        assert not any(each._has_given_up for each in graphs._shapes.values())
    else:
        assert graphs is None
    return alone, together


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_give_the_tokens_and_log_probabilities_of_one(kind: str, tmp_path: Path) -> None:
    """With sums in a tree, from graphs and without, with and without drafts."""
    name, sizes, ep = KINDS[kind]
    directory = save_model(make_model(name, **SIZES, **sizes), tmp_path / "model")
    if kind == "packed":
        write_quantised(directory, CASES["fp8 blocks"])
    with engine_of(directory, tp=1, captures=True, exact=True) as engine:
        expected, together = answers(engine, captures=True)
    assert together == expected
    for captures, drafter in ((True, "root"), (False, "root"), (True, "ngram")):
        with engine_of(
            directory, tp=2, ep=ep, captures=captures, drafter=drafter, exact=True
        ) as engine:
            found = answers(engine, captures=captures)
        assert found == (expected, expected), f"captures: {captures}, drafter: {drafter}"


def test_two_ranks_give_the_same_from_graphs_and_without(tmp_path: Path) -> None:
    """With the sums that are the fastest, which are those of a number of ranks."""
    directory = save_model(make_model("qwen3", **SIZES), tmp_path / "model")
    found = []
    for captures in (True, False):
        with engine_of(directory, tp=2, captures=captures, exact=False) as engine:
            found.append(answers(engine, captures=captures))
    (captured, together), plain = found
    assert captured == together
    assert plain == (captured, captured)
