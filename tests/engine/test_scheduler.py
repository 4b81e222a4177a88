"""The scheduler: everything that was taken up comes to an end, whatever gives way to whom."""

from __future__ import annotations

import random

import pytest

from eyas.core import Request, RequestError, SamplingParams
from eyas.engine.engine import Engine
from eyas.engine.sequence import Status
from tests.laws.cases import walk_text
from tests.laws.world import MAX_BATCH, Setting, model_drafter, new_engine, run


def preempt_one(engine: Engine, draw: random.Random) -> None:
    """Any running sequence that no flight touches gives up its slots."""
    running = engine.scheduler.running
    idle = [s for s in running if s.num_in_flight == 0 and s.status is Status.RUNNING]
    if idle and draw.random() < 0.3:
        engine.scheduler.preempt(draw.choice(idle))


@pytest.mark.parametrize("seed", [139, 266, *range(6)])
def test_an_older_request_that_lost_its_slots_is_never_locked_out(seed: int) -> None:
    """With 139 and 266 a young stepping sequence and an old storing one once waited for each other."""
    draw = random.Random(seed)
    num_tokens, length = draw.choice([3, 6]), draw.choice([40, 60])
    setting = Setting(
        num_slots=length + 2 * (num_tokens + 1) + draw.randint(0, 4),
        max_model_len=length,
        max_batch_tokens=16,
        flights=draw.choice([0, 1]),
        prefix_cache=False,
    )
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    asked = [
        Request(
            id=str(i),
            prompt_token_ids=walk_text(draw.randrange(97, 123), draw.randint(1, 30), [0, 1]),
            params=params,
        )
        for i in range(3)
    ]
    engine = new_engine(
        setting, model_drafter(setting.dtype, setting.num_slots, num_tokens, "target")
    )
    engine.scheduler.max_batch_tokens = draw.choice([9, 12, 16])
    answers = run(engine, asked, on_step=lambda _: preempt_one(engine, draw), check=False)
    assert {a.finish_reason for a in answers.values()} == {"length"}
    assert engine.metrics.num_failed_steps == 0


def test_the_oldest_finishes_first_when_there_is_room_for_one() -> None:
    setting = Setting(num_slots=62, max_model_len=60)
    engine = new_engine(setting)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    ended: list[str] = []
    for i in range(4):
        prompt = walk_text(97 + i, 20, [0, 1])
        engine.add(Request(id=str(i), prompt_token_ids=prompt, params=params))
    while engine.has_work():
        ended += [d.request_id for d in engine.step() if d.finish_reason]
    assert ended == ["0", "1", "2", "3"]


def test_no_step_has_more_rows_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(max_batch_tokens=24, max_model_len=100)
    engine = new_engine(setting, model_drafter(setting.dtype, setting.num_slots, 6, "target"))
    seen: list[int] = []
    forward = engine.runner.forward

    def counted(rows, taps=()):  # type: ignore[no-untyped-def]
        seen.append(len(rows.tokens_T))
        return forward(rows, taps)

    monkeypatch.setattr(engine.runner, "forward", counted)
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=20, n=3)
    asked = [
        Request(id=str(i), prompt_token_ids=walk_text(97 + i, 30 + i, [0, 1]), params=params)
        for i in range(4)
    ]
    run(engine, asked)
    assert max(seen) <= 24 and max(seen) >= 20


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"prompt_token_ids": []}, "prompt"),
        ({"prompt_token_ids": [1] * 64}, "prompt"),
        ({"prompt_token_ids": [10**6]}, "prompt"),
        ({"prompt_token_ids": [-1]}, "prompt"),
        ({"prompt_token_ids": [1.5]}, "prompt"),
        ({"params": SamplingParams(logit_bias={10**6: 1.0})}, "logit_bias"),
        ({"params": SamplingParams(stop_token_ids=(10**6,))}, "stop_token_ids"),
    ],
)
def test_what_can_never_be_served_is_refused_before_any_work(
    request_fields: dict[str, object], param: str
) -> None:
    engine = new_engine(Setting(max_model_len=64))
    with pytest.raises(RequestError) as caught:
        engine.add(Request(**{"id": "r", "prompt_token_ids": [1, 2], **request_fields}))
    assert caught.value.param == param
    assert not engine.has_work()
    answers = run(engine, [Request(id="r", prompt_token_ids=[1] * 63)])
    assert answers["r", 0].finish_reason == "length"


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = new_engine(Setting())
    engine.add(Request(id="r", prompt_token_ids=[97], params=SamplingParams(max_tokens=3)))
    with pytest.raises(RequestError, match="in use"):
        engine.add(Request(id="r", prompt_token_ids=[97]))
    while engine.has_work():
        engine.step()
    answers = run(
        engine, [Request(id="r", prompt_token_ids=[97], params=SamplingParams(max_tokens=3))]
    )
    assert len(answers["r", 0].token_ids) <= 3


def test_an_absent_seed_is_drawn_once_and_returned() -> None:
    params = SamplingParams(temperature=1.3, max_tokens=30, n=2, ignore_eos=True)
    asked = Request(id="r", prompt_token_ids=[97, 98], params=params)
    answers = run(new_engine(Setting()), [asked])
    seed = answers["r", 0].seed
    assert seed is not None and answers["r", 1].seed == seed
    again = SamplingParams(temperature=1.3, max_tokens=30, n=2, ignore_eos=True, seed=seed)
    repeated = run(
        new_engine(Setting()), [Request(id="r", prompt_token_ids=[97, 98], params=again)]
    )
    assert repeated == answers
    other = run(new_engine(Setting()), [asked])
    assert other["r", 0].token_ids != answers["r", 0].token_ids


def test_prompt_logprobs_cover_the_prompt_once_whatever_its_length() -> None:
    for length in (1, 2, 40):
        params = SamplingParams(max_tokens=8, prompt_logprobs=2, n=2, seed=0, ignore_eos=True)
        prompt = walk_text(97, length, [0, 1])
        engine = new_engine(Setting(max_batch_tokens=16))
        answers = run(engine, [Request(id="r", prompt_token_ids=prompt, params=params)])
        entries = answers["r", 0].prompt_logprobs
        assert entries is not None and len(entries) == length and entries[0] is None
        assert [e.token_id for e in entries[1:] if e is not None] == prompt[1:]
        assert all(len(e.top) == 2 for e in entries[1:] if e is not None)
        assert answers["r", 1].prompt_logprobs is None


assert MAX_BATCH >= 24
