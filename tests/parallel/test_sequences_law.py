"""The law over ranks that have sequences of their own: real processes, the same tokens and
log-probabilities as one rank, bit for bit, in its usual order of sums.

Every start of a rank costs seconds of a processor, so that few engines run many requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from eyas.core import Request, SamplingParams
from eyas.draft import Drafter
from eyas.engine.engine import Engine
from eyas.engine.startup.build import build_engine
from eyas.grammar import OutputSpec, Regex
from eyas.native.products import compiled
from eyas.parallel import processes
from tests import forked
from tests.laws.drafters import Oracle
from tests.laws.world import VOCAB, Answers, run, tokenizer_spec, write_layers
from tests.models.tiny import make_model, save_model, tokens
from tests.parallel.test_ranks_law import requests

pytestmark = pytest.mark.skipif(
    compiled().library is None, reason="ranks on a CPU need a C compiler"
)
NUM_LAYERS = 3
ROOT = DraftConfig(drafter="root")
WORDS = OutputSpec(root=Regex("[a-z]+( [a-z]+){2,4}"))


@pytest.fixture(autouse=True)
def _ranks_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "python_command", forked.command)


@pytest.fixture(scope="module")
def deepseek_v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer, and an MTP layer that knows the bigrams: its last layer again, whose
    input is mostly the token's embedding."""
    directory = write_layers(tmp_path_factory.mktemp("v3") / "model", "latent")
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_spec()))
    path = directory / "model.safetensors"
    held = load_file(path)
    own, last = f"model.layers.{NUM_LAYERS}.", f"model.layers.{NUM_LAYERS - 1}."
    size = held["model.norm.weight"].shape[0]
    layer = {
        own + name.removeprefix(last): tensor.clone()
        for name, tensor in held.items()
        if name.startswith(last)
    }
    layer |= {
        f"{own}eh_proj.weight": torch.cat([torch.eye(size), 0.1 * torch.eye(size)], dim=1),
        f"{own}enorm.weight": torch.ones(size),
        f"{own}hnorm.weight": torch.ones(size),
        f"{own}shared_head.norm.weight": held["model.norm.weight"].clone(),
    }
    save_file(held | layer, path)
    return directory


@contextmanager
def engine_of(
    directory: Path,
    dp: int,
    draft: DraftConfig = ROOT,
    *,
    drafter: Drafter | None = None,
    num_slots: int = 1024,
) -> Iterator[Engine]:
    """num_slots: of each rank."""
    engine = build_engine(
        EngineConfig(
            model=ModelConfig(path=str(directory), dtype="float32", max_model_len=128),
            cache=CacheConfig(num_slots=num_slots),
            scheduler=SchedulerConfig(max_num_seqs=6, max_batch_tokens=32),
            draft=draft,
            device=DeviceConfig(device="cpu", num_threads=1),
            parallel=ParallelConfig(dp=dp, dp_attention=dp > 1, timeout_seconds=300),
        ),
        own_drafter=drafter,
    )
    try:
        assert engine.info.exact, engine.info.exact_reason
        assert engine.info.num_slots == dp * num_slots and engine.info.num_ranks == dp
        yield engine
    finally:
        engine.shutdown()


def constrained() -> list[Request]:
    """Requests whose answers a grammar bounds."""
    return [
        Request(
            id=f"words {seed}",
            prompt_token_ids=tokens(7 + 9 * seed),
            params=SamplingParams(temperature=0.9 * seed, seed=seed, max_tokens=16, logprobs=2),
            output=WORDS,
        )
        for seed in range(2)
    ]


def alone(directory: Path, asked: list[Request]) -> Answers:
    """The answers of one rank, one request after another."""
    expected: Answers = {}
    with engine_of(directory, 1) as engine:
        for request in asked:
            expected |= run(engine, [request])
    return expected


def check(engine: Engine, asked: list[Request], expected: Answers, num_runs: int = 2) -> None:
    """In batches, by chunks, with drafts and with idle ranks; in a second run with prefix hits."""
    used: set[int] = set()

    def look(_: int) -> None:
        used.update(each.lease.rank for each in engine.scheduler.running if each.lease is not None)

    for _ in range(num_runs):
        assert run(engine, asked, on_step=look) == expected
    assert used == set(range(engine.info.num_ranks)), "all ranks have had sequences"
    assert engine.stats().num_accepted_tokens > 20
    first = asked[0]
    assert run(engine, [first]) == {(first.id, 0): expected[first.id, 0]}, "one rank has a sequence"


TREES = DraftConfig(drafter="head", steps=3, topk=3, nodes=8)
CHAINS = DraftConfig(drafter="head", steps=3, topk=1, nodes=4)


def test_sequences_of_two_and_four_ranks_are_those_of_one(deepseek_v3: Path) -> None:
    asked = [*requests(), *constrained()]
    expected = alone(deepseek_v3, asked)
    assert " " in expected["words 0", 0].text
    with engine_of(deepseek_v3, 2, TREES, num_slots=80) as engine:
        check(engine, asked, expected)
        stats = engine.stats()
        assert stats.num_prefix_hit_tokens > 0 and stats.num_preemptions > 0
    with engine_of(deepseek_v3, 4, CHAINS) as engine:
        check(engine, asked, expected, num_runs=1)


def test_a_softmax_router_and_guessed_trees_on_two_ranks(tmp_path: Path) -> None:
    sizes = {"vocab_size": VOCAB, "intermediate_size": 96, "max_position_embeddings": 512}
    model = make_model("deepseek v2 in groups", **sizes)
    directory = save_model(model, tmp_path / "model")
    expected = alone(directory, requests())
    known = {
        (request.params.seed, index, tuple(request.prompt_token_ids)): answer.token_ids
        for request in requests()
        for (name, index), answer in expected.items()
        if name == request.id
    }
    oracle = Oracle(4, known, decoys=True)
    with engine_of(directory, 2, drafter=oracle) as engine:
        check(engine, requests(), expected, num_runs=1)
