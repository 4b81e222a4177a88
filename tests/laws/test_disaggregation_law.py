"""The disaggregation law: a prompt that one engine computed and another one continues gives the answer
of one engine, bit for bit, with every drafter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, seed, settings

from eyas.core import Request, SamplingParams
from tests.laws.cases import (
    MAX_LENGTH,
    Case,
    Known,
    assert_same,
    cases,
    new_drafter,
    root_answers,
    walk_text,
)
from tests.laws.pairs import Pair, Side, new_pair
from tests.laws.test_batch_law import LENGTH
from tests.laws.test_drafter_law import THOROUGH, _grid_case, grid_requests
from tests.laws.world import IN_WINDOWS, Answers, Setting, dtypes, new_engine, run
from tests.thorough import drawn

DRAFTERS = ("root", "ngram", "eagle tree", "eagle3 chain", "mtp chain", "same model", "forced")
AGAIN = drawn(("ngram", "mtp chain"), DRAFTERS)
"""Drafters of whose pairs the same is asked twice."""
MORE = ("blend with a head", "adaptive head", "forced with an adaptive head", "other model tree")

OTHER_LAYERS = (("state", "mtp tree"), (IN_WINDOWS, "mtp chain"), ("compressed", "mtp chain"))
LAYERS_AGAIN = drawn(("state",), tuple(layers for layers, _ in OTHER_LAYERS))
"""Layers of whose pairs the same is asked twice."""


def run_pair(case: Case, pair: Pair) -> Answers:
    arrivals: dict[int, list[Request]] = {}
    for request, step in zip(case.requests, case.arrivals, strict=True):
        arrivals.setdefault(step, []).append(pair.taking(request))
    answers, _ = pair.decode.run((), arrivals)
    return answers


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_pair_answers_as_one_engine(drafter: str) -> None:
    """A batch of everything, with little room where it decodes; then again, with prefix hits on both
    sides, where `AGAIN` says so."""
    case = _with_wide(_grid_case(drafter, flights=1))
    case = replace(case, rounds=2 if drafter in AGAIN else 1)
    expected, known = _wide_answers()
    with new_pair(
        case.setting, lambda setting: new_drafter(replace(case, setting=setting), known)
    ) as pair:
        for _ in range(case.rounds):
            assert_same(run_pair(case, pair), expected)
        pair.prefill.settle()
        pair.decode.settle()
        assert pair.decode.inner.stats().num_preemptions


def _with_wide(case: Case) -> Case:
    """The case with a request whose choices preempt each other, whenever the others arrive."""
    params = SamplingParams(temperature=1.3, n=3, seed=8, min_tokens=50, max_tokens=50)
    wide = Request(id="wide", prompt_token_ids=walk_text(101, 20, [0, 1]), params=params)
    assert len(wide.prompt_token_ids) + params.n * params.max_tokens > case.setting.num_slots
    return replace(case, requests=(*case.requests, wide), arrivals=(*case.arrivals, 4))


@cache
def _wide_answers() -> tuple[Answers, Known]:
    return root_answers(_with_wide(_grid_case("root", 0)))


@pytest.mark.parametrize(("layers", "drafter"), OTHER_LAYERS)
def test_a_pair_answers_as_one_engine_over_other_layers(layers: str, drafter: str) -> None:
    """States of sequences and slots of windows move along, in chunks of a prompt and after hits."""
    tight = Setting(
        dtype=dtypes()[-1],
        layers=layers,
        max_model_len=LENGTH,
        num_slots=LENGTH + 12,
        max_batch_tokens=24,
        flights=1,
    )
    # Window slots are few where chunks are small, and the prefill engine holds all prompts at once.
    rows = 128 if layers == IN_WINDOWS else 24
    prefill = replace(tight, num_slots=2048, max_batch_tokens=rows)
    rounds = 2 if layers in LAYERS_AGAIN else 1
    case = Case(drafter, 5, grid_requests(), (0, 0, 2, 3, 3, 4, 4), tight, rounds=rounds)
    expected, known = root_answers(case)
    with new_pair(
        tight,
        lambda setting: new_drafter(replace(case, setting=setting), known),
        prefill=prefill,
    ) as pair:
        for _ in range(case.rounds):
            assert_same(run_pair(case, pair), expected)
        for side in (pair.prefill, pair.decode):
            side.settle()
            assert rounds == 1 or side.inner.stats().num_prefix_hit_tokens


def test_what_a_window_shows_of_a_long_prompt_moves_alone() -> None:
    """The prefill engine has recycled the window slots of the prompt's beginning."""
    setting = Setting(layers=IN_WINDOWS, max_model_len=LENGTH, max_batch_tokens=16)
    case = Case("mtp chain", 3, (), (), setting)
    prompts = [walk_text(start, 110, [0, 0, 1]) for start in (97, 101)]
    params = SamplingParams(temperature=0.7, max_tokens=9, seed=4, logprobs=1)
    with new_pair(
        setting, lambda chosen: new_drafter(replace(case, setting=chosen), {}), prefill=setting
    ) as pair:
        for number, prompt in enumerate(prompts):
            request = Request(id=str(number), prompt_token_ids=prompt, params=params)
            alone = run(new_engine(setting, new_drafter(case, {})), [request])
            answers, (last,) = pair.decode.run([pair.taking(request)])
            assert answers == alone and last.usage is not None
            assert last.usage.num_cached_tokens == len(prompt) - 1
            pair.prefill.settle()
        windows = pair.prefill.inner.cache.windows
        assert windows is not None and windows.num_recycled
        pair.decode.settle()


@seed(26)
@settings(THOROUGH, max_examples=drawn(5, 60))
@given(case=cases(dtypes()[0], (*DRAFTERS, *MORE)))
def test_drawn_cases_answer_as_one_engine(case: Case) -> None:
    case = replace(case, setting=replace(case.setting, prefix_cache=True))
    expected, known = root_answers(case)
    with new_pair(
        case.setting, lambda setting: new_drafter(replace(case, setting=setting), known)
    ) as pair:
        for _ in range(case.rounds):
            assert_same(run_pair(case, pair), expected)


@pytest.mark.parametrize("drafter", ["eagle3 tree", "mtp chain", "same model tree"])
def test_a_drafting_network_continues_where_it_was(drafter: str) -> None:
    """Its rows and what it reads of the target move along: as many drafts are accepted as in one
    engine."""
    setting = Setting(max_model_len=MAX_LENGTH)
    request = Request(
        id="r",
        prompt_token_ids=walk_text(97, 40, [0, 0, 1]),
        params=SamplingParams(temperature=0.7, max_tokens=30, seed=4),
    )
    case = Case(drafter, 5, (request,), (0,), setting)
    engine = new_engine(setting, new_drafter(case, {}))
    run(engine, [request])
    alone = run(engine, [request])["r", 0]  # its prompt is in the cache
    with new_pair(setting, lambda chosen: new_drafter(replace(case, setting=chosen), {})) as pair:
        answers, _ = pair.decode.run([pair.taking(request)])
        features = [read_features(side, request) for side in (pair.prefill, pair.decode)]
    paired = answers["r", 0]
    assert paired == alone and alone.usage is not None and paired.usage is not None
    assert alone.usage.num_accepted_tokens > 5
    assert paired.usage.num_accepted_tokens == alone.usage.num_accepted_tokens
    assert paired.usage.num_cached_tokens == len(request.prompt_token_ids) - 1
    if features[0] is not None and features[1] is not None:
        assert features[0].any() and torch.equal(*features)


def read_features(side: Side, request: Request) -> torch.Tensor | None:
    """What the drafting network reads of the target at the positions of a stored prompt."""
    tokens, rows = request.prompt_token_ids, side.inner.drafter.prefix_rows
    lease = side.inner.cache.admit(tokens, len(tokens))
    slots = lease.slots[: lease.num_stored].copy()
    side.inner.cache.release(lease, tokens)
    assert rows is not None and len(slots) == len(tokens) - 1
    return rows.network.recall(torch.from_numpy(slots))
