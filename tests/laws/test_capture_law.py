"""The capture law: steps that run from graphs choose the tokens of steps that do not.

On a CPU, with a device's plumbing (rows by kernels, trees that the host sees late) and the least that
graphs promise (`tests.laws.captures`); what a device does of itself is in `tests/gpu`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import pytest
import torch

from eyas import LLM
from eyas.config import CacheConfig, DeviceConfig, DraftConfig, EngineConfig, SchedulerConfig
from eyas.core import Request, SamplingParams
from eyas.dialect import Wanted
from eyas.draft import RootDrafter, network
from eyas.engine.masks import Masking
from eyas.grammar import Json, Regex
from eyas.ops.add_level import add_level
from eyas.ops.keep_best import keep_best
from eyas.ops.level_rows import level_rows
from eyas.ops.merge_trees import merge_trees
from eyas.ops.node_rows import node_rows
from eyas.ops.tail_rows import tail_rows
from eyas.outputs import Choice
from eyas.runner import runner as runners
from eyas.schemas import prepare
from tests.kernels.bodies import take_kernels
from tests.laws.captures import make_unkind
from tests.laws.cases import walk_text
from tests.laws.world import IN_WINDOWS, Answers, Setting, new_engine, run
from tests.thorough import drawn, only_thorough

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs whole engines"),
    pytest.mark.skipif(find_spec("triton") is None, reason="plumbing by kernels needs triton"),
]

DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "chain": DraftConfig(drafter="head", steps=3, topk=1, nodes=4),
    "tree": DraftConfig(drafter="head", steps=2, topk=2, nodes=5),
    "blend": DraftConfig(drafter="ngram+head", steps=2, topk=1, nodes=5),
}
CITY = prepare(
    {
        "type": "object",
        "properties": {"city": {"enum": ["Porto", "Oslo"]}, "count": {"type": "integer"}},
        "required": ["city", "count"],
        "additionalProperties": False,
    },
    param="schema",
)
ASKED = (
    ("What is the capital of France?", Wanted()),
    ("What is the capital of France?", Wanted(answer=Regex("(Paris|Amsterdam)"))),
    ("Repeat this text exactly: seven green boats, seven red boats.", Wanted()),
    ("Fill a JSON object: city Oslo, count 12.", Wanted(answer=Json(CITY))),
    ("Hello! Who are you?", Wanted()),
)
PLUMBING = (add_level, keep_best, level_rows, merge_trees, node_rows, tail_rows)
"""Operations that make rows and trees. Ranking only computes: both its bodies read the same."""
TEMPERATURES = (0.0, 0.8)
ROUNDS = ((0,), (1,), (0, 2), (1, 3), (0, 1, 2), (4,), (3, 4), (1, 2, 3), (3,), (2, 4))
"""Who is asked together: free ones before constrained ones and behind them, as many at a time."""


def ask(llm: LLM, numbers: Sequence[int], temperature: float) -> list[Choice]:
    asked = []
    for number in numbers:
        question, wanted = ASKED[number]
        asked.append(llm._encoded_chat([{"role": "user", "content": question}], wanted, None, {}))
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=6) for i in numbers]
    return [output.choices[0] for output in llm.generate(asked, params)]


@pytest.fixture
def plumbing_of_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    take_kernels(monkeypatch, *PLUMBING)
    monkeypatch.setattr(runners, "usable", lambda device: True)
    monkeypatch.setattr(network, "MAX_HELD_ROWS", 0)
    monkeypatch.setattr(Masking, "prunes", False)
    yield


def test_a_model_of_two_layers_says_the_same_from_graphs(request: pytest.FixtureRequest) -> None:
    setting = Setting(max_model_len=100, flights=1)

    def answers(*, unkind: bool) -> list[Answers]:
        engine = new_engine(setting, RootDrafter())
        kept = make_unkind(engine, max_graphs=9) if unkind else None
        found = []
        for num, temperature in itertools.product((1, 3, 2), TEMPERATURES):
            requests = [
                Request(
                    id=f"{i}",
                    prompt_token_ids=walk_text(97 + i, 3 + 5 * i, [0, 1]),
                    params=SamplingParams(temperature=temperature, seed=i, max_tokens=6 + i),
                )
                for i in range(num)
            ]
            found.append(run(engine, requests))
        assert engine.metrics.num_failed_steps == 0
        assert kept is None or kept.num_replays > 30
        return found

    expected = answers(unkind=False)
    request.getfixturevalue("plumbing_of_a_device")
    assert answers(unkind=True) == expected


@pytest.mark.parametrize("layers", ["dense", "latent", IN_WINDOWS])
def test_prompts_are_stored_from_graphs_beside_other_sequences(
    layers: str, request: pytest.FixtureRequest
) -> None:
    """Prompts of any length, whole and in chunks, with a common beginning or none, while others decode
    and are preempted."""
    draw = random.Random(layers)
    prompts: list[list[int]] = []
    for i in range(14):
        shared = prompts[draw.randrange(i)][: draw.randrange(1, 60)] if i % 3 == 2 else []
        text = walk_text(i, draw.choice((2, 5, 20, 60, 90)), [0, 1])
        prompts.append([*shared, *text][:95])
    first, *later = [
        Request(
            id=f"{i}",
            prompt_token_ids=prompt,
            params=SamplingParams(
                temperature=draw.choice(TEMPERATURES), seed=i, max_tokens=draw.randrange(1, 20)
            ),
        )
        for i, prompt in enumerate(prompts)
    ]
    arrivals = {2 * i: [each] for i, each in enumerate(later)}
    setting = Setting(
        max_model_len=120,
        flights=1,
        num_slots=300,
        max_num_seqs=5,
        max_batch_tokens=64,
        layers=layers,
    )
    expected = run(new_engine(setting, RootDrafter()), [first], arrivals=arrivals)
    request.getfixturevalue("plumbing_of_a_device")
    engine = new_engine(setting, RootDrafter())
    kept = make_unkind(engine)
    assert run(engine, [first], arrivals=arrivals) == expected
    assert engine.metrics.num_failed_steps == 0
    assert kept.num_with_prompts > 9 and kept.num_spoilt > 5


@pytest.mark.parametrize(
    ("drafter", "most"),
    [
        *[("tree", 9), ("blend", 640)],
        *only_thorough(("root", 9), ("chain", 9), ("chain", 640), ("blend", 9)),
    ],
)
def test_steps_from_graphs_choose_what_others_choose(
    drafter: str, most: int, request: pytest.FixtureRequest
) -> None:
    """With room for all shapes of steps, and for two or three; some run without graphs at first."""
    config = EngineConfig(
        device=DeviceConfig(num_threads=1),
        draft=DRAFTING[drafter],
        scheduler=SchedulerConfig(flights=1, max_num_seqs=4),
    )
    with LLM(config=config) as llm:
        alone = {
            (number, temperature): ask(llm, [number], temperature)[0].token_ids
            for number, temperature in itertools.product(range(len(ASKED)), TEMPERATURES)
        }
        request.getfixturevalue("plumbing_of_a_device")
        kept = make_unkind(llm.engine, max_graphs=most, captured_at=2 if most < 100 else 1)
        llm.engine.forget_prefixes()
        in_turn = zip(itertools.cycle(TEMPERATURES), ROUNDS[:7])
        for temperature, numbers in drawn(in_turn, itertools.product(TEMPERATURES, ROUNDS)):
            for number, choice in zip(numbers, ask(llm, numbers, temperature), strict=True):
                assert (choice.token_ids, choice.error) == (alone[number, temperature], None)
        llm.engine.check()
        assert llm.engine.metrics.num_failed_steps == 0
        assert kept.num_replays > 50 and kept.num_spoilt > 20
        assert most < 100 or kept.num_with_prompts
        if drafter != "root":
            assert llm.engine.stats().num_accepted_tokens > 0


@pytest.mark.parametrize("drafter", ["chain", "blend"])
def test_drafts_after_prompts_from_graphs_are_those_of_others(
    drafter: str, request: pytest.FixtureRequest
) -> None:
    """Prompts of several sizes beside as many sequences: each has its own seats and slots, and so has
    padding."""
    config = EngineConfig(
        device=DeviceConfig(num_threads=1),
        draft=DRAFTING[drafter],
        cache=CacheConfig(prefix_cache=False),
        scheduler=SchedulerConfig(flights=1, max_num_seqs=4, max_batch_tokens=64),
    )
    chats = [
        [{"role": "user", "content": " ".join(f"{i} boats," for i in range(count, 2 * count))}]
        for count in (2, 3, 2, 60, 7, 25, 40, 3)
    ]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=12) for i in range(len(chats))]
    with LLM(config=config) as llm:
        expected = [output.token_ids for output in llm.chat(chats, params)]
        request.getfixturevalue("plumbing_of_a_device")
        kept = make_unkind(llm.engine)
        assert [output.token_ids for output in llm.chat(chats, params)] == expected
        alone = zip(chats, params, strict=True)
        assert [llm.chat([chat], [one])[0].token_ids for chat, one in alone] == expected
        llm.engine.check()
        assert llm.engine.metrics.num_failed_steps == 0
        assert kept.num_with_prompts > 9
