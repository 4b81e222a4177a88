"""Bit for bit on a GPU: 200 prompts, whoever drafts, in any batch, cut and preempted as they come.

`make gpu` asks batches of one for some of the prompts; with this file named on pytest's command line
(and no -m) all of them are asked.

Promises: tokens and the chosen tokens' log-probabilities are those of plain decoding of one prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from eyas import LLM, SamplingParams
from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from eyas.outputs import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NUM_PROMPTS = 200
NUM_TOKENS = 32
FEW = 40
"""Prompts that are asked one by one, or cut and preempted."""
TEMPERATURES = (0.0, 0.8)
BATCHES = (1, 7, 32)
DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "ngram": DraftConfig(drafter="ngram", nodes=6),
    "chain": DraftConfig(drafter="head", steps=5, topk=1, nodes=6),
    "tree": DraftConfig(drafter="head", steps=5, topk=4, nodes=16),
    "blend": DraftConfig(drafter="ngram+head", nodes=16),
}
WORDS = (
    "seven green boats red apple river stone Oslo Paris Amsterdam twelve count city field window "
    "yellow bird cloud summer winter paper glass train ticket house garden letter music morning"
).split()
FORMS = (
    "What is the capital of {0}?",
    "Repeat this text exactly: {0} {1} {2}, {3} {1} {2}, {0} {1} {2}.",
    "Fill a JSON object with the field city set to {0} and the field count set to 12.",
    "Hello! Who are you, {0} {1}?",
    "Specify a random {0}.",
    "Write one sentence about a {0} {1} and a {2} {3}.",
    "List these words in reverse order: {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}.",
    "Repeat: {4} {4} {4} {5} {5} {5} {4} {4} {4} {5} {5}",
)


def make(
    drafter: str,
    *,
    device: str = "cuda",
    dtype: str = "bfloat16",
    flights: int = 1,
    max_num_seqs: int = max(BATCHES),
    max_batch_tokens: int = 512,
    num_slots: int = 20_000,
    prefix_cache: bool = False,
) -> LLM:
    return LLM(
        config=EngineConfig(
            model=ModelConfig(path="builtin", dtype=dtype),
            device=DeviceConfig(device=device, num_threads=4),
            draft=DRAFTING[drafter],
            cache=CacheConfig(num_slots=num_slots, prefix_cache=prefix_cache),
            scheduler=SchedulerConfig(
                flights=flights, max_batch_tokens=max_batch_tokens, max_num_seqs=max_num_seqs
            ),
        )
    )


def prompts_of(llm: LLM) -> list[list[int]]:
    draw = random.Random(5)
    texts = [FORMS[i % len(FORMS)].format(*draw.choices(WORDS, k=8)) for i in range(NUM_PROMPTS)]
    return [llm.encode_chat([{"role": "user", "content": text}]) for text in texts]


def ask(
    llm: LLM,
    prompts: Sequence[list[int]],
    temperature: float,
    *,
    batch: int | None = None,
    logprobs: int | None = None,
) -> list[Choice]:
    """batch: most sequences at once; None leaves that to the engine."""
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=NUM_TOKENS, logprobs=logprobs)
        for i in range(len(prompts))
    ]
    size = batch or len(prompts)
    outputs = [
        output
        for first in range(0, len(prompts), size)
        for output in llm.generate(prompts[first : first + size], params[first : first + size])
    ]
    llm.engine.check()
    assert llm.engine.metrics.num_failed_steps == 0
    return [output.choices[0] for output in outputs]


def differing(found: Sequence[Choice], expected: Sequence[Choice]) -> int:
    """Tokens that are not the expected ones."""
    count = 0
    for one, other in zip(found, expected, strict=False):
        assert one.error is None
        count += abs(len(one.token_ids) - len(other.token_ids))
        count += sum(a != b for a, b in zip(one.token_ids, other.token_ids, strict=False))
        count += one.finish_reason != other.finish_reason
    return count


def chosen(choices: Sequence[Choice]) -> list[list[tuple[int, float]]]:
    return [[(entry.token_id, entry.logprob) for entry in one.logprobs or ()] for one in choices]


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with make("root") as llm:
        yield llm


@pytest.fixture(scope="module")
def prompts(plain: LLM) -> list[list[int]]:
    return prompts_of(plain)


@pytest.fixture(scope="module")
def expected(plain: LLM, prompts: list[list[int]]) -> dict[float, list[Choice]]:
    """Plain decoding, one prompt after the other."""
    return {t: ask(plain, prompts, t, batch=1) for t in TEMPERATURES}


@pytest.fixture(scope="module")
def scored(plain: LLM, prompts: list[list[int]]) -> dict[float, list[Choice]]:
    """The same with log-probabilities, for a few."""
    return {t: ask(plain, prompts[:FEW], t, batch=1, logprobs=0) for t in TEMPERATURES}


@pytest.fixture(scope="module", params=DRAFTING)
def drafted(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with make(request.param) as llm:
        llm.name = request.param  # type: ignore[attr-defined]
        yield llm


def test_this_device_claims_to_be_exact(plain: LLM) -> None:
    assert plain.info.exact, plain.info.exact_reason


@pytest.mark.parametrize(
    ("batch", "num"),
    [
        (1, FEW),
        (7, NUM_PROMPTS),
        (32, NUM_PROMPTS),
        pytest.param(1, NUM_PROMPTS, marks=pytest.mark.slow),
    ],
)
def test_no_token_depends_on_who_drafts_or_on_the_batch(
    drafted: LLM,
    prompts: list[list[int]],
    expected: dict[float, list[Choice]],
    batch: int,
    num: int,
) -> None:
    for temperature, answers in expected.items():
        found = ask(drafted, prompts[:num], temperature, batch=batch)
        assert differing(found, answers) == 0
        if drafted.name != "root":  # type: ignore[attr-defined]
            assert sum(choice.usage.num_accepted_tokens for choice in found) > num // 2


@pytest.mark.parametrize("batch", [1, 7, 32])
def test_log_probabilities_are_the_same_bits(
    drafted: LLM, prompts: list[list[int]], scored: dict[float, list[Choice]], batch: int
) -> None:
    for temperature, answers in scored.items():
        found = ask(drafted, prompts[:FEW], temperature, batch=batch, logprobs=0)
        assert differing(found, answers) == 0
        assert chosen(found) == chosen(answers)


@pytest.mark.parametrize(
    ("drafter", "settings"),
    [
        ("chain", {"flights": 0}),
        ("tree", {"flights": 0}),
        ("root", {"num_slots": 700}),
        ("chain", {"num_slots": 700}),
        ("tree", {"num_slots": 700, "prefix_cache": True}),
        ("blend", {"num_slots": 700, "flights": 0, "max_batch_tokens": 64}),
        ("tree", {"max_batch_tokens": 64, "max_num_seqs": 7}),
        ("blend", {"max_batch_tokens": 200, "prefix_cache": True}),
    ],
    ids=str,
)
def test_neither_flights_nor_cuts_nor_preemption_nor_shared_prefixes_change_a_bit(
    prompts: list[list[int]],
    scored: dict[float, list[Choice]],
    drafter: str,
    settings: dict[str, int],
) -> None:
    with make(drafter, **settings) as llm:  # type: ignore[arg-type]
        for temperature, answers in scored.items():
            for logprobs in (None, 0):
                found = ask(llm, prompts[:FEW], temperature, logprobs=logprobs)
                assert differing(found, answers) == 0
                if logprobs is not None:
                    assert chosen(found) == chosen(answers)
        if "num_slots" in settings and drafter != "blend":  # how wide that one is, time tells
            assert llm.engine.scheduler.num_preemptions > 0
        if settings.get("prefix_cache"):
            assert llm.engine.stats().num_prefix_hit_tokens > 0


@pytest.mark.parametrize("max_batch_tokens", [64, 200, 2048])
def test_an_echo_has_the_log_probabilities_of_the_answer(
    prompts: list[list[int]], scored: dict[float, list[Choice]], max_batch_tokens: int
) -> None:
    """Rows of prompts are rows of answers, also hundreds of them in one forward."""
    with make("root", max_batch_tokens=max_batch_tokens) as llm:
        for answers in scored.values():
            texts = [[*p, *a.token_ids] for p, a in zip(prompts[:FEW], answers, strict=True)]
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
            for prompt, answer, echoed in zip(
                prompts, answers, llm.generate(texts, params), strict=False
            ):
                assert echoed.prompt_logprobs is not None
                own = echoed.prompt_logprobs[len(prompt) :]
                assert [(e.token_id, e.logprob) for e in own if e] == chosen([answer])[0]
