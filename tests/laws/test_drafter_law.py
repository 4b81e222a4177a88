"""The drafter law: whoever drafts, the answer is the root drafter's, bit for bit.

Compared are tokens, text, log-probabilities (of the answer and of the prompt), the reasons why it
ended, and errors. Drawn are drafters, every sampling feature, constraints, batches, room in the cache,
chunk sizes, prefix hits, and how far the device runs ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

from eyas.core import Request, SamplingParams
from tests.laws.automata import toy
from tests.laws.cases import (
    DRAFTERS,
    MAX_LENGTH,
    Case,
    Known,
    Tally,
    assert_obeys,
    assert_same,
    cases,
    root_answers,
    run_case,
    walk_text,
)
from tests.laws.world import EOS, STOP_ID, Answers, Setting, dtypes
from tests.thorough import drawn, only_thorough

NUM_DRAWN = drawn(10, 152)
"""Cases of each of the two types below."""
ENDINGS = {"length", "stop (eos)", *drawn((), ("stop (string)", "stop (id)"))}

THOROUGH = settings(
    max_examples=NUM_DRAWN,
    deadline=None,
    database=None,
    derandomize=False,  # the seed below fixes what is drawn
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_no_drafter_changes_anything(
    dtype: torch.dtype, record_property: Callable[[str, object], None]
) -> None:
    tally = Tally()

    @seed(20 + drawn(5, 1) * (dtype is torch.float32))
    @THOROUGH
    @given(case=cases(dtype))
    def law(case: Case) -> None:
        assert_obeys(case, tally)

    law()
    print(f"\n{dtype}: {tally}")
    record_property("tally", str(tally))
    assert tally.cases >= NUM_DRAWN
    assert tally.two_accepted >= 0.3 * tally.cases, tally
    assert tally.refused_below_accepted >= 0.3 * tally.cases, tally
    assert tally.preempted >= drawn(0.03, 0.1) * tally.cases, tally
    assert tally.hits >= 0.2 * tally.cases, tally
    assert tally.endings.keys() >= ENDINGS


def grid_requests() -> tuple[Request, ...]:
    """One batch that uses everything there is."""
    prompt = walk_text(97, 30, [0, 0, 1])
    everything = SamplingParams(
        temperature=0.7,
        top_k=40,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        logit_bias={101: 1.0, EOS: 0.5},
        min_tokens=4,
        max_tokens=12,
        stop=("er a", "abcab"),
        stop_token_ids=(STOP_ID,),
        n=2,
        seed=11,
        logprobs=2,
        prompt_logprobs=1,
    )
    greedy = SamplingParams(temperature=0, max_tokens=14, logprobs=0, seed=3)
    warm = SamplingParams(temperature=1.3, max_tokens=11, seed=5)
    spec = toy("modular 5")
    return (
        Request(id="everything", prompt_token_ids=prompt, params=everything),
        Request(id="greedy", prompt_token_ids=[*prompt[:20], 49, 50, 49], params=greedy),
        Request(id="warm", prompt_token_ids=[EOS], params=warm),
        Request(id="formed", prompt_token_ids=prompt[:9], params=warm, output=spec),
        Request(id="formed greedy", prompt_token_ids=prompt[:9], params=greedy, output=spec),
        Request(id="lane", prompt_token_ids=prompt[:9], params=warm, output=toy("lane 7")),
        Request(id="liar", prompt_token_ids=prompt[:9], params=greedy, output=toy("liar 5")),
    )


def _grid_case(drafter: str, flights: int) -> Case:
    return Case(
        drafter=drafter,
        num_tokens=5,
        requests=grid_requests(),
        arrivals=(0, 0, 2, 3, 3, 4, 4),
        setting=Setting(
            dtype=dtypes()[-1],
            num_slots=MAX_LENGTH + 40,
            max_model_len=MAX_LENGTH,
            max_batch_tokens=24,
            flights=flights,
        ),
        rounds=drawn(2 if drafter in DRAFTERS[::4] else 1, 2),
    )


@cache
def _grid_answers() -> tuple[Answers, Known]:
    """Plain decoding's, whose engine knows nothing of a case's drafter and flights."""
    return root_answers(_grid_case("root", 0))


@pytest.mark.parametrize("flights", [*only_thorough(0), 1])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_leaves_a_batch_of_everything_alone(drafter: str, flights: int) -> None:
    case = _grid_case(drafter, flights)
    tally = Tally()
    expected, known = _grid_answers()
    for answers in run_case(case, known, tally):
        assert_same(answers, expected)
    if drafter != "adversary":
        assert tally.seen.accepted > 0
    assert tally.seen.steps > 0


def test_the_root_drafter_agrees_with_itself_in_every_setting() -> None:
    tally = Tally()
    for flights, max_batch_tokens in ((0, 128), (1, 16)):
        setting = Setting(
            num_slots=MAX_LENGTH + 12,
            max_model_len=MAX_LENGTH,
            flights=flights,
            max_batch_tokens=max_batch_tokens,
        )
        case = Case("root", 1, grid_requests(), (0, 0, 1, 1, 1, 1, 1), setting)
        assert_obeys(case, tally)
        assert_obeys(replace(case, setting=replace(setting, num_slots=2048)), tally)
    assert tally.preempted >= 1 and tally.hits >= 1
