"""A draft model with the target's own weights is never wrong: any slip in its rows would show.

Its keys and values lie in the target's slots, so acceptance, preemption, shared prefixes and chunks
must each leave them right; its noise is the target's, so it is right at any temperature.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from eyas.core import Request, SamplingParams
from eyas.engine.engine import Engine
from tests.laws.cases import walk_text
from tests.laws.world import Setting, model_drafter, new_engine, run

PLAIN = Setting(max_model_len=150)


def requests(name: str, temperature: float = 0.7) -> list[Request]:
    made = []
    for i in range(4):
        params = SamplingParams(
            temperature=temperature,
            seed=i,
            max_tokens=25,
            ignore_eos=True,
            n=2 if i == 1 else 1,
            repetition_penalty=1.2 if i == 2 else 1.0,
            frequency_penalty=0.4 if i == 2 else 0.0,
            top_k=9 if i == 3 else 0,
            top_p=0.9 if i == 3 else 1.0,
            logit_bias={101: 2.0} if i == 0 else {},
        )
        prompt = walk_text(97 + i, 1 + 17 * i, [0, 1])
        made.append(Request(id=f"{name}{i}", prompt_token_ids=prompt, params=params))
    return made


def self_drafting(setting: Setting, num_tokens: int = 4) -> Engine:
    drafter = model_drafter(setting.dtype, setting.num_slots, num_tokens, "target")
    return new_engine(setting, drafter)


def assert_never_wrong(engine: Engine) -> None:
    stats = engine.stats()
    assert engine.metrics.num_failed_steps == 0
    assert stats.num_draft_tokens > 80
    assert stats.num_accepted_tokens == stats.num_draft_tokens


@pytest.mark.parametrize("flights", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_its_own_weights_draft_what_is_chosen(temperature: float, flights: int) -> None:
    engine = self_drafting(replace(PLAIN, flights=flights))
    run(engine, requests("a", temperature))
    assert_never_wrong(engine)


@pytest.mark.parametrize("max_batch_tokens", [16, 40])
def test_chunked_prompts_are_stored_for_the_draft_model_too(max_batch_tokens: int) -> None:
    engine = self_drafting(replace(PLAIN, max_batch_tokens=max_batch_tokens), 2)
    run(engine, requests("a"))
    assert_never_wrong(engine)


@pytest.mark.parametrize("flights", [0, 1])
def test_a_preempted_sequence_is_recomputed_for_the_draft_model_too(flights: int) -> None:
    engine = self_drafting(replace(PLAIN, num_slots=162, flights=flights))
    run(engine, [*requests("a"), *requests("b", 1.3)])
    assert engine.stats().num_preemptions > 0
    assert_never_wrong(engine)


@pytest.mark.parametrize("flights", [0, 1])
def test_what_it_shares_is_right_to_the_last_slot(flights: int) -> None:
    """A second turn begins with the whole first one, whose last accepted token had no draft row."""
    engine = self_drafting(replace(PLAIN, flights=flights), 3)
    params = SamplingParams(temperature=0.7, seed=2, max_tokens=12, ignore_eos=True)
    for start in range(97, 117):
        prompt = walk_text(start, 6, [0, 1])
        for turn in range(2):
            request = Request(id=f"{start} {turn}", prompt_token_ids=list(prompt), params=params)
            prompt += run(engine, [request])[request.id, 0].token_ids
            prompt.append(49)
    assert engine.stats().num_prefix_hit_tokens > 200
    assert_never_wrong(engine)


def test_other_weights_are_right_now_and_then() -> None:
    engine = new_engine(PLAIN, model_drafter(PLAIN.dtype, PLAIN.num_slots, 3, "other"))
    run(engine, requests("a"))
    stats = engine.stats()
    assert 0.02 * stats.num_draft_tokens < stats.num_accepted_tokens
    assert stats.num_accepted_tokens < 0.9 * stats.num_draft_tokens
