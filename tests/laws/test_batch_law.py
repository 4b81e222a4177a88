"""The batch law: an answer depends on its own request, never on who or what runs beside it.

Compared bit for bit, log-probabilities included: alone and beside neighbours, in chunks of every size,
after preemptions, from shared prefixes, with a step in flight.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eyas.core import Request, SamplingParams
from tests.laws.cases import Case, Tally, assert_same, root_answers, run_case, walk_text
from tests.laws.world import Answers, Setting, dtypes, new_engine, run

LENGTH = 120
PLAIN = Setting(max_model_len=LENGTH)


def many_requests() -> list[Request]:
    """Requests that differ in everything, prompts of 1 to 60 tokens."""
    made = []
    for i, (length, temperature) in enumerate(
        [(1, 0.0), (60, 0.7), (9, 1.3), (33, 0.0), (17, 0.7), (2, 1.3), (48, 0.7)]
    ):
        params = SamplingParams(
            temperature=temperature,
            seed=100 + i,
            max_tokens=10 + 2 * i,
            min_tokens=4,
            logprobs=i % 3,
            prompt_logprobs=1 if i % 2 else None,
            repetition_penalty=1.1 if i % 3 == 1 else 1.0,
            presence_penalty=0.3 if i % 3 == 2 else 0.0,
            top_p=0.9 if i in (2, 5) else 1.0,
            top_k=7 if i == 4 else 0,
            min_p=0.05 if i == 6 else 0.0,
            logit_bias={101: 2.0} if i == 1 else {},
            stop=("on",) if i == 3 else (),
        )
        prompt = walk_text((97 + 11 * i) % 123, length, [0, 1, 0, i % 2])
        made.append(Request(id=f"r{i}", prompt_token_ids=prompt, params=params))
    return made


def alone(setting: Setting) -> Answers:
    """Each request in an engine of its own."""
    answers: Answers = {}
    for request in many_requests():
        answers |= run(new_engine(setting), [request], check=False)
    return answers


@pytest.fixture(scope="module", params=dtypes(), ids=str)
def undisturbed(request: pytest.FixtureRequest) -> tuple[torch.dtype, Answers]:
    return request.param, alone(replace(PLAIN, dtype=request.param))


def test_neighbours_do_not_matter(undisturbed: tuple[torch.dtype, Answers]) -> None:
    dtype, expected = undisturbed
    asked = many_requests()
    assert_same(run(new_engine(replace(PLAIN, dtype=dtype)), asked), expected)
    backwards = run(new_engine(replace(PLAIN, dtype=dtype)), asked[::-1])
    assert_same(backwards, expected)


@pytest.mark.parametrize("max_batch_tokens", [16, 19, 37, 64])
def test_chunk_sizes_do_not_matter(
    undisturbed: tuple[torch.dtype, Answers], max_batch_tokens: int
) -> None:
    dtype, expected = undisturbed
    setting = replace(PLAIN, dtype=dtype, max_batch_tokens=max_batch_tokens)
    assert_same(run(new_engine(setting), many_requests()), expected)


@pytest.mark.parametrize("flights", [0, 1])
def test_preemption_does_not_matter(undisturbed: tuple[torch.dtype, Answers], flights: int) -> None:
    dtype, expected = undisturbed
    setting = replace(PLAIN, dtype=dtype, num_slots=LENGTH + 3, flights=flights)
    engine = new_engine(setting)
    assert_same(run(engine, many_requests()), expected)
    assert engine.stats().num_preemptions >= 3


def test_flights_ahead_do_not_matter(undisturbed: tuple[torch.dtype, Answers]) -> None:
    dtype, expected = undisturbed
    arrivals = {3 * i: [request] for i, request in enumerate(many_requests())}
    engine = new_engine(replace(PLAIN, dtype=dtype, flights=1, max_batch_tokens=40))
    assert_same(run(engine, (), arrivals=arrivals), expected)


def test_a_prefix_hit_does_not_matter(undisturbed: tuple[torch.dtype, Answers]) -> None:
    dtype, expected = undisturbed
    engine = new_engine(replace(PLAIN, dtype=dtype))
    assert_same(run(engine, many_requests()), expected)
    hits = engine.stats().num_prefix_hit_tokens
    assert_same(run(engine, many_requests()), expected)
    assert engine.stats().num_prefix_hit_tokens - hits >= 60


def test_a_hit_on_generated_tokens_does_not_matter() -> None:
    """A conversation goes on: the prompt is the last prompt, its answer, and something more."""
    for dtype in dtypes():
        setting = replace(PLAIN, dtype=dtype)
        warm = new_engine(setting)
        params = SamplingParams(temperature=0.7, seed=4, max_tokens=25, min_tokens=25, logprobs=2)
        prompt = walk_text(97, 10, [0, 1])
        for turn in range(3):
            request = Request(id=f"t{turn}", prompt_token_ids=list(prompt), params=params)
            cached = run(warm, [request])
            assert_same(cached, run(new_engine(setting), [request]))
            usage = cached[request.id, 0].usage
            assert usage is not None
            assert usage.num_cached_tokens >= (0 if turn == 0 else len(prompt) - 4)
            prompt += [*cached[request.id, 0].token_ids, 49, 50]


@pytest.mark.parametrize("dtype", dtypes(), ids=str)
def test_a_long_neighbour_does_not_matter(dtype: torch.dtype) -> None:
    """Key buffers grow in steps of 512: texts that cross a step, and texts beside them."""
    setting = Setting(dtype=dtype, num_slots=4096, max_model_len=700, max_batch_tokens=128)
    params = SamplingParams(temperature=0.7, seed=9, max_tokens=14, ignore_eos=True, logprobs=1)
    asked = [
        Request(id="short", prompt_token_ids=walk_text(97, 5, [0]), params=params),
        Request(id="crossing", prompt_token_ids=walk_text(98, 505, [0, 0, 1]), params=params),
        Request(id="long", prompt_token_ids=walk_text(99, 640, [0, 1, 0]), params=params),
    ]
    expected: Answers = {}
    for request in asked:
        expected |= run(new_engine(setting), [request], check=False)
    assert_same(run(new_engine(setting), asked, check=False), expected)
    chunked = replace(setting, max_batch_tokens=50, flights=1)
    case = Case("oracle tree", 5, tuple(asked), (0, 0, 1), chunked)
    _, known = root_answers(case)
    tally = Tally()
    assert_same(run_case(case, known, tally)[0], expected)
    assert tally.two_accepted == 1


def test_choices_of_one_request_share_its_prompt_and_differ() -> None:
    params = SamplingParams(temperature=1.3, seed=1, n=4, max_tokens=20, ignore_eos=True)
    request = Request(id="r", prompt_token_ids=walk_text(97, 30, [0, 1]), params=params)
    engine = new_engine(PLAIN)
    answers = run(engine, [request])
    texts = {tuple(answers["r", i].token_ids) for i in range(4)}
    assert len(texts) == 4
    usages = [answers["r", i].usage for i in range(4)]
    assert [u.num_cached_tokens for u in usages if u is not None] == [0, 29, 29, 29]
    single = SamplingParams(temperature=1.3, seed=1, max_tokens=20, ignore_eos=True)
    asked = Request(id="r", prompt_token_ids=request.prompt_token_ids, params=single)
    only = run(new_engine(PLAIN), [asked])
    assert only["r", 0] == answers["r", 0], "the first choice depends on how many there are"
