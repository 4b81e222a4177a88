"""Grammars on a GPU: the answers of the CPU, whatever drafts and however far the device runs ahead."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
from eyas.dialect import Wanted, tool_specs
from eyas.grammar import Json, Regex
from eyas.outputs import Choice
from eyas.schemas import prepare
from eyas.transfer import HostCopy, Inbox, Outbox

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "forced": DraftConfig(drafter="forced"),
    "chain": DraftConfig(drafter="head+forced", steps=5, topk=1, nodes=6),
    "tree": DraftConfig(drafter="head+forced", steps=5, topk=4, nodes=16),
    "blend": DraftConfig(drafter="ngram+head", nodes=12),
    "auto": DraftConfig(),
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"enum": ["Porto", "Oslo"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def make(device: str, drafter: str = "root", flights: int = 1) -> LLM:
    return LLM(
        config=EngineConfig(
            model=ModelConfig(path="builtin", dtype="float32"),
            device=DeviceConfig(device=device, num_threads=4),
            draft=DRAFTING[drafter],
            cache=CacheConfig(num_slots=20_000),
            scheduler=SchedulerConfig(flights=flights, max_batch_tokens=64),
        )
    )


def ask(
    llm: LLM, temperature: float, *, freely: bool = False, logprobs: int | None = None
) -> list[Choice]:
    """Constrained answers, calls, and free ones among them, in one batch; or none but free ones. With
    logprobs their verdicts are not captured."""
    tools = tool_specs(TOOLS)
    person = Json(prepare(PERSON, param="schema"))
    wanted = [
        ("Maria Silva is 34 and lives in Porto. As JSON.", Wanted(answer=person)),
        ("What is the capital of France?", Wanted(answer=Regex("(Paris|Amsterdam)"))),
        ("What is the weather in Oslo?", Wanted(tools=tools, choice="required")),
        ("What is the weather in Oslo?", Wanted(tools=tools, choice="auto")),
        ("Write the numbers from 0 to 12.", Wanted()),
        ("Write a word problem.", Wanted(max_reasoning_tokens=5)),
    ]
    asked = []
    for question, want in wanted:
        messages = [{"role": "user", "content": question}]
        asked.append(llm._encoded_chat(messages, Wanted() if freely else want, None, {}))
    params = [
        SamplingParams(temperature=temperature, seed=3 + i, max_tokens=120, logprobs=logprobs)
        for i in range(len(asked))
    ]
    outputs = llm.generate(asked, params)
    llm.engine.check()
    return [output.choices[0] for output in outputs]


@pytest.fixture(scope="module")
def on_cpu() -> dict[float, list[Choice]]:
    llm = make("cpu", flights=0)
    return {temperature: ask(llm, temperature) for temperature in (0.0, 1.0)}


@pytest.mark.parametrize("drafter", DRAFTING)
@pytest.mark.parametrize("flights", [0, 1])
def test_constrained_answers_are_those_of_the_cpu(
    on_cpu: dict[float, list[Choice]], drafter: str, flights: int
) -> None:
    llm = make("cuda", drafter, flights)
    for (temperature, expected), logprobs in itertools.product(on_cpu.items(), (None, 0)):
        found = ask(llm, temperature, logprobs=logprobs)
        for one, other in zip(found, expected, strict=True):
            assert one.token_ids == other.token_ids
            assert (one.finish_reason, one.error) == (other.finish_reason, None)
        assert found[1].content in ("Paris", "Amsterdam")
        assert found[0].finish_reason == "stop" and found[2].finish_reason == "stop"
        value = json.loads(found[0].content)
        assert list(value) == ["name", "age", "city"] and value["city"] in ("Porto", "Oslo")
        assert [call.name for call in found[2].tool_calls][:1] == ["get_weather"]
    if drafter != "root":
        assert llm.engine.stats().num_accepted_tokens > 0


LATE = 2_000_000
"""Clock cycles, a millisecond."""


def delay(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Results leave for the host, inputs of the host arrive, or the device works a millisecond late;
    masks are another matter."""
    send, arriving, settle = Outbox.send, Inbox.arriving, Outbox.settle

    def leave_late(self: Outbox, tensors: Mapping[str, torch.Tensor]) -> HostCopy:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(LATE)
        return send(self, tensors)

    @contextmanager
    def arrive_late(self: Inbox, after: torch.cuda.Event | None = None) -> Iterator[None]:
        with arriving(self, after):
            torch.cuda._sleep(LATE)
            yield

    def work_late(self: Outbox) -> None:
        settle(self)
        torch.cuda._sleep(LATE)

    if what == "results":
        monkeypatch.setattr(Outbox, "send", leave_late)
    elif what == "inputs":
        monkeypatch.setattr(Inbox, "arriving", arrive_late)
    elif what == "work":
        monkeypatch.setattr(Outbox, "settle", work_late)


@pytest.mark.parametrize("drafter", ["chain", "tree"])
@pytest.mark.parametrize("late", ["results", "inputs", "work"])
def test_answers_are_the_same_however_late_something_is(
    on_cpu: dict[float, list[Choice]], drafter: str, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps without masks come first, so that what masks change is captured behind the rest."""
    llm = make("cuda", drafter)
    delay(monkeypatch, late)
    for temperature, expected in on_cpu.items():
        free = ask(llm, temperature, freely=True)
        found = ask(llm, temperature)
        for one, other in zip(found, expected, strict=True):
            assert (one.token_ids, one.error) == (other.token_ids, None)
        again = ask(llm, temperature, freely=True)
        assert [one.token_ids for one in again] == [one.token_ids for one in free]
    assert llm.engine.metrics.num_failed_steps == 0
    assert replays(llm) > 100


def replays(llm: LLM) -> int:
    """Stages that ran from graphs."""
    graphs = llm.engine.launcher.graphs
    return 0 if graphs is None else graphs.num_replays


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("drafter", ["chain", "tree", "blend"])
def test_a_step_waits_for_nothing_but_results_trees_and_masks(drafter: str) -> None:
    """Those are waited for by events, which torch does not count as synchronisation."""
    llm = make("cuda", drafter)
    for _ in range(2):  # what prepares or captures may wait
        ask(llm, 0.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = ask(llm, 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(choice.error is None for choice in found)
    assert replays(llm) > 100
    assert llm.engine.metrics.num_failed_steps == 0
