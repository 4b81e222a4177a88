"""The laws on a GPU, as far as the reference attention goes there: slow is fine, wrong is not."""

from __future__ import annotations

import itertools
import random

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
from eyas.core import TokenLogprob
from eyas.outputs import GenerationOutput
from eyas.runner.graphs import StepGraphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

QUESTIONS = (
    "What is the capital of France?",
    "Repeat this text exactly: seven green boats, seven red boats, seven green boats.",
    "Specify a random city.",
    "Fill a JSON object with the field city set to Oslo and the field count set to 12.",
    "Hello! Who are you?",
)

NUM_SLOTS = 20_000
"""Without a number an engine takes most of the device's memory, and tests run beside each other."""

DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "ngram": DraftConfig(drafter="ngram", nodes=5),
    "model chain": DraftConfig(drafter="model", model="builtin", steps=4, topk=1, nodes=5),
    "model tree": DraftConfig(drafter="model", model="builtin", steps=3, topk=3, nodes=8),
    "head chain": DraftConfig(drafter="head", steps=5, topk=1, nodes=6),
    "head tree": DraftConfig(drafter="head", steps=5, topk=4, nodes=16),
    "blend": DraftConfig(drafter="ngram+head", nodes=12),
    "blend of chains": DraftConfig(drafter="ngram+head", steps=5, topk=1, nodes=10),
    "narrow": DraftConfig(drafter="head", steps=2, topk=1, nodes=3),
    "auto": DraftConfig(),
    "auto blend": DraftConfig(drafter="ngram+head"),
}


def make(device: str, dtype: str = "float32", drafter: str = "root", flights: int = 1) -> LLM:
    config = EngineConfig(
        model=ModelConfig(path="builtin", dtype=dtype),
        device=DeviceConfig(device=device, num_threads=4),
        draft=DRAFTING[drafter],
        cache=CacheConfig(num_slots=NUM_SLOTS),
        scheduler=SchedulerConfig(flights=flights, max_batch_tokens=64),
    )
    return LLM(config=config)


def ask(llm: LLM, temperature: float, *, captured: bool = False) -> list[GenerationOutput]:
    """Of penalties and log-probabilities no graphs are made."""
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = [
        SamplingParams(
            temperature=temperature,
            top_p=0.95,
            max_tokens=60,
            seed=11 + i,
            logprobs=None if captured else 2,
            repetition_penalty=1.1 if i % 2 and not captured else 1.0,
        )
        for i in range(len(chats))
    ]
    outputs = llm.chat(chats, params)
    llm.engine.check()
    return outputs


Answers = dict[tuple[float, bool], list[GenerationOutput]]
"""By temperature, and whether the steps are captured on a device."""


def tokens(outputs: list[GenerationOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def logprobs(output: GenerationOutput) -> list[TokenLogprob]:
    return output.choices[0].logprobs or []


@pytest.fixture(scope="module")
def on_cpu() -> Answers:
    llm, ways = make("cpu", flights=0), itertools.product((0.0, 0.7), (False, True))
    return {way: ask(llm, way[0], captured=way[1]) for way in ways}


@pytest.mark.parametrize("drafter", DRAFTING)
@pytest.mark.parametrize("flights", [0, 1])
def test_gpu_gives_the_tokens_of_the_cpu_whatever_drafts(
    on_cpu: Answers, drafter: str, flights: int
) -> None:
    llm = make("cuda", drafter=drafter, flights=flights)
    for (temperature, captured), expected in on_cpu.items():
        found = ask(llm, temperature, captured=captured)
        assert tokens(found) == tokens(expected)
        for one, other in zip(found, expected, strict=True):
            for a, b in zip(*map(logprobs, (one, other)), strict=True):
                assert abs(a.logprob - b.logprob) < 2e-3
    graphs_kept = llm.engine.launcher.graphs
    assert graphs_kept is not None and graphs_kept.num_replays > 100
    stats = llm.engine.stats()
    assert llm.engine.metrics.num_failed_steps == 0
    if drafter not in ("root", "ngram", "auto", "auto blend"):
        assert stats.num_accepted_tokens > 50
    if drafter in ("head chain", "head tree"):
        steps = sum(output.choices[0].usage.num_steps for output in found)
        assert sum(len(output.token_ids) for output in found) > 2.0 * steps


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_on_gpu_stay_near_float32(dtype: str) -> None:
    exact, coarse = make("cuda"), make("cuda", dtype=dtype)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompt = exact.encode_chat([{"role": "user", "content": QUESTIONS[3]}])
    (a,), (b,) = exact.generate([prompt], params), coarse.generate([prompt], params)
    assert a.prompt_logprobs is not None and b.prompt_logprobs is not None
    pairs = list(zip(a.prompt_logprobs[1:], b.prompt_logprobs[1:], strict=True))
    mean = sum(abs(x.logprob - y.logprob) for x, y in pairs) / len(pairs)
    assert mean < 0.05


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_self_check_gives_its_verdict_on_this_gpu(dtype: str) -> None:
    llm = make("cuda", dtype=dtype)
    assert llm.info.exact_reason
    print(f"exact: {llm.info.exact}, {llm.info.exact_reason}")


@pytest.mark.parametrize("drafter", ["root", "head chain", "head tree", "blend"])
def test_shapes_of_steps_that_make_room_for_others_change_nothing(drafter: str) -> None:
    """Batches of many sizes and lengths, with graphs for two or three shapes of them kept."""
    config = EngineConfig(
        model=ModelConfig(path="builtin"),
        device=DeviceConfig(device="cuda", num_threads=4),
        draft=DRAFTING[drafter],
        cache=CacheConfig(num_slots=NUM_SLOTS),
        scheduler=SchedulerConfig(max_num_seqs=6),
    )
    llm = LLM(config=config)
    llm.engine.launcher.graphs = StepGraphs(llm.engine.table.device, max_graphs=11)
    padding = "Here is a list of words: " + "green boat, " * 180
    texts = [*QUESTIONS, padding + QUESTIONS[1]]
    chats = [[{"role": "user", "content": text}] for text in texts]
    params = [SamplingParams(temperature=0.8, max_tokens=24 + 9 * i, seed=i) for i in range(6)]
    alone = [llm.chat([chat], [one])[0].token_ids for chat, one in zip(chats, params, strict=True)]
    draw = random.Random(5)
    for _ in range(12):
        chosen = draw.sample(range(6), draw.randint(1, 6))
        outputs = llm.chat([chats[i] for i in chosen], [params[i] for i in chosen])
        assert [output.token_ids for output in outputs] == [alone[i] for i in chosen]
        reasons = {output.choices[0].finish_reason for output in outputs}
        assert reasons <= {"stop", "length"}
    llm.engine.check()
    llm.close()


@pytest.mark.parametrize("drafter", ["root", "head chain"])
def test_prompts_from_graphs_give_the_tokens_of_those_without(drafter: str) -> None:
    """Prompts of many lengths, of which some share a graph, one after the other and together."""
    draw = random.Random(drafter)
    texts = [
        " ".join(draw.choices("green boat seven red old".split(), k=n)) for n in range(5, 300, 13)
    ]
    chats = [[{"role": "user", "content": f"{i}: {text}"}] for i, text in enumerate(texts)]
    params = [SamplingParams(temperature=0.8, max_tokens=9, seed=i) for i in range(len(chats))]
    found = []
    for captures in (True, False):
        config = EngineConfig(
            model=ModelConfig(path="builtin"),
            device=DeviceConfig(device="cuda", num_threads=4),
            draft=DRAFTING[drafter],
            cache=CacheConfig(num_slots=NUM_SLOTS, prefix_cache=False),
            scheduler=SchedulerConfig(max_num_seqs=4, max_graph_batch=None if captures else 0),
        )
        with LLM(config=config) as llm:
            launcher = llm.engine.launcher
            if captures:
                assert launcher.graphs is not None
                limits = launcher.graphs.limits
                assert limits.prompt_rows > 500
                launcher.graphs = StepGraphs(llm.engine.table.device, limits)
            alone = [
                llm.chat([chat], [one])[0].token_ids
                for chat, one in zip(chats, params, strict=True)
            ]
            together = [output.token_ids for output in llm.chat(chats, params)]
            assert together == alone
            found.append(alone)
            if captures:
                shapes = list(launcher.graphs._shapes.values())
                with_prompts = [stages for stages in shapes if stages.read is not None]
                assert len(with_prompts) > 3 and all(len(stages) for stages in with_prompts)
                assert not any(stages._has_given_up for stages in shapes)
            llm.engine.check()
            assert llm.engine.metrics.num_failed_steps == 0
    assert found[0] == found[1]
