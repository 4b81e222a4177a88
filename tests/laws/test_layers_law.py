"""The laws over every kind of layer: whoever drafts, however it is run, the answer is the same.

The other laws draw many cases over dense layers; here the same worlds stand on layers of other kinds,
with an MTP layer of their own kind.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, seed, settings

from eyas.cache.windows import WindowSlots
from eyas.core import Request, SamplingParams
from tests.laws.cases import Case, Tally, assert_obeys, assert_same, cases, root_answers, run_case
from tests.laws.test_batch_law import LENGTH
from tests.laws.test_batch_law import many_requests as all_requests
from tests.laws.test_drafter_law import THOROUGH, grid_requests
from tests.laws.world import IN_WINDOWS, LAYERS, Answers, Setting, dtypes, new_engine, run
from tests.models.tiny import tokens
from tests.thorough import drawn

NUM_DRAWN = drawn(2, 8)
QUICK = {"mtp tree": 2}
"""Drafters of `make test`, and how often each is asked."""
DRAFTERS = ("mtp chain", "mtp tree", "oracle tree", "random trees", "ngram", "adversary")


LONGEST = drawn(80, LENGTH)
"""No request of `many_requests` is longer with its answer."""


def many_requests() -> list[Request]:
    """Four of the batch law's requests, the shortest and the longest prompt among them."""
    return drawn([all_requests()[i] for i in (0, 1, 4, 6)], all_requests())


@pytest.fixture(scope="module", params=LAYERS)
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(dtype=dtypes()[-1], layers=request.param, max_model_len=LENGTH)


@pytest.fixture(scope="module")
def alone(setting: Setting) -> Answers:
    """Each request in an engine of its own, whose layers all have all slots."""
    answers: Answers = {}
    for request in many_requests():
        engine = new_engine(replace(setting, recycles=False))
        answers |= run(engine, [request], check=False)
    return answers


def test_neighbours_and_chunks_do_not_matter(setting: Setting, alone: Answers) -> None:
    chunked = replace(setting, max_batch_tokens=19, flights=1)
    for changed in drawn((chunked,), (setting, chunked)):
        engine = new_engine(changed)
        assert_same(run(engine, many_requests()), alone)
    if setting.layers == IN_WINDOWS:
        assert engine.cache.windows is not None and engine.cache.windows.num_recycled > 100


def test_preemption_does_not_matter(setting: Setting, alone: Answers) -> None:
    engine = new_engine(replace(setting, max_model_len=LONGEST, num_slots=LONGEST + 3))
    assert_same(run(engine, many_requests()), alone)
    assert engine.stats().num_preemptions >= 1


def test_a_prefix_hit_does_not_matter(setting: Setting, alone: Answers) -> None:
    engine = new_engine(setting)
    for _ in range(2):
        assert_same(run(engine, many_requests()), alone)
    assert engine.stats().num_prefix_hit_tokens >= 60


def test_drafters_leave_a_batch_of_everything_alone(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    recycled: list[int] = []
    recycle = WindowSlots._recycle
    monkeypatch.setattr(
        WindowSlots, "_recycle", lambda self, count: recycled.append(count) or recycle(self, count)
    )
    asked = grid_requests()
    tight = replace(setting, num_slots=LENGTH + 40, max_batch_tokens=24, flights=1)
    case = Case("root", 5, asked, (0, 0, 2, 3, 3, 4, 4), tight, rounds=2)
    expected, known = root_answers(case)
    for drafter, rounds in drawn(QUICK, dict.fromkeys(DRAFTERS, 2)).items():
        tally = Tally()
        for answers in run_case(replace(case, drafter=drafter, rounds=rounds), known, tally):
            assert_same(answers, expected)
        if drafter in ("mtp chain", "mtp tree", "oracle tree"):
            assert tally.two_accepted == 1, f"{drafter}: {tally}"
    assert bool(recycled) == (setting.layers == IN_WINDOWS)


def test_drawn_cases_are_the_root_drafters(setting: Setting) -> None:
    tally = Tally()

    @seed(27)
    @settings(THOROUGH, max_examples=NUM_DRAWN)
    @given(case=cases(setting.dtype, DRAFTERS))
    def law(case: Case) -> None:
        assert_obeys(replace(case, setting=replace(case.setting, layers=setting.layers)), tally)

    law()
    assert tally.cases >= NUM_DRAWN
    assert tally.two_accepted >= drawn(0, 0.2) * tally.cases, tally


def test_many_rows_of_a_prompt_are_the_rows_of_its_pieces(setting: Setting) -> None:
    """Log-probabilities of a long prompt, in one chunk and in small ones."""
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=9, logprobs=1, prompt_logprobs=1)
    request = Request(id="r", prompt_token_ids=tokens(100), params=params)
    found = [
        run(new_engine(replace(setting, max_batch_tokens=most)), [request]) for most in (128, 17)
    ]
    assert_same(found[1], found[0])
