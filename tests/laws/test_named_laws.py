"""One small law test a premise: quick, and the first to look at when the mass of cases fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eyas.core import Request, SamplingParams
from tests.laws.automata import is_legal, toy
from tests.laws.cases import (
    Case,
    Tally,
    assert_obeys,
    assert_same,
    root_answers,
    run_case,
    walk_text,
)
from tests.laws.world import EOS, Answers, Setting, new_engine, run

PLAIN = Setting(max_model_len=100)
PROMPT = walk_text(97, 14, [0, 0, 1])


def case_of(drafter: str, params: SamplingParams, **changes: object) -> Case:
    asked = [
        Request(id=f"r{i}", prompt_token_ids=PROMPT[i:], params=params, output=output)
        for i, output in enumerate([changes.pop("output", None)] * 2)
    ]
    fields = {"num_tokens": 6, "setting": PLAIN, "arrivals": (0, 0), **changes}
    return Case(drafter=drafter, requests=tuple(asked), **fields)  # type: ignore[arg-type]


def assert_obeys_and_accepts(case: Case) -> None:
    tally = Tally()
    assert_obeys(case, tally)
    assert tally.two_accepted == 1 and tally.refused_inside == 1


@pytest.mark.parametrize("drafter", ["oracle tree", "oracle chain"])
def test_a_walk_goes_to_the_child_that_was_chosen_and_no_other(drafter: str) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=40, ignore_eos=True)
    assert_obeys_and_accepts(case_of(drafter, params))


@pytest.mark.parametrize("drafter", ["oracle tree", "oracle chain"])
def test_penalties_are_those_of_a_nodes_own_path(drafter: str) -> None:
    params = SamplingParams(
        temperature=0.7,
        seed=1,
        max_tokens=40,
        ignore_eos=True,
        frequency_penalty=0.6,
        presence_penalty=0.5,
        repetition_penalty=1.3,
    )
    assert_obeys_and_accepts(case_of(drafter, params))


def test_a_siblings_token_is_not_penalised() -> None:
    """Whatever the tree holds beside the path, `everything` counts the path alone."""
    params = SamplingParams(
        temperature=0, seed=1, max_tokens=30, presence_penalty=1.0, ignore_eos=True
    )
    assert_obeys(case_of("random trees", params, num_tokens=12), Tally())


@pytest.mark.parametrize("drafter", ["oracle tree", "oracle chain", "random trees"])
def test_each_node_has_its_own_mask(drafter: str) -> None:
    params = SamplingParams(temperature=1.0, seed=2, max_tokens=40)
    spec = toy("modular 5")
    case = case_of(drafter, params, output=spec)
    tally = Tally()
    assert_obeys(case, tally)
    assert tally.two_accepted or drafter == "random trees"
    for answer in root_answers(case)[0].values():
        assert len(answer.token_ids) >= 5 and is_legal("5", answer.token_ids)


def test_a_ragged_chain_ends_where_its_padding_begins() -> None:
    params = SamplingParams(temperature=0, seed=1, max_tokens=40, ignore_eos=True)
    assert_obeys(case_of("ragged chains", params), Tally())


def test_accepted_nodes_are_stored_where_later_requests_look() -> None:
    """The text of a tree's accepted nodes becomes a shared prefix; a next turn reads those slots."""
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=40, ignore_eos=True, logprobs=1)
    case = case_of("oracle tree", params)
    expected, known = root_answers(case)
    tally = Tally()
    first = run_case(replace(case, rounds=2), known, tally)
    for answers in first:
        assert_same(answers, expected)
    for drafter in ("oracle tree", "random trees"):
        assert_second_turn_is_plain(replace(case, drafter=drafter), expected)


def assert_second_turn_is_plain(case: Case, expected: Answers) -> None:
    from tests.laws.cases import new_drafter

    known = root_answers(case)[1]
    engine = new_engine(case.setting, new_drafter(case, known))
    assert_same(run(engine, case.requests), expected)
    turns = [
        Request(
            id=request.id,
            prompt_token_ids=[*request.prompt_token_ids, *expected[request.id, 0].token_ids, 49],
            params=request.params,
        )
        for request in case.requests
    ]
    before = engine.stats().num_prefix_hit_tokens
    warm = run(engine, turns)
    assert engine.stats().num_prefix_hit_tokens - before > 60
    assert_same(warm, run(new_engine(case.setting), turns))


def test_min_tokens_holds_the_end_back_at_every_node() -> None:
    params = SamplingParams(
        temperature=0, seed=1, max_tokens=20, min_tokens=9, logit_bias={EOS: 100.0}
    )
    case = case_of("oracle tree", params)
    assert_obeys(case, Tally())
    answers = root_answers(case)[0]
    assert [len(a.token_ids) for a in answers.values()] == [10, 10]
    assert {a.finish_reason for a in answers.values()} == {"stop"}


def test_a_stop_inside_a_draft_ends_the_text_there() -> None:
    free = SamplingParams(temperature=0, seed=1, max_tokens=40, ignore_eos=True)
    text = root_answers(case_of("root", free))[0]["r0", 0].text
    params = SamplingParams(
        temperature=0, seed=1, max_tokens=40, ignore_eos=True, stop=(text[9:12],)
    )
    case = case_of("oracle tree", params)
    assert_obeys(case, Tally())
    answer = root_answers(case)[0]["r0", 0]
    assert answer.stop_reason == text[9:12]
    assert answer.text == text[: text.index(text[9:12])]


def test_choices_have_noise_of_their_own() -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=20, n=3, ignore_eos=True)
    case = case_of("oracle tree", params)
    assert_obeys(case, Tally())
    answers = root_answers(case)[0]
    assert len({tuple(answers["r0", i].token_ids) for i in range(3)}) == 3


@pytest.mark.parametrize("flights", [0, 1])
def test_a_flight_ahead_sees_what_the_one_before_it_chose(flights: int) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=40, ignore_eos=True, logprobs=0)
    setting = replace(PLAIN, flights=flights, num_slots=118, max_batch_tokens=20)
    assert_obeys_and_accepts(case_of("oracle tree", params, setting=setting))
