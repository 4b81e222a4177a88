"""The laws over several ranks: real processes, the same tokens and log-probabilities, bit for bit.

Every start of a rank costs seconds of a processor, so that few engines run many requests.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
from msgspec.structs import replace

from eyas import LLM, SamplingParams
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
from eyas.draft import Drafter
from eyas.engine.engine import Engine
from eyas.engine.startup import memory
from eyas.engine.startup.build import build_engine
from eyas.native.products import compiled
from eyas.parallel import processes
from eyas.runner.graphs import StepGraphs
from eyas.runner.leader import Leader
from tests import forked
from tests.laws.captures import tensors_of
from tests.laws.drafters import Oracle
from tests.laws.world import IN_WINDOWS, VOCAB, Answers, run, write_layers, write_model
from tests.models.tiny import make_model, save_model, tokens
from tests.thorough import drawn

pytestmark = pytest.mark.skipif(
    compiled().library is None, reason="ranks on a CPU need a C compiler"
)

NORMS_OF_ALL_HEADS = "olmo2"
KINDS = {
    "dense": drawn(((4, 1),), ((2, 1), (4, 1))),
    "experts": ((2, 1), drawn((2, 2), (4, 4))),
    "latent": ((2, 1),),
    "state": ((2, 2),),
    "sinks and windows": ((2, 2),),
    NORMS_OF_ALL_HEADS: ((4, 1),),
}
"""(ranks, ranks that divide the experts) that each kind of layer runs on. The model with norms over all
heads has two key heads, each of them on two ranks."""


def requests() -> list[Request]:
    params = (
        SamplingParams(seed=1, temperature=0.0, max_tokens=12, logprobs=3),
        SamplingParams(seed=5, temperature=0.8, max_tokens=20, logprobs=2, prompt_logprobs=2),
        SamplingParams(seed=9, temperature=1.0, max_tokens=16, logprobs=1, n=2, top_p=0.9),
        SamplingParams(seed=2, temperature=0.6, max_tokens=14, repetition_penalty=1.3, min_p=0.02),
    )
    return [
        Request(id=f"r{i}", prompt_token_ids=tokens(5 + 13 * i), params=each)
        for i, each in enumerate(params)
    ]


@pytest.fixture(autouse=True)
def _ranks_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "python_command", forked.command)


def new_engine(
    directory: Path,
    tp: int,
    ep: int = 1,
    *,
    drafter: Drafter | None = None,
    num_slots: int | None = 1024,
) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(path=str(directory), dtype="float32", max_model_len=128),
            cache=CacheConfig(num_slots=num_slots),
            scheduler=SchedulerConfig(max_num_seqs=4, max_batch_tokens=24),
            draft=DraftConfig(drafter="root"),
            device=DeviceConfig(device="cpu", num_threads=1),
            parallel=ParallelConfig(tp=tp, ep=ep, exact_across_tp=True, timeout_seconds=300),
        ),
        own_drafter=drafter,
    )


@contextmanager
def engine_of(directory: Path, tp: int, ep: int = 1, **settings: Any) -> Iterator[Engine]:
    engine = new_engine(directory, tp, ep, **settings)
    try:
        assert engine.info.exact, engine.info.exact_reason
        yield engine
    finally:
        engine.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_give_the_tokens_and_log_probabilities_of_one(kind: str, tmp_path: Path) -> None:
    """In batches, by chunks, with drafts, after a prefix hit and after preemption."""
    if kind == "dense":
        directory = write_model(tmp_path / "model", seed=1, mixing=0.3)
    elif kind == NORMS_OF_ALL_HEADS:
        model = make_model(kind, vocab_size=VOCAB, intermediate_size=96)
        directory = save_model(model, tmp_path / "model")
    else:
        directory = write_layers(tmp_path / "model", kind)
    expected: Answers = {}
    with engine_of(directory, 1) as engine:
        for request in requests():
            expected |= run(engine, [request])
    known = {
        (request.params.seed, index, tuple(request.prompt_token_ids)): answer.token_ids
        for request in requests()
        for (name, index), answer in expected.items()
        if name == request.id
    }
    for tp, ep in KINDS[kind]:
        oracle = Oracle(4, known, decoys=True)
        with engine_of(directory, tp, ep, drafter=oracle, num_slots=150) as engine:
            ranks = [each for each in psutil.Process().children() if is_rank(each)]
            assert len(ranks) == tp - 1
            for _ in range(2):
                assert run(engine, requests()) == expected, f"{tp} ranks, experts over {ep}"
            stats = engine.stats()
            assert stats.num_accepted_tokens > 20
            assert stats.num_prefix_hit_tokens > 0
            if kind == IN_WINDOWS:  # their window slots are recycled, on all ranks
                assert engine.cache.windows is not None
                assert engine.cache.windows.num_recycled > 0
        assert not any(map(is_rank, ranks)), "ranks end with their engine"


NUM_DRAWN = 200


@pytest.mark.thorough
def test_drawn_requests_are_those_of_one_rank_on_two_four_and_eight(tmp_path: Path) -> None:
    """The table of docs/parallel.md: tokens and log-probabilities, in batches, with drafts."""
    sizes = {"num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 96}
    sizes |= {"vocab_size": VOCAB, "max_position_embeddings": 512}
    model = make_model("qwen3 moe in some layers", moe_intermediate_size=64, **sizes)
    directory = save_model(model, tmp_path / "model")
    draw = random.Random(1)
    asked = [
        Request(
            id=f"r{i}",
            prompt_token_ids=tokens(draw.randint(1, 70), seed=i),
            params=SamplingParams(
                seed=i,
                temperature=draw.choice([0.0, 0.5, 0.9, 1.3]),
                max_tokens=draw.randint(1, 30),
                logprobs=draw.choice([1, 3]),
                prompt_logprobs=draw.choice([None, 1]),
                top_p=draw.choice([1.0, 0.8]),
                top_k=draw.choice([0, 20]),
                min_p=draw.choice([0.0, 0.05]),
                repetition_penalty=draw.choice([1.0, 1.2]),
                presence_penalty=draw.choice([0.0, 0.4]),
            ),
        )
        for i in range(NUM_DRAWN)
    ]
    expected: Answers = {}
    with engine_of(directory, 1) as engine:
        for request in asked:
            expected |= run(engine, [request], check=False)
    known = {
        (request.params.seed, 0, tuple(request.prompt_token_ids)): expected[request.id, 0].token_ids
        for request in asked
    }
    for tp, ep in ((2, 1), (4, 4), (8, 1), (8, 8)):
        oracle = Oracle(4, known, decoys=True)
        with engine_of(directory, tp, ep, drafter=oracle) as engine:
            answers = run(engine, asked, check=False)
            assert engine.stats().num_accepted_tokens > NUM_DRAWN
        different = [key for key, answer in answers.items() if answer != expected[key]]
        print(f"{tp} ranks, experts over {ep}: {len(answers) - len(different)} of {len(answers)}")
        assert different == []


def test_ranks_end_where_the_first_one_cannot_serve(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", seed=1, mixing=0.3)
    with (
        patch.object(memory, "cache_budget", lambda *arguments: 0),
        pytest.raises(ValueError, match="0 slots hold no useful sequence"),
        engine_of(directory, 2, num_slots=None),
    ):
        pass
    assert not any(map(is_rank, psutil.Process().children()))


class GraphsAgain(StepGraphs):
    """CUDA graphs as far as a CPU has them: a replay runs the stage again, and sends no message."""

    def __init__(self, leader: Leader, max_graphs: int) -> None:
        super().__init__(torch.device("cpu"), max_graphs=max_graphs, announcer=leader)
        self._leader = leader

    def _record(self, name: Hashable, stage: Callable[[], Any]) -> tuple[Any, Any]:
        result = stage()
        return Again(self._leader, stage, result), result


@dataclass
class Again:
    leader: Leader
    stage: Callable[[], Any]
    result: Any

    def replay(self) -> None:
        with patch.object(self.leader, "_send", lambda message: None):
            again = self.stage()
        for old, new in zip(tensors_of(self.result), tensors_of(again), strict=True):
            old.copy_(new)

    def reset(self) -> None:
        pass


def captured_requests() -> list[Request]:
    """Of steps with log-probabilities no graphs are made."""
    return [
        replace(request, params=replace(request.params, logprobs=None, prompt_logprobs=None))
        for request in requests()
    ]


def test_captured_passes_are_replayed_on_all_ranks(tmp_path: Path) -> None:
    """The messages of graphs, which are captured, replayed, and dropped when there are many."""
    directory = write_model(tmp_path / "model", seed=1, mixing=0.3)
    asked = captured_requests()
    with engine_of(directory, 1) as engine:
        expected: Answers = {}
        for request in asked:
            expected |= run(engine, [request])
    with engine_of(directory, 2) as engine:
        assert engine.runner.leader is not None
        graphs = GraphsAgain(engine.runner.leader, max_graphs=5)
        engine.launcher.graphs = graphs
        for _ in range(2):
            assert run(engine, asked) == expected
        assert run(engine, asked[:1]) == {
            key: answer for key, answer in expected.items() if key[0] == asked[0].id
        }
        assert engine.metrics.num_failed_steps == 0
        assert graphs.num_replays > 50
        assert graphs.num_captured > 10


def test_ranks_end_when_nothing_refers_to_their_engine(tmp_path: Path) -> None:
    """Its graphs are destroyed first: NCCL would wait for them forever."""
    engine = new_engine(write_model(tmp_path / "model", seed=1, mixing=0.3), 2)
    assert engine.ranks is not None
    graphs = GraphsAgain(engine.ranks.leader, max_graphs=5)
    engine.launcher.graphs = graphs
    run(engine, captured_requests()[:1])
    ranks = [psutil.Process(number) for number in engine.ranks.process_ids]
    assert graphs.num_captured > 0
    assert all(map(is_rank, ranks))
    with patch.object(Again, "reset", autospec=True) as reset:
        del engine
        gc.collect()
        assert reset.call_count > 0
    assert not any(map(is_rank, ranks))


def test_the_built_in_model_drafts_and_obeys_grammars_on_two_ranks() -> None:
    params = [
        SamplingParams(temperature=0.8, seed=seed, max_tokens=24, logprobs=2) for seed in range(3)
    ]
    asked = ["The eagle", "Maria Silva is 34 years old. ", "What is the capital of France?"]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    found = []
    for tp, drafter in ((1, "root"), (2, "auto")):
        llm = LLM(
            device="cpu",
            dtype="float32",
            num_threads=1,
            num_slots=1024,
            max_num_seqs=4,
            drafter=drafter,
            draft_nodes=8,
            tp=tp,
            exact_across_tp=True,
        )
        with llm:
            outputs = llm.generate(asked, params)
            choices = [output.choices[0] for output in outputs]
            found.append(
                (
                    [(choice.token_ids, choice.logprobs) for choice in choices],
                    llm.chat(chat, params[0], output=bool),
                    llm.info.num_ranks,
                )
            )
            num_accepted = llm.engine.stats().num_accepted_tokens
    plain, drafted = found
    assert plain[:2] == drafted[:2]
    assert (plain[2], drafted[2]) == (1, 2)
    assert num_accepted > 10


def is_rank(process: psutil.Process) -> bool:
    """Whether a process is a rank that has not ended."""
    try:
        return "eyas.engine.rank_main" in process.cmdline()
    except psutil.Error:
        return False
