"""The drafter law with the built-in model and its trained head, as users run them.

Here most drafts are accepted, several tokens at a time: tokens, texts, log-probabilities and endings
are those of plain decoding all the same.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from eyas.config import CacheConfig, DraftConfig, EngineConfig, SchedulerConfig
from eyas.core import SamplingParams
from eyas.llm import LLM
from eyas.outputs import GenerationOutput
from tests.thorough import drawn, only_thorough

QUESTIONS = (
    "Write the numbers from 0 to 27.",
    "What is the capital of France?",
    "Fill a JSON object with the field city set to Oslo and the field count set to 12.",
    "Repeat this text exactly: seven green boats, seven red boats, seven green boats.",
    "Hello! Who are you?",
    "A shop has 12 apples and sells 5 of them. How many are left?",
)
TEMPERATURES = (0.0, 0.7, 1.0)
DRAFTING = {
    "chain": DraftConfig(drafter="head", steps=5, topk=1, nodes=6),
    "tree": DraftConfig(drafter="head", steps=5, topk=4, nodes=16),
    "auto": DraftConfig(),
    "blend": DraftConfig(drafter="ngram+head", nodes=12),
    "itself": DraftConfig(drafter="model", model="builtin", steps=4, topk=2, nodes=9),
}
AGAIN = drawn(("tree", "itself"), tuple(DRAFTING))
"""Drafters that are asked twice."""


def make(draft: DraftConfig, flights: int = 0) -> LLM:
    return LLM(
        config=EngineConfig(
            cache=CacheConfig(num_slots=6000),
            draft=draft,
            scheduler=SchedulerConfig(flights=flights, max_batch_tokens=192, max_num_seqs=12),
        )
    )


def ask(llm: LLM) -> list[GenerationOutput]:
    """Every question at two temperatures, or at every one with `--thorough`, all at once."""
    asked = [
        (i, question, temperature)
        for j, temperature in enumerate(TEMPERATURES)
        for i, question in enumerate(QUESTIONS)
        if drawn((i + j) % 3 != 2, True)
    ]
    chats = [[{"role": "user", "content": question}] for _, question, _ in asked]
    params = [
        SamplingParams(
            temperature=temperature,
            top_p=0.95 if i % 3 == 0 else 1.0,
            frequency_penalty=0.2 if i % 3 == 1 else 0.0,
            max_tokens=drawn(20, 48),
            seed=5 + i,
            logprobs=1,
            n=2 if i == 1 else 1,
            stop=("boats, seven red",) if i == 3 else (),
        )
        for i, _, temperature in asked
    ]
    return llm.chat(chats, params)


@lru_cache(maxsize=1)
def plain() -> list[GenerationOutput]:
    return ask(make(DraftConfig(drafter="root")))


@pytest.mark.parametrize("flights", [*only_thorough(0), 1])
@pytest.mark.parametrize("name", DRAFTING)
def test_the_trained_head_changes_nothing_and_finds_much(name: str, flights: int) -> None:
    llm = make(DRAFTING[name], flights)
    rounds = 2 if name in AGAIN else 1  # the second time every prompt is a prefix hit
    for _ in range(rounds):
        for one, other in zip(ask(llm), plain(), strict=True):
            for a, b in zip(one.choices, other.choices, strict=True):
                assert a.token_ids == b.token_ids
                assert (a.text, a.finish_reason) == (b.text, b.finish_reason)
                assert a.logprobs == b.logprobs
    stats = llm.engine.stats()
    assert llm.engine.metrics.num_failed_steps == 0
    assert rounds == 1 or stats.num_prefix_hit_tokens > 0
    drafts = stats.drafts
    assert sum(drafts.accepted_by_depth) == stats.num_accepted_tokens
    if name != "auto":  # its drafts are as long as the machine's own times say that it pays
        assert stats.num_accepted_tokens > 2.0 * drafts.num_drafts
    assert drafts.endings.keys() <= {"leaf", "target", "stop"}
    llm.engine.check()
