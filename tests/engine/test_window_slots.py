"""Layers with a window keep fewer tokens than others: what a sequence, a prefix and an engine see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eyas.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import Request, SamplingParams
from eyas.engine.engine import Engine
from eyas.engine.startup.cache_size import (
    Demand,
    SlotBytes,
    cache_bytes,
    most_slots,
    num_window_slots,
)
from eyas.llm import LLM
from tests.laws.cases import walk_text
from tests.laws.drafters import RandomTrees
from tests.laws.world import IN_WINDOWS, Answer, Setting, new_engine, run
from tests.models.tiny import make_model, save_model, tokens

SETTING = Setting(layers=IN_WINDOWS, max_model_len=120, max_batch_tokens=16, num_slots=1000)
"""15 positions before its own are seen by a query; there are 47 window slots."""


def ask(engine: Engine, prompt: list[int], max_tokens: int) -> Answer:
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=max_tokens, min_tokens=max_tokens)
    request = Request(id=f"r{engine.stats().num_steps}", prompt_token_ids=prompt, params=params)
    return run(engine, [request])[request.id, 0]


def recycled(engine: Engine) -> int:
    assert engine.cache.windows is not None
    return engine.cache.windows.num_recycled


def cached(answer: Answer) -> int:
    assert answer.usage is not None
    return answer.usage.num_cached_tokens


@pytest.mark.parametrize("flights", [0, 1])
def test_a_long_sequence_recycles_what_it_no_longer_sees(flights: int) -> None:
    prompt = walk_text(97, 40, [0, 0, 1])
    whole = ask(new_engine(replace(SETTING, recycles=False)), prompt, 70)
    engine = new_engine(replace(SETTING, flights=flights), RandomTrees(5, 1))
    assert ask(engine, prompt, 70).token_ids == whole.token_ids
    assert recycled(engine) >= 109 - 47
    assert engine.stats().num_cached_slots == 109


def test_a_prefix_is_shared_up_to_where_a_window_is_left() -> None:
    first = walk_text(97, 50, [0, 0, 1])
    bare = replace(SETTING, recycles=False, prefix_cache=False)
    engine = new_engine(SETTING)
    answer = ask(engine, first, 30)
    turn = [*first, *answer.token_ids, *walk_text(98, 5, [1])]
    assert cached(again := ask(engine, turn, 4)) == 79  # the last token was not stored
    assert again.token_ids == ask(new_engine(bare), turn, 4).token_ids
    assert cached(ask(engine, [*first, 99], 1)) == 49, "where the prompt ended is kept too"
    assert cached(ask(engine, [*first[:40], 99], 1)) == 0, "what stands between is not"
    for i in range(6):
        ask(engine, walk_text(100 + i, 40, [1, 0]), 5)
    assert cached(lost := ask(engine, turn, 4)) == 0, "others needed the slots"
    assert lost.token_ids == again.token_ids
    assert cached(ask(engine, turn, 4)) == len(turn) - 1, "and it is there again"
    assert recycled(engine) > 200


def test_an_engine_sizes_and_checks_both_kinds_of_slots(tmp_path: Path) -> None:
    save_model(make_model("gpt-oss"), tmp_path)
    config = EngineConfig(
        model=ModelConfig(path=str(tmp_path), dtype="float32"),
        cache=CacheConfig(num_slots=400),
        scheduler=SchedulerConfig(max_num_seqs=2, max_batch_tokens=16),
        device=DeviceConfig(device="cpu", num_threads=1),
    )
    with LLM(config=config) as llm:
        assert llm.info.exact, llm.info.exact_reason
        kv = llm.engine.runner.backend.kv  # type: ignore[attr-defined]
        sizes = {layer.shape[0] - 1 for layer in kv.layers}
        assert sizes == {400, 2 * 15 + 2 * 16}
        windows = llm.engine.cache.windows
        assert windows is not None
        params = SamplingParams(temperature=0, max_tokens=30, min_tokens=30)
        (answer,) = llm.generate([tokens(80)], params)
        assert len(answer.token_ids) == 30 and windows.num_recycled >= 109 - 62


def test_slots_fill_the_memory_and_suffice_for_all_that_runs() -> None:
    size = SlotBytes(full=100, windowed=300, window=129)
    demand = Demand(most_useful=10**6, num_sequences=4, rows=32, shares_prefixes=True)
    seen = 4 * 128 + 2 * 32
    for budget in (1, 10**4, 10**5, 3 * 10**5, 10**6, 10**7, 10**9):
        num = most_slots(budget, size, demand)
        assert cache_bytes(num, size, demand) <= budget
        assert num == 10**6 or cache_bytes(num + 1, size, demand) > budget
        own = num_window_slots(num, size, demand)
        assert own == num or own >= max(seen, num // 8)
    assert num_window_slots(10**5, replace(size, window=0), demand) == 10**5
    assert num_window_slots(10**5, size, replace(demand, shares_prefixes=False)) == seen


def test_a_model_of_windows_alone_holds_sequences_of_any_length() -> None:
    """Mistral-7B-v0.1 in 40 GiB: 8 sequences of 32768 tokens need no more than their windows."""
    size = SlotBytes(full=0, windowed=32 * 2 * 8 * 128 * 2, window=4096)
    demand = Demand(8 * 32768, 8, 2048, shares_prefixes=False)
    num = most_slots(40 << 30, size, demand)
    assert num == 8 * 32768
    assert num_window_slots(num, size, demand) == 8 * 4095 + 2 * 2048
    assert cache_bytes(num, size, demand) < 5 << 30
