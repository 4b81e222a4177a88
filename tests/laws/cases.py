"""Drawn cases: requests of every kind, drafters of every kind, engines run in every way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import torch
from hypothesis import strategies as st

from eyas.core import Request, SamplingParams
from eyas.draft import (
    AdaptiveDrafter,
    BlendDrafter,
    Drafter,
    ForcedDrafter,
    NgramDrafter,
    RootDrafter,
)
from eyas.draft.costs import Costs
from eyas.draft.shape_policy import ShapePolicy, usual_shapes
from tests.laws.automata import toy
from tests.laws.drafters import (
    Adversary,
    Changing,
    NoiseReader,
    Oracle,
    RaggedChains,
    Raises,
    RandomTrees,
    Seen,
    Watched,
)
from tests.laws.heads import head_drafter
from tests.laws.world import (
    EOS,
    STOP_ID,
    VOCAB,
    Answers,
    Setting,
    bigrams,
    model_drafter,
    new_engine,
    run,
)

MAX_LENGTH = 76
DRAFTERS = (
    "ngram",
    "random trees",
    "ragged chains",
    "adversary",
    "noise reader",
    "oracle chain",
    "oracle tree",
    "same model",
    "other model",
    "same model tree",
    "other model tree",
    "eagle chain",
    "eagle tree",
    "eagle3 chain",
    "eagle3 tree",
    "random eagle3 tree",
    "mtp chain",
    "mtp tree",
    "blend of three",
    "blend with a head",
    "adaptive",
    "adaptive head",
    "raises",
    "raises, a head",
    "changing",
    "forced",
    "forced with an oracle",
    "forced with an adaptive head",
)
TOYS = (
    *("modular 5", "modular 7", "modular 2", "modular 4:9"),
    *("liar 5", "lane 7", "lane 11", "fused 5:60"),
)
STOPS = ("e", "ab", "on", "12", "er a", "\u20ac", "kv", "mc", "vin", "abc", "j1", "1", "er", "verm")
Known = dict[tuple[int, int, tuple[int, ...]], list[int]]


@dataclass(frozen=True)
class Case:
    """requests and how they are run. arrivals[i]: the step before which request i comes.

    rounds: the same requests again on the same engine, so that everything is a prefix hit.
    """

    drafter: str
    num_tokens: int
    requests: tuple[Request, ...]
    arrivals: tuple[int, ...]
    setting: Setting
    rounds: int = 1
    seed: int = 0


@dataclass
class Tally:
    """What a run of cases amounted to."""

    cases: int = 0
    two_accepted: int = 0
    refused_inside: int = 0
    refused_below_accepted: int = 0
    preempted: int = 0
    hits: int = 0
    constrained: int = 0
    tokens: int = 0
    seen: Seen = field(default_factory=Seen)
    endings: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        seen = self.seen
        mean = seen.accepted / max(1, seen.steps)
        shares = {
            "two or more accepted": self.two_accepted,
            "refused inside": self.refused_inside,
            "refused below an accepted node": self.refused_below_accepted,
            "preempted": self.preempted,
            "prefix hits": self.hits,
            "constrained": self.constrained,
        }
        text = ", ".join(f"{k} {v / max(1, self.cases):.0%}" for k, v in shares.items())
        return (
            f"{self.cases} cases, {self.tokens} tokens, mean accepted {mean:.2f} of a drafted step; "
            f"{text}; endings {dict(sorted(self.endings.items()))}"
        )


def new_drafter(case: Case, known: Known) -> Drafter:
    """The case's drafter; `known` is what the root drafter answered."""
    n, dtype, slots = case.num_tokens, case.setting.dtype, case.setting.num_slots
    layers = case.setting.layers
    match case.drafter:
        case "root":
            return RootDrafter()
        case "ngram":
            return NgramDrafter(n, min_match=1)
        case "random trees":
            return RandomTrees(n, case.seed)
        case "ragged chains":
            return RaggedChains(n, case.seed)
        case "adversary":
            return Adversary(n, case.seed)
        case "noise reader":
            return NoiseReader(n, case.seed)
        case "oracle chain":
            return Oracle(n, known, decoys=False, seed=case.seed)
        case "oracle tree":
            return Oracle(n, known, decoys=True, seed=case.seed)
        case "same model":
            return model_drafter(dtype, slots, n, "target")
        case "other model":
            return model_drafter(dtype, slots, n, "other")
        case "same model tree":
            return model_drafter(dtype, slots, n, "target", topk=3)
        case "other model tree":
            return model_drafter(dtype, slots, n, "other", topk=2)
        case "eagle chain" | "eagle3 chain" | "mtp chain":
            return head_drafter(case.drafter.split()[0], dtype, slots, n, topk=1, layers=layers)
        case "eagle tree" | "eagle3 tree" | "mtp tree":
            return head_drafter(case.drafter.split()[0], dtype, slots, n, topk=3, layers=layers)
        case "random eagle3 tree":
            return head_drafter("eagle3", dtype, slots, n, topk=2, is_lucky=False)
        case "blend of three":
            ngram = NgramDrafter(max(1, n // 2), min_match=1)
            model = model_drafter(dtype, slots, n, "target", topk=2)
            return BlendDrafter(
                [ngram, Oracle(n, known, decoys=True, seed=case.seed), model], n + 1
            )
        case "blend with a head":
            ngram = NgramDrafter(max(1, n // 2), min_match=1)
            return BlendDrafter([head_drafter("eagle3", dtype, slots, n, topk=3), ngram], n + 1)
        case "adaptive head":
            return restless(head_drafter("eagle3", dtype, slots, n, topk=2))
        case "adaptive":
            return restless(model_drafter(dtype, slots, n, "target", topk=2))
        case "forced":
            return ForcedDrafter(RootDrafter(), n)
        case "forced with an oracle":
            half = n // 2
            oracle = Oracle(half, known, decoys=True, seed=case.seed) if half else RootDrafter()
            return ForcedDrafter(oracle, n - half)
        case "forced with an adaptive head":
            if n == 1:
                return ForcedDrafter(RootDrafter(), n)
            head = head_drafter("eagle3", dtype, slots, n - n // 2, topk=2)
            return ForcedDrafter(restless(head), n // 2)
        case "raises":
            return Raises(Oracle(n, known, decoys=True, seed=case.seed))
        case "raises, a head":
            return Raises(head_drafter("eagle3", dtype, slots, n, topk=2))
        case "changing":
            return Changing(
                [
                    Oracle(n, known, decoys=True, seed=case.seed),
                    NgramDrafter(max(1, n - 1), min_match=1),
                    RootDrafter(),
                    RandomTrees(n, case.seed),
                    model_drafter(dtype, slots, max(1, n // 2), "target"),
                    head_drafter("eagle", dtype, slots, n, topk=2),
                ]
            )
        case _:
            raise AssertionError(case.drafter)


def restless(inner: Drafter) -> AdaptiveDrafter:
    """`inner` with all its shapes in turns, from no draft to the widest."""
    shape = inner.shape
    shapes = usual_shapes(shape)
    policy = ShapePolicy([*shapes, shape], Costs((1,), (1.0,)), Costs((1,), (0.2,)))
    turns = itertools.cycle(policy.shapes)
    policy.choose = lambda size: next(turns)  # type: ignore[method-assign]
    return AdaptiveDrafter(inner, policy)


def root_answers(case: Case) -> tuple[Answers, Known]:
    """What plain decoding gives: all requests at once, nothing shared, room for everything."""
    setting = case.setting
    plain = Setting(dtype=setting.dtype, max_model_len=setting.max_model_len, layers=setting.layers)
    engine = new_engine(replace(plain, prefix_cache=False), RootDrafter())
    answers = run(engine, case.requests, check=False)
    known: Known = {}
    for request in case.requests:
        for index in range(request.params.n):
            answer = answers[request.id, index]
            assert answer.seed is not None
            key = (answer.seed, index, tuple(request.prompt_token_ids))
            known[key] = answer.token_ids
    return answers, known


def run_case(case: Case, known: Known, tally: Tally, *, check: bool = False) -> list[Answers]:
    """Run it as it says; one set of answers a round."""
    seen = Seen()
    drafter = Watched(new_drafter(case, known), seen)
    engine = new_engine(case.setting, drafter)
    rounds = []
    for _ in range(case.rounds):
        arrivals: dict[int, list[Request]] = {}
        for request, step in zip(case.requests, case.arrivals, strict=True):
            arrivals.setdefault(step, []).append(request)
        rounds.append(run(engine, (), arrivals=arrivals, check=check))
    stats = engine.stats()
    fails = case.drafter.startswith("raises")
    assert fails or not engine.metrics.num_failed_steps, "a drafter failed unasked"
    tally.cases += 1
    tally.two_accepted += seen.most_accepted >= 2
    tally.refused_inside += seen.refused_inside > 0
    tally.refused_below_accepted += seen.refused_below_accepted > 0
    tally.preempted += stats.num_preemptions > 0
    tally.hits += stats.num_prefix_hit_tokens > 0
    tally.constrained += any(r.output is not None for r in case.requests)
    tally.seen.steps += seen.steps
    tally.seen.accepted += seen.accepted
    for answers in rounds:
        for answer in answers.values():
            tally.tokens += len(answer.token_ids)
            ending = str(answer.finish_reason)
            if ending == "stop":
                kind = {int: "id", str: "string"}.get(type(answer.stop_reason), "eos")
                ending += f" ({kind})"
            tally.endings[ending] = tally.endings.get(ending, 0) + 1
    return rounds


def assert_obeys(case: Case, tally: Tally) -> None:
    """Every token, text, float and reason is the root drafter's."""
    expected, known = root_answers(case)
    for answers in run_case(case, known, tally):
        assert_same(answers, expected)


def assert_same(answers: Answers, expected: Answers) -> None:
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer == expected[key], f"{key}: {answer}\nexpected {expected[key]}"


def walk_text(start: int, count: int, choices: Sequence[int]) -> list[int]:
    """A prompt of the model's own language: bigrams followed, `choices` says where to leave."""
    pairs, token, tokens = bigrams(), start, [start]
    for i in range(count - 1):
        leave = choices[i % len(choices)] if choices else 0
        token = pairs.second[token] if leave == 1 else pairs.first[token]
        tokens.append(token)
    return tokens


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    temperature = draw(st.sampled_from([0.0, 0.7, 1.3]))
    max_tokens = draw(st.sampled_from([7, 16, 25, 36]))
    penalties = draw(st.sampled_from(["none", "none", "repetition", "count", "all"]))
    filters = draw(st.sampled_from(["none", "none", "top_k", "top_p", "min_p", "all"]))
    biased = draw(st.booleans())
    return SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        repetition_penalty=1.15 if penalties in ("repetition", "all") else 1.0,
        frequency_penalty=0.3 if penalties in ("count", "all") else 0.0,
        presence_penalty=-0.4 if penalties in ("count", "all") else 0.0,
        top_k=draw(st.sampled_from([1, 2, 5, 400])) if filters in ("top_k", "all") else 0,
        top_p=draw(st.sampled_from([0.5, 0.9])) if filters in ("top_p", "all") else 1.0,
        min_p=draw(st.sampled_from([0.02, 0.3])) if filters in ("min_p", "all") else 0.0,
        logit_bias=draw(
            st.dictionaries(
                st.sampled_from([EOS, EOS, STOP_ID, 97, 101, 49, 110, 262]),
                st.sampled_from([1.5, 3.0, -3.0, -100.0]),
                max_size=3,
            )
        )
        if biased
        else {},
        seed=draw(st.sampled_from([0, 1, 2, 3, 2**64 - 1, -5, 2**40 + 9])),
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        min_tokens=draw(st.sampled_from([0, 0, 0, 5, max_tokens])),
        stop=tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2, unique=True)))
        if draw(st.booleans())
        else (),
        stop_token_ids=draw(st.sampled_from([(), (), (STOP_ID,), (101, 256)])),
        ignore_eos=draw(st.sampled_from([False, False, False, True])),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0, 2])),
    )


@st.composite
def requests(draw: st.DrawFn, *, most: int = 5) -> tuple[Request, ...]:
    """Requests whose prompts often begin alike."""
    count = draw(st.sampled_from([2, 3, most, 1]))
    common = walk_text(97, draw(st.sampled_from([20, 8, 0])) + 1, [0, 0, 1])[1:]
    made = []
    for i in range(count):
        start = draw(st.sampled_from([97, 101, 116, 32, 49, 255, 0, EOS]))
        own = walk_text(
            start, draw(st.sampled_from([1, 5, 13, 28, 40])), [0, draw(st.integers(0, 1))]
        )
        prompt = common + own if draw(st.booleans()) else own
        output = None
        if draw(st.sampled_from([False, False, False, True])):
            output = toy(draw(st.sampled_from(TOYS)))
        params = draw(sampling_params())
        least = min(params.min_tokens, MAX_LENGTH - len(prompt))  # more than fits is refused
        params = msgspec.structs.replace(params, min_tokens=least)
        if output is not None:  # the grammar says where the text ends
            params = msgspec.structs.replace(params, ignore_eos=False)
        salt = draw(st.sampled_from(["", "", "", "other"]))
        made.append(
            Request(
                id=f"r{i}", prompt_token_ids=prompt, params=params, output=output, cache_salt=salt
            )
        )
    return tuple(made)


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype, drafters: Sequence[str] = DRAFTERS) -> Case:
    drafter = draw(st.sampled_from(drafters))
    num_tokens = draw(st.sampled_from([1, 3, 4, 6, 9]))
    asked = draw(requests())
    tight = draw(st.sampled_from([True, True, False]))
    slots = MAX_LENGTH + 2 * (num_tokens + 1) + draw(st.sampled_from([0, 3, 20]))
    return Case(
        drafter=drafter,
        num_tokens=num_tokens,
        requests=asked,
        arrivals=tuple(draw(st.sampled_from([0, 0, 1, 5])) for _ in asked),
        setting=Setting(
            dtype=dtype,
            num_slots=slots if tight else 2048,
            max_model_len=MAX_LENGTH,
            max_num_seqs=draw(st.sampled_from([16, 16, 2])),
            max_batch_tokens=draw(st.sampled_from([128, 24, 16])),
            flights=draw(st.sampled_from([0, 1])),
            prefix_cache=draw(st.sampled_from([True, True, False])),
        ),
        rounds=draw(st.sampled_from([1, 1, 1, 2])),
        seed=draw(st.integers(0, 99)),
    )


assert all(start < VOCAB for start in (97, 255, EOS))
