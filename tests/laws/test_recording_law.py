"""The recording law: steps that are replayed on a CPU choose the tokens of steps that are not, with the
log-probabilities of those, and leave a drafting network with the same features."""

from __future__ import annotations

import random
from itertools import cycle

import pytest
import torch

from eyas import LLM
from eyas.config import DeviceConfig, DraftConfig, EngineConfig, SchedulerConfig
from eyas.core import Request, SamplingParams
from eyas.dialect import Wanted
from eyas.draft import RootDrafter, StepReport, TreeShape
from eyas.draft.timing import PLAIN
from eyas.grammar import Regex
from eyas.runner import recording
from eyas.runner.recording import Recordings
from tests.laws.cases import restless, walk_text
from tests.laws.heads import head_drafter
from tests.laws.world import LAYERS, Answers, Setting, model_drafter, new_engine, run

PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "n": 2},
)
OTHER = {"temperature": 0.7, "repetition_penalty": 1.3, "logit_bias": {70: 4.0}}
"""Of a request whose steps have no graphs."""


def answers(layers: str, *, recorded: bool) -> tuple[Answers, Recordings | None]:
    """Of requests that come and go, so that steps have one to five sequences; with preemption."""
    draw = random.Random(layers)
    first, *later = [
        Request(
            id=f"{i}",
            prompt_token_ids=walk_text(i, draw.choice((2, 9, 40)), [0, 1]),
            params=SamplingParams(
                seed=i,
                max_tokens=draw.randrange(20, 60),
                **(OTHER if i == 7 else PARAMS[i // 3 % len(PARAMS)]),
            ),
        )
        for i in range(15)
    ]
    setting = Setting(max_model_len=120, num_slots=330, max_num_seqs=5, layers=layers)
    engine = new_engine(setting, RootDrafter())
    assert isinstance(engine.launcher.graphs, Recordings)
    graphs = Recordings(torch.device("cpu"), recorded_at=1) if recorded else None
    engine.launcher.graphs = graphs
    found = run(engine, [first], arrivals={9 * i: [each] for i, each in enumerate(later)})
    assert engine.metrics.num_failed_steps == 0
    return found, graphs


@pytest.mark.parametrize("layers", ["dense", *LAYERS])
def test_steps_that_are_replayed_choose_what_others_choose(layers: str) -> None:
    expected, _ = answers(layers, recorded=False)
    found, graphs = answers(layers, recorded=True)
    assert found == expected
    assert graphs is not None
    if layers == "dense":
        assert graphs.num_replays > 100 and not graphs.refused_from
    else:  # experts are chosen, states updated and entries compressed by what the host reads
        assert graphs.refused_from == {1: 1}


KINDS = (("eagle3", 0.0), ("eagle", 0.9), ("mtp", 0.0), ("model", 0.0))
"""Drafting networks, and temperatures."""


Drafted = tuple[Answers, tuple[torch.Tensor, ...], int]
"""Answers, what the drafting network has stored by slot, and how many tokens were accepted."""


def drafted(
    kind: str, temperature: float, graphs: Recordings | None, *, topk: int = 1, num: int = 1
) -> Drafted:
    """Of `num` requests at a time, whose drafts have several sizes, among plain steps."""
    setting = Setting(max_model_len=120, num_slots=200 * num, max_num_seqs=num)
    sizes = setting.dtype, setting.num_slots, 4
    inner = (
        model_drafter(*sizes, "target")
        if kind == "model"
        else head_drafter(kind, *sizes, topk=topk)
    )
    shapes = cycle((PLAIN, PLAIN, PLAIN, inner.shape, TreeShape(2, 1, 3), inner.shape, inner.shape))
    drafter = restless(inner)
    drafter._policy.choose = lambda size: next(shapes)  # type: ignore[method-assign]
    engine = new_engine(setting, drafter)
    engine.launcher.graphs = graphs
    found: Answers = {}
    for name in "ab":  # the second one has a prefix hit
        requests = [
            Request(
                id=f"{name}{i}",
                prompt_token_ids=[0, 1, 2 + i][: 3 + i],
                params=SamplingParams(temperature=temperature, seed=5 + i, max_tokens=50 - 9 * i),
            )
            for i in range(num)
        ]
        found |= run(engine, requests)
    assert engine.metrics.num_failed_steps == 0
    return found, inner.networks[0].slot_tensors(), engine.stats().num_accepted_tokens


def compare_drafted(
    kind: str, temperature: float, graphs: Recordings, *, topk: int = 1, num: int = 1
) -> None:
    expected, expected_rows, num_accepted = drafted(kind, temperature, None, topk=topk, num=num)
    found, rows, num_found = drafted(kind, temperature, graphs, topk=topk, num=num)
    assert found == expected
    assert num_found == num_accepted > 0
    for one, other in zip(rows, expected_rows, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "temperature"), KINDS)
def test_drafts_that_are_replayed_are_those_that_are_not(kind: str, temperature: float) -> None:
    """Among plain steps, which a head has to remember."""
    graphs = Recordings(torch.device("cpu"), recorded_at=1)
    compare_drafted(kind, temperature, graphs)
    assert graphs.num_replays > 2 * graphs.num_captured >= 10 and not graphs.refused_from


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(("topk", "num"), [(3, 1), (1, 3), (2, 3)])
def test_so_are_trees_and_drafts_of_several_sequences(
    topk: int, num: int, temperature: float
) -> None:
    graphs = Recordings(torch.device("cpu"), recorded_at=1)
    compare_drafted("eagle3", temperature, graphs, topk=topk, num=num)
    assert graphs.num_replays > graphs.num_captured >= 10 and not graphs.refused_from


@pytest.mark.parametrize("most_bytes", [10_000, 30_000, 60_000, 90_000])
def test_a_draft_that_is_refused_on_the_way_computes_all_its_rows(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_BYTES", most_bytes)
    compare_drafted("model", 0.0, Recordings(torch.device("cpu"), recorded_at=1))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_trees_that_a_grammar_prunes_are_replayed_as_they_are(temperature: float) -> None:
    """Each step's tree is another one, in memory that the last one may have had."""
    config = EngineConfig(
        device=DeviceConfig(num_threads=1),
        draft=DraftConfig(drafter="head", steps=3, topk=3, nodes=9),
        scheduler=SchedulerConfig(max_num_seqs=1),
    )
    chats = [f"Tell me about the city of {city}." for city in ("Oslo", "Porto", "Rome", "Bonn")] * 2
    found = []
    with LLM(config=config) as llm:
        for records in (False, True):
            graphs = Recordings(torch.device("cpu"), recorded_at=1) if records else None
            llm.engine.launcher.graphs = graphs
            for number, text in enumerate(chats):
                wanted = Wanted(answer=Regex("[a-z ,.]{40,60}"))
                asked = llm._encoded_chat([{"role": "user", "content": text}], wanted, None, {})
                params = SamplingParams(temperature=temperature, seed=number, max_tokens=40)
                found.append(llm.generate(asked, params)[0].choices[0].token_ids)
            assert llm.engine.metrics.num_failed_steps == 0
        assert graphs is not None and graphs.num_replays > 20
        assert llm.engine.metrics.grammar.num_pruned > 50
        assert llm.engine.stats().num_accepted_tokens > 0
    assert found[: len(chats)] == found[len(chats) :]


def test_sequences_of_other_parameters_are_replayed_with_their_own() -> None:
    """Steps of one size, whose sequences sample with and without filters, or not at all."""
    kinds = (
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 0.0, "top_k": 50},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 7, "top_p": 0.8},
        {"temperature": 0.0},
    )
    pairs = [(a, b) for a in kinds for b in kinds]

    def answers(*, recorded: bool) -> list[Answers]:
        engine = new_engine(Setting(max_model_len=100), RootDrafter())
        graphs = Recordings(torch.device("cpu"), recorded_at=1) if recorded else None
        engine.launcher.graphs = graphs
        found = []
        for number, pair in enumerate(pairs):
            requests = [
                Request(
                    id=f"{i}",
                    prompt_token_ids=walk_text(3 + i, 9, [0, 1]),
                    params=SamplingParams(seed=2 * number + i, max_tokens=6, **kind),
                )
                for i, kind in enumerate(pair)
            ]
            found.append(run(engine, requests))
        assert engine.metrics.num_failed_steps == 0
        assert graphs is None or graphs.num_replays > 100
        return found

    assert answers(recorded=True) == answers(recorded=False)


class Timed(RootDrafter):
    """Notes the seconds of the steps that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def learn(self, report: StepReport) -> None:
        self.seconds.append(report.seconds)


def test_steps_are_timed_from_their_first_replay_on() -> None:
    """Neither those that run before their shape is recorded, nor the one that is recorded."""
    drafter = Timed()
    engine = new_engine(Setting(max_model_len=120), drafter)
    engine.launcher.graphs = Recordings(torch.device("cpu"), recorded_at=3)
    first, second = (
        Request(
            id=name,
            prompt_token_ids=walk_text(0, 20, [0, 1]),
            params=SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True),
        )
        for name in ("one", "two")
    )
    run(engine, [first])
    prompt, *others = drafter.seconds
    assert prompt is None and others[:3] == [None] * 3, "two before, and the recorded one"
    assert len(others) >= 7 and all(each is not None for each in others[3:])
    engine.launcher.graphs = None
    drafter.seconds.clear()
    run(engine, [second])
    assert all(each is not None for each in drafter.seconds[1:])
