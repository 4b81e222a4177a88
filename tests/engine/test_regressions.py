"""What once went wrong in the engine and its rooms, each in the smallest form that showed it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from eyas.cache.radix import RadixNode, RadixTree
from eyas.cache.slots import SlotPool
from eyas.core import Request, RequestError, SamplingParams
from eyas.engine.flight import Flight, Landed
from eyas.engine.stops import StopChecker
from eyas.engine.verifier import raw_logprobs
from eyas.llm import LLM
from eyas.transfer import Outbox
from tests.laws.cases import walk_text
from tests.laws.drafters import Branches, HostDrafter
from tests.laws.world import Setting, model_drafter, new_engine, run, weights

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, seed=1)
PROMPT = walk_text(97, 30, [0, 1])


@pytest.mark.parametrize("flights", [0, 1])
@pytest.mark.parametrize("method", ["read", "send_results"])
def test_a_step_whose_results_are_lost_ends_its_requests_and_holds_nothing(
    method: str, flights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(Flight, method)
    calls = 0

    def breaks_once(flight: Flight, *outbox: Outbox) -> Landed | None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("a device's fault, on purpose")
        result: Landed | None = whole(flight, *outbox)
        return result

    monkeypatch.setattr(Flight, method, breaks_once)
    engine = new_engine(Setting(flights=flights))
    early = Request(id="early", prompt_token_ids=PROMPT, params=GREEDY)
    late = Request(id="late", prompt_token_ids=PROMPT, params=GREEDY)
    answers = run(engine, [early], arrivals={8: [late]})
    assert answers["early", 0].finish_reason == "error"
    assert answers["late", 0].finish_reason == "length"


@contextmanager
def infinite_embedding(token: int) -> Iterator[None]:
    """The tiny model, with one token that it cannot compute with."""
    row = weights(torch.float32).target.embedding.weight_VD[token]
    kept = row.clone()
    row.fill_(float("inf"))
    try:
        yield
    finally:
        row.copy_(kept)


class Drafts200(HostDrafter):
    chains = True

    def think(self, source: object, tokens: list[int], room: int) -> Branches:
        return [(i, 200) for i in range(room)]


def test_a_token_that_gives_no_numbers_spoils_no_shared_prefix_and_no_draft() -> None:
    asked = Request(id="asked", prompt_token_ids=[*PROMPT, 97], params=GREEDY)
    expected = run(new_engine(Setting()), [asked])
    with infinite_embedding(200):
        engine = new_engine(Setting())
        run(engine, [Request(id="first", prompt_token_ids=[*PROMPT, 200, 97], params=GREEDY)])
        after = run(engine, [asked])
        drafted = run(new_engine(Setting(), Drafts200(3)), [asked])
    assert engine.stats().num_prefix_hit_tokens >= len(PROMPT)
    assert after == expected
    assert drafted == expected


@pytest.mark.parametrize("prompt", [[200], [200, 200, 97], [97, 98, 200]], ids=str)
def test_a_request_that_gives_no_numbers_leaves_the_engine_well(prompt: list[int]) -> None:
    asked = Request(id="asked", prompt_token_ids=[97, 98], params=GREEDY)
    expected = run(new_engine(Setting()), [asked])
    with infinite_embedding(200):
        engine = new_engine(Setting())
        run(engine, [Request(id="first", prompt_token_ids=prompt, params=GREEDY)])
        assert run(engine, [asked]) == expected


def test_accepted_tokens_beyond_the_end_are_not_counted() -> None:
    setting = Setting()
    drafter = model_drafter(setting.dtype, setting.num_slots, 9, "target")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    request = Request(id="short", prompt_token_ids=PROMPT, params=params)
    usage = run(new_engine(setting, drafter), [request])["short", 0].usage
    assert usage is not None
    assert usage.num_accepted_tokens <= usage.num_output_tokens == 4


def count_nodes(tree: RadixTree) -> int:
    total, stack = 0, list(tree._roots.values())
    while stack:
        children: list[RadixNode] = list(stack.pop().children.values())
        total += len(children)
        stack.extend(children)
    return total


def test_the_prefix_tree_knows_its_nodes_and_forgets_empty_namespaces() -> None:
    draw = np.random.default_rng(0)
    tree = RadixTree()
    for step in range(300):
        namespace = str(draw.integers(5))
        tokens = draw.integers(0, 2, size=draw.integers(1, 9))
        tree.match(draw.integers(0, 2, size=3), f"never stored {step}")
        tree.insert(tokens, np.arange(len(tokens)), namespace)
        if step % 3 == 0:
            tree.evict(int(draw.integers(1, 12)))
        assert tree._num_nodes == count_nodes(tree)
        assert all(root.children for root in tree._roots.values())
    tree.evict(tree.num_slots)
    assert tree.num_slots == tree._num_nodes == len(tree._roots) == 0


def test_a_pool_that_is_whole_again_hands_out_low_slots_first() -> None:
    pool = SlotPool(9)
    first, second = pool.take(4), pool.take(5)
    pool.give(first[::2])
    pool.give(second)
    pool.give(first[1::2])
    assert pool.take(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("num_top", [1, 3, 20])
def test_the_likeliest_tokens_are_those_of_a_stable_sort(num_top: int) -> None:
    generator = torch.Generator().manual_seed(num_top)
    logits_RV = torch.randint(0, 6, (40, 271), generator=generator).float()
    logits_RV[1] = 0.0
    _, ids_RN, top_RN = raw_logprobs(logits_RV, torch.zeros(40, dtype=torch.int64), num_top)
    ordered = logits_RV.log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    assert torch.equal(ids_RN, ordered.indices[:, :num_top])
    assert torch.equal(top_RN, ordered.values[:, :num_top])


def test_log_probabilities_of_a_row_without_numbers_harm_no_other_row() -> None:
    logits_RV = torch.randn(2, 271)
    logits_RV[0] = float("nan")
    _, ids_RN, _ = raw_logprobs(logits_RV, torch.zeros(2, dtype=torch.int64), 3)
    assert ids_RN[1].tolist() == logits_RV[1].topk(3).indices.tolist()


class FourLetters:
    def push(self, token_id: int) -> str:
        return "end." if token_id else "abcd"

    def finish(self) -> str:
        return ""


def test_a_long_answer_keeps_little_text_and_still_finds_its_stop() -> None:
    params = SamplingParams(stop=("cdend.abcden",), logprobs=0)
    checker = StopChecker(params, frozenset(), 10**9, FourLetters())
    text, num_tokens = "", 0
    for token_id in [0] * 5000 + [1] + [0] * 3000 + [1, 0, 1, 0, 0]:
        shown = checker.push([token_id])
        text += shown.text
        num_tokens += len(shown.token_ids)
        assert len(checker._text) < 5000
        if shown.finish_reason is not None:
            break
    assert shown.finish_reason == "stop"
    assert text == "abcd" * 5000 + "end." + "abcd" * 2999 + "ab"
    assert num_tokens == 8004


@pytest.mark.parametrize(
    "values",
    [
        {"stop": 3},
        {"top_k": -2},
        {"temperature": True},
        {"temperature": 10**400},
        {"top_p": float("nan")},
        {"logit_bias": {3: 10**400}},
        {"logit_bias": {3: float("nan")}},
        {"logit_bias": {3: "1"}},
    ],
    ids=str,
)
def test_parameters_of_a_wrong_kind_are_refused_by_name(values: dict[str, object]) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert refused.value.param == next(iter(values))


def test_parameters_have_the_forms_of_other_engines_and_libraries() -> None:
    params = SamplingParams(stop="END", top_k=-1, temperature=np.float32(0.5), top_p=np.float64(1))  # type: ignore[arg-type]
    assert params == SamplingParams(stop=("END",), top_k=0, temperature=0.5)
    assert type(params.temperature) is float


def test_a_stream_that_nobody_reads_ends_when_it_is_dropped() -> None:
    with LLM("builtin", drafter="root") as llm:
        unread = llm.stream(PROMPT, GREEDY)
        assert llm.engine.has_work()
        del unread
        gc.collect()
        llm.engine.step()
        assert not llm.engine.has_work() and not llm.shared_engine._inboxes
        with pytest.raises(RequestError):
            llm.stream([], GREEDY)
        assert len(list(llm.stream(PROMPT, GREEDY))) >= 1
