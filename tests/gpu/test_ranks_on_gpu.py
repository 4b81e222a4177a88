"""Several ranks on GPUs of one machine: the tokens of one rank, from CUDA graphs and without them."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
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
from eyas.parallel.group import Group, Meeting, meet
from eyas.parallel.lost import GroupLost
from eyas.parallel.symmetric import MOST_BYTES
from eyas.runner.graphs import recorded
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


def new_engine(
    directory: Path, *, tp: int, ep: int = 1, captures: bool, drafter: str = "root", exact: bool
) -> Engine:
    return build_engine(
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


@contextmanager
def engine_of(directory: Path, *, tp: int, **settings: Any) -> Iterator[Engine]:
    engine = new_engine(directory, tp=tp, **settings)
    try:
        assert engine.info.exact, engine.info.exact_reason
        num_before = num_exchanged(engine) if tp > 1 else 0
        yield engine
        assert tp == 1 or num_exchanged(engine) - num_before > 1000
        assert engine.metrics.num_failed_steps == 0
    finally:
        engine.shutdown()


def num_exchanged(engine: Engine) -> int:
    """How many exchanges there were through symmetric memory."""
    assert engine.ranks is not None
    symmetric = engine.ranks.group.symmetric
    assert symmetric is not None, "the log says why ranks do without"
    return int(symmetric._inbox.counts_P[0])


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


SIZES_OF_SUMS = (1, 3, 64, 100, 1000, 4096, 5 * 4096, 40_000, MOST_BYTES // 2 // 4)
LARGER = MOST_BYTES // 2 // 4 + 64


def test_sums_through_symmetric_memory_have_the_bits_of_a_tree(tmp_path: Path) -> None:
    """In graphs and without them, in any order, while ranks are late at random."""
    place = str(tmp_path / "store")
    other = multiprocessing.get_context("spawn").Process(target=_second_rank, args=(place,))
    other.start()
    try:
        assert num_wrong(0, place) == 0
        other.join()
        assert other.exitcode == 0
    finally:
        other.kill()


def _second_rank(place: str) -> None:
    os._exit(min(num_wrong(1, place), 1))  # NCCL would wait for the first rank


def num_wrong(rank: int, place: str) -> int:
    """Exchange some thousand times as a rank of two, and return how many numbers were wrong."""
    device = torch.device("cuda", rank)
    with torch.cuda.device(device), torch.inference_mode():
        group = meet(Meeting(rank, 2, place, timeout_seconds=60.0), device)
        assert group.symmetric is not None, "the log says why not"
        wrong = torch.zeros((), dtype=torch.int64, device=device)
        common, own = random.Random(0), random.Random(1 + rank)
        graphs, kept = [], []
        for sizes in ((4096,) * 32, (3 * 4096, 1000, 40_000, LARGER) * 4, (64, 5 * 4096) * 8):
            held = [numbers(size, i, device) for i, size in enumerate(sizes)]
            kept.append(held)  # replays read and write it

            def stage(held: list[torch.Tensor] = held) -> None:
                for parts_N in held:
                    parts_N.mul_(1.001)
                    _exchange(group, parts_N, wrong)

            stage()
            torch.cuda.synchronize()
            graphs.append(recorded(stage, torch.cuda.graph_pool_handle())[0])
        for i in range(600):
            torch.cuda._sleep(own.choice((0, 1_000, 20_000, 100_000)))
            if common.random() < 0.3:
                common.choice(graphs).replay()
            else:
                _exchange(group, numbers(common.choice((*SIZES_OF_SUMS, LARGER)), i, device), wrong)
        for graph in graphs:
            graph.reset()  # NCCL would wait for them
        return int(wrong)


def numbers(size: int, seed: int, device: torch.device) -> torch.Tensor:
    """The parts of both ranks, which each of them knows."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn((2, size), generator=generator, device=device) * 100


def _exchange(group: Group, parts_N: torch.Tensor, wrong: torch.Tensor) -> None:
    """Add the parts of both ranks, and gather them; count what differs."""
    own, expected = parts_N[group.rank], parts_N[0] + parts_N[1]
    wrong.add_((group.summed(own).view(torch.int32) != expected.view(torch.int32)).sum())
    wrong.add_((group.all_gather(own).view(torch.int32) != parts_N.view(torch.int32)).sum())


@pytest.mark.parametrize("captures", [True, False])
def test_a_killed_rank_ends_the_engine(tmp_path: Path, captures: bool) -> None:
    """Also while the first rank waits for it in a graph."""
    directory = save_model(make_model("qwen3", **SIZES), tmp_path / "model")
    engine = new_engine(directory, tp=2, captures=captures, exact=False)
    try:
        assert num_exchanged(engine) > 0
        for request in requests():
            engine.add(request)
        for _ in range(20):
            engine.step()
        assert engine.has_work() and engine.ranks is not None
        os.kill(engine.ranks.process_ids[0], signal.SIGKILL)
        with pytest.raises(GroupLost):
            _run_to_the_end(engine)
    finally:
        engine.shutdown()


def test_a_process_ends_that_has_not_shut_its_engine_down(tmp_path: Path) -> None:
    """NCCL waits for graphs that contain its exchanges, when it is ended before them."""
    directory = save_model(make_model("qwen3", **SIZES), tmp_path / "model")
    process = multiprocessing.get_context("spawn").Process(target=_run_and_exit, args=(directory,))
    process.start()
    process.join(300)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()


def _run_and_exit(directory: Path) -> None:
    engine = new_engine(directory, tp=2, captures=True, exact=False)
    run(engine, requests())
    assert engine.launcher.graphs is not None
    assert engine.launcher.graphs.num_replays > 0


def _run_to_the_end(engine: Engine) -> None:
    while engine.has_work():
        engine.step()
