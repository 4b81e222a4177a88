"""How many rows a step may have, and how many sequences run at once."""

from __future__ import annotations

import pytest

from eyas.config import EngineConfig, SchedulerConfig
from eyas.core import Request, SamplingParams
from eyas.draft import TreeShape
from eyas.engine.startup.cache_size import SEATS, choose_num_seats
from eyas.engine.step_time import MIN_PROMPT_ROWS, StepTime
from tests.laws.world import Setting, new_engine


def test_rows_follow_the_time_of_steps_with_prompts() -> None:
    time = StepTime(0.05)
    assert time.most_rows(2048) == 2048
    for _ in range(9):
        time.learn(1000, 24, 0.1024)
    assert time.most_rows(2048) == pytest.approx(500, abs=1)
    time.learn(0, 64, 9.0)  # a step without prompts says nothing of them
    assert time.most_rows(2048) == pytest.approx(500, abs=1)
    time.learn(1000, 24, 9.0)  # one slow step does not count
    assert time.most_rows(2048) == pytest.approx(500, abs=1)
    for _ in range(9):
        time.learn(500, 12, 5.12)
    assert time.most_rows(2048) == MIN_PROMPT_ROWS and time.most_rows(100) == 100
    anything = StepTime(None)
    anything.learn(1000, 24, 100.0)
    assert anything.most_rows(2048) == 2048


def test_chunks_shrink_while_others_decode_and_not_otherwise() -> None:
    """A prompt is stored in larger steps once nothing decodes beside it; the answers are the same."""
    prompts = [[97 + i % 5 for i in range(3)], [97 + i % 7 for i in range(900)]]

    def answers(*, seconds: float | None) -> tuple[list[list[int]], list[int]]:
        engine = new_engine(Setting(max_model_len=1000, num_slots=2048, max_batch_tokens=800))
        engine.scheduler.step_time = StepTime(seconds)
        for _ in range(9):
            engine.scheduler.step_time.learn(500, 0, 1.0)
        params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
        texts: dict[str, list[int]] = {}
        chunks: list[int] = []
        for i, prompt in enumerate(prompts):
            engine.add(Request(id=str(i), prompt_token_ids=prompt, params=params))
            while i == 0 and not texts:
                for delta in engine.step():
                    texts.setdefault(delta.request_id, []).extend(delta.token_ids)
        while engine.has_work():
            before = engine.metrics.num_prompt_tokens
            for delta in engine.step():
                texts.setdefault(delta.request_id, []).extend(delta.token_ids)
            chunks.append(engine.metrics.num_prompt_tokens - before)
        return [texts["0"], texts["1"]], [count for count in chunks if count]

    free, chunks = answers(seconds=None)
    bound, small = answers(seconds=0.1)
    assert free == bound
    assert small[0] < chunks[0] and small[0] <= MIN_PROMPT_ROWS


def test_seats_follow_memory() -> None:
    assert choose_num_seats(80 << 30, 1 << 20) == max(SEATS)
    assert choose_num_seats(80 << 30, 80 << 20) == 128
    assert choose_num_seats(1 << 30, 80 << 20) == min(SEATS)
    auto, given = SchedulerConfig(), SchedulerConfig(max_num_seqs=7)
    assert (auto.num_seats, auto.most_seats) == (64, 512)
    assert (given.num_seats, given.most_seats) == (7, 7)
    with pytest.raises(ValueError, match="max_step_ms: must be between 1 and 60000, not 0"):
        EngineConfig(scheduler=SchedulerConfig(max_step_ms=0))


def test_the_drafter_hears_how_many_prompt_rows_a_step_may_have() -> None:
    engine = new_engine(Setting(max_model_len=400, num_slots=2048, max_batch_tokens=128))
    heard: list[tuple[int, int]] = []

    def preferred_shape(
        num_sequences: int, num_constrained: int, num_prompt_rows: int
    ) -> TreeShape:
        heard.append((num_sequences, num_prompt_rows))
        return TreeShape(0, 1, 1)

    engine.scheduler.preferred_shape = preferred_shape
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    engine.add(Request(id="a", prompt_token_ids=[97] * 3, params=params))
    engine.step()
    engine.add(Request(id="b", prompt_token_ids=[98] * 300, params=params))
    while engine.has_work():
        engine.step()
    assert heard[0] == (0, 2)
    assert (1, 127) in heard and heard[-1][1] == 0
