"""Fault injection: at each door one row's fault ends that row's request and no other.

In every test a victim and its neighbours run together; the neighbours' answers are those of an
undisturbed run, the victim ends with an error (or is not harmed at all), and the engine serves on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from eyas.constraint import ConstraintFailure, State
from eyas.constraint.base import one_by_one
from eyas.core import Request, RequestError, SamplingParams
from eyas.draft_tree import Verdict
from eyas.engine import admission
from eyas.engine.engine import Engine
from eyas.engine.flight import Flight, Landed
from eyas.engine.stops import TextSink
from eyas.engine.verifier import Verify, verify
from eyas.text import Detokenizer, Tokenizer
from tests.laws.automata import InstantPool, ToyGrammar, Toys, toy
from tests.laws.cases import Known, Oracle, assert_same, walk_text
from tests.laws.drafters import HostDrafter, Raises, RandomTrees
from tests.laws.world import VOCAB, Answers, Setting, model_drafter, new_engine, run, tokenizer
from tests.thorough import only_thorough

VICTIM_SEED = 77
PLAIN = Setting(max_model_len=120)
FLIGHTS = pytest.mark.parametrize("flights", [0, 1])
WAYS = [(1, "root"), (1, "oracle tree"), (0, "oracle chain"), (1, "model")]
OTHER_WAYS = [(1 - flights, drafter) for flights, drafter in WAYS]
EVERY_WAY = pytest.mark.parametrize(("flights", "drafter"), [*WAYS, *only_thorough(*OTHER_WAYS)])


def victim(**changes: object) -> Request:
    fields = {"temperature": 0.7, "seed": VICTIM_SEED, "max_tokens": 30, "ignore_eos": True}
    params = SamplingParams(**{**fields, "logprobs": 1, **changes})
    return Request(id="victim", prompt_token_ids=walk_text(97, 12, [0, 1]), params=params)


def neighbours() -> list[Request]:
    spec = toy("modular 5")
    made = []
    for i, temperature in enumerate([0.0, 0.7, 1.3, 0.7]):
        params = SamplingParams(
            temperature=temperature,
            seed=i,
            max_tokens=25 + i,
            logprobs=1,
            n=2 if i == 2 else 1,
            repetition_penalty=1.2 if i == 1 else 1.0,
        )
        prompt = walk_text(97 + i, 12 + 5 * i, [0, 1])
        output = spec if i == 3 else None
        made.append(Request(id=f"n{i}", prompt_token_ids=prompt, params=params, output=output))
    return made


@pytest.fixture(scope="module")
def undisturbed() -> Answers:
    return run(new_engine(PLAIN), [victim(), *neighbours()], check=False)


def known_of(answers: Answers, asked: Sequence[Request]) -> Known:
    known: Known = {}
    for request in asked:
        for index in range(request.params.n):
            answer = answers[request.id, index]
            assert answer.seed is not None
            known[answer.seed, index, tuple(request.prompt_token_ids)] = answer.token_ids
    return known


def faulty_engine(
    drafter: str,
    flights: int,
    undisturbed: Answers,
    toys: Toys | None = None,
    verify: Verify = verify,
) -> Engine:
    known = known_of(undisturbed, [victim(), *neighbours()])
    setting = replace(PLAIN, flights=flights)
    made = {
        "root": lambda: None,
        "oracle tree": lambda: Oracle(6, known, decoys=True, honesty=1.0),
        "oracle chain": lambda: Oracle(6, known, decoys=False, honesty=1.0),
        "model": lambda: model_drafter(setting.dtype, setting.num_slots, 4, "target"),
    }[drafter]()
    return new_engine(setting, made, grammars=InstantPool(toys), verify=verify)


def assert_neighbours_unharmed(answers: Answers, undisturbed: Answers) -> None:
    others = {k: a for k, a in undisturbed.items() if k[0] != "victim"}
    assert_same({k: a for k, a in answers.items() if k[0] != "victim"}, others)


def assert_serves_on(engine: Engine, undisturbed: Answers) -> None:
    """Three of the neighbours again, on the same engine: a greedy one, a sampled one, and one with a
    constraint."""
    asked = [request for request in neighbours() if request.id != "n2"]
    again = run(engine, asked)
    assert_same(again, {key: undisturbed[key] for key in again})


def assert_cut_short(answers: Answers, undisturbed: Answers, num_tokens: int | None = None) -> None:
    """The victim ended with an error, and what it said before is true."""
    got, whole = answers["victim", 0], undisturbed["victim", 0]
    assert got.finish_reason == "error" and got.error
    assert got.token_ids == whole.token_ids[: len(got.token_ids)]
    assert got.logprobs == whole.logprobs[: len(got.logprobs)]
    assert whole.text.startswith(got.text.rstrip("\ufffd"))
    assert len(got.token_ids) < len(whole.token_ids)
    if num_tokens is not None:
        assert len(got.token_ids) == num_tokens


# Drafters


@FLIGHTS
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_drafter_that_raises_costs_speed_alone(
    undisturbed: Answers, flights: int, every: int
) -> None:
    engine = new_engine(replace(PLAIN, flights=flights), Raises(RandomTrees(5, 1), every))
    assert_same(run(engine, [victim(), *neighbours()]), undisturbed)
    assert engine.metrics.num_failed_steps > 0


@FLIGHTS
def test_a_drafter_that_raises_for_one_sequence_harms_none(
    undisturbed: Answers, flights: int
) -> None:
    class Picky(HostDrafter):
        def think(self, source, tokens, room):  # type: ignore[no-untyped-def]
            if source.seed == VICTIM_SEED:
                raise RuntimeError("not this one")
            return [(0, 97)]

    engine = new_engine(replace(PLAIN, flights=flights), Picky(3))
    assert_same(run(engine, [victim(), *neighbours()]), undisturbed)


# Logits


def poison(how: Callable[[torch.Tensor], None], at: int) -> Verify:
    """Verdicts with the victim's logits spoilt in the row whose token has position `at`, in whatever
    tree it is."""

    def poisoned(logits_RV, tree, rows, batch, mask_RK) -> Verdict:  # type: ignore[no-untyped-def]
        seeds = [source.seed for source in batch.params.sequences]
        for row, (b, position) in enumerate(
            zip(rows.sampling.sequence_R.tolist(), rows.sampling.position_R.tolist(), strict=True)
        ):
            if seeds[b] == VICTIM_SEED and position == at:
                how(logits_RV[row])
        return verify(logits_RV, tree, rows, batch, mask_RK)

    return poisoned


@EVERY_WAY
@pytest.mark.parametrize(
    ("value", "greedy"),
    [
        *[(float("nan"), False), (float("inf"), True)],
        *only_thorough((float("inf"), False), (float("nan"), True)),
    ],
)
def test_a_row_that_is_not_a_number_ends_its_request(
    undisturbed: Answers,
    flights: int,
    drafter: str,
    value: float,
    greedy: bool,
) -> None:
    """The token after the spoilt position is never chosen; those before it all come."""
    asked = victim(temperature=0.0) if greedy else victim()
    expected = dict(undisturbed)
    if greedy:
        expected |= run(new_engine(PLAIN), [asked], check=False)
    prompt_length = len(asked.prompt_token_ids)
    for offset in (0, 7):
        poisoned = poison(lambda row: row.fill_(value), prompt_length - 1 + offset)
        engine = faulty_engine(drafter, flights, expected, verify=poisoned)
        answers = run(engine, [asked, *neighbours()])
        assert_cut_short(answers, expected, offset)
        assert_neighbours_unharmed(answers, expected)
    assert_serves_on(engine, expected)


def test_one_number_that_is_none_is_enough(undisturbed: Answers) -> None:
    poisoned = poison(lambda row: row[5:6].fill_(float("nan")), 15)
    engine = faulty_engine("oracle tree", 0, undisturbed, verify=poisoned)
    answers = run(engine, [victim(top_k=20, top_p=0.9, min_p=0.01), *neighbours()])
    assert answers["victim", 0].finish_reason == "error"
    assert_neighbours_unharmed(answers, undisturbed)


# Constraints


class Failing:
    """Raises in its `calls`-th fill or move; allows everything a plain text has. "mask": nothing is
    legal after so many tokens."""

    num_deviations = 0

    def __init__(self, grammar: ToyGrammar, where: str, calls: list[int], count: int = 0) -> None:
        self.grammar, self.where, self.calls, self.count = grammar, where, calls, count

    def after(self, token: int) -> Failing:
        if self.where == "after":
            self._count_down()
        return Failing(self.grammar, self.where, self.calls, self.count + 1)

    def after_all(self, tokens: Sequence[int]) -> State | None:
        return one_by_one(self, tokens)

    def become(self, tokens: Sequence[int]) -> State | None:
        return self.after_all(tokens)

    def row(self) -> np.ndarray:
        if self.where in ("fill", "limit"):
            self._count_down()
        return np.full(VOCAB, self.where != "mask" or self.count < self.calls[0])

    def forced(self, limit: int) -> list[int]:
        return []

    def _count_down(self) -> None:
        self.calls[0] -= 1
        if self.calls[0] <= 0:
            if self.where == "limit":
                raise ConstraintFailure("a limit, on purpose")
            raise MemoryError("an automaton's fault, on purpose")


def failing(grammar: ToyGrammar, source: str) -> Failing:
    where, _, calls = source.partition(":")
    if where == "compile":
        raise RequestError("output: no such thing", param="output")
    if where == "crash":
        raise RuntimeError("a compiler's fault, on purpose")
    return Failing(grammar, where, grammar.shared.setdefault("calls", [int(calls)]))


CONSTRAINTS = (
    *(("fill:1", "fill:4"), ("after:1", "after:3"), ("mask:0", "mask:5"), ("limit:1", "limit:6")),
)
"""What fails at once, and later."""


@pytest.mark.parametrize(
    ("flights", "drafter", "where"),
    [
        case
        for i, both in enumerate(CONSTRAINTS)
        for j, way in enumerate(WAYS)
        for k, where in enumerate(both)
        for case in [
            *([(*way, where)] if k == (i + j) % 2 else only_thorough((*way, where))),
            *only_thorough((*OTHER_WAYS[j], where)),
        ]
    ],
)
def test_a_constraint_that_fails_ends_its_request(
    undisturbed: Answers, flights: int, drafter: str, where: str
) -> None:
    engine = faulty_engine(drafter, flights, undisturbed, Toys(failing=failing))
    asked = victim(ignore_eos=False)
    asked.output = toy(f"failing {where}")
    answers = run(engine, [asked, *neighbours()])
    assert_cut_short(answers, undisturbed)
    assert_neighbours_unharmed(answers, undisturbed)
    assert_serves_on(engine, undisturbed)


@pytest.mark.parametrize(("source", "error"), [("compile", RequestError), ("crash", RuntimeError)])
def test_a_compiler_that_raises_takes_nothing_up(
    undisturbed: Answers, source: str, error: type[Exception]
) -> None:
    engine = faulty_engine("root", 0, undisturbed, Toys(failing=failing))
    asked = victim(n=3, ignore_eos=False)
    asked.output = toy(f"failing {source}")
    with pytest.raises(error):
        engine.add(asked)
    assert not engine.has_work()
    assert_serves_on(engine, undisturbed)
    asked.output = None
    assert run(engine, [asked])["victim", 0].finish_reason in ("stop", "length")


@FLIGHTS
@pytest.mark.parametrize("drafter", ["oracle tree", "oracle chain"])
def test_a_limit_that_drafts_use_up_ends_no_request(
    undisturbed: Answers, flights: int, drafter: str
) -> None:
    """Looking ahead costs the automaton; what it costs is no reason to end a text that plain decoding
    would have finished."""
    engine = faulty_engine(drafter, flights, undisturbed)
    plain = new_engine(PLAIN)
    asked = victim(ignore_eos=False)
    asked.output = toy("fused 5:30")
    expected = run(plain, [asked])["victim", 0]
    assert expected.finish_reason in ("stop", "length")
    answers = run(engine, [asked, *neighbours()])
    assert_same({("victim", 0): answers["victim", 0]}, {("victim", 0): expected})
    assert_neighbours_unharmed(answers, undisturbed)
    assert engine.metrics.grammar.num_replays > 0


def test_an_output_that_cannot_go_with_the_parameters_is_refused(undisturbed: Answers) -> None:
    engine = new_engine(PLAIN)
    asked = victim(ignore_eos=True)
    asked.output = toy("modular 5")
    with pytest.raises(RequestError, match="ignore_eos"):
        engine.add(asked)
    assert not engine.has_work()


# Text


class BadSink(Detokenizer):
    """Raises at the `calls`-th token, or when it is finished."""

    def __init__(self, calls: int, *, at_finish: bool) -> None:
        super().__init__(tokenizer(), False)
        self.calls, self.at_finish = calls, at_finish

    def push(self, token_id: int) -> str:
        self.calls -= 1
        if self.calls == 0:
            raise UnicodeError("a detokenizer's fault, on purpose")
        return super().push(token_id)

    def finish(self) -> str:
        if self.at_finish:
            raise UnicodeError("a detokenizer's fault, on purpose")
        return super().finish()


@EVERY_WAY
@pytest.mark.parametrize(("calls", "at_finish"), [(1, False), (8, True), (1000, True)])
def test_a_detokenizer_that_fails_ends_its_request(
    undisturbed: Answers,
    monkeypatch: pytest.MonkeyPatch,
    flights: int,
    drafter: str,
    calls: int,
    at_finish: bool,
) -> None:
    def new_sink(params: SamplingParams, tokenizer: Tokenizer | None) -> TextSink | None:
        if params.skip_special_tokens:
            return usual_sink(params, tokenizer)
        return BadSink(calls, at_finish=at_finish)

    usual_sink = admission._new_sink
    monkeypatch.setattr(admission, "_new_sink", new_sink)
    engine = faulty_engine(drafter, flights, undisturbed)
    answers = run(engine, [victim(skip_special_tokens=False), *neighbours()])
    assert answers["victim", 0].finish_reason == "error"
    assert_neighbours_unharmed(answers, undisturbed)
    assert_serves_on(engine, undisturbed)


# The forward itself


@EVERY_WAY
@pytest.mark.parametrize("failing", [1, 4])
def test_a_forward_that_raises_ends_its_batch_and_the_engine_goes_on(
    undisturbed: Answers, monkeypatch: pytest.MonkeyPatch, flights: int, drafter: str, failing: int
) -> None:
    engine = faulty_engine(drafter, flights, undisturbed)
    forward, calls = engine.runner.forward, [0]

    def faulty(rows, taps=()):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if failing <= calls[0] < failing + len(engine.launcher.drafters):
            raise RuntimeError("a device's fault, on purpose")
        return forward(rows, taps)

    monkeypatch.setattr(engine.runner, "forward", faulty)
    late = [replace_id(request, f"late {request.id}") for request in neighbours()]
    answers = run(engine, [victim(), *neighbours()], arrivals={failing + 3: late})
    for (name, index), answer in answers.items():
        whole = undisturbed[name.removeprefix("late "), index]
        if name.startswith("late"):
            assert answer == whole
        else:
            assert answer == whole or answer.finish_reason == "error"
            assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
    assert_cut_short(answers, undisturbed)
    assert engine.metrics.num_failed_steps == len(engine.launcher.drafters)
    assert_serves_on(engine, undisturbed)


@EVERY_WAY
@pytest.mark.parametrize("failing", [1, 4])
def test_a_verdict_that_raises_ends_its_batch_and_the_engine_goes_on(
    undisturbed: Answers, flights: int, drafter: str, failing: int
) -> None:
    """It is not tried again: it may have changed what the device knows of its sequences."""
    calls = [0]

    def faulty(*given) -> Verdict:  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] == failing:
            raise RuntimeError("a device's fault, on purpose")
        return verify(*given)

    engine = faulty_engine(drafter, flights, undisturbed, verify=faulty)
    answers = run(engine, [victim(), *neighbours()])
    for asked, answer in answers.items():
        assert answer == undisturbed[asked] or answer.finish_reason == "error"
        assert answer.token_ids == undisturbed[asked].token_ids[: len(answer.token_ids)]
    assert_cut_short(answers, undisturbed)
    assert engine.metrics.num_failed_steps == 1
    assert_serves_on(engine, undisturbed)


@FLIGHTS
def test_a_step_that_fails_with_a_draft_runs_again_without_one(
    undisturbed: Answers, monkeypatch: pytest.MonkeyPatch, flights: int
) -> None:
    engine = faulty_engine("oracle tree", flights, undisturbed)
    propose = engine.drafter.propose

    def malformed(batch, shape):  # type: ignore[no-untyped-def]
        tree = propose(batch, shape)
        tree.tokens_BW[:, 1:] = 10**6
        return tree

    monkeypatch.setattr(engine.drafter, "propose", malformed)
    answers = run(engine, [victim(), *neighbours()])
    assert answers == undisturbed
    assert engine.metrics.num_failed_steps > 0


def replace_id(request: Request, name: str) -> Request:
    return Request(
        id=name,
        prompt_token_ids=request.prompt_token_ids,
        params=request.params,
        output=request.output,
    )


@EVERY_WAY
def test_a_step_that_cannot_be_prepared_is_prepared_again(
    undisturbed: Answers, monkeypatch: pytest.MonkeyPatch, flights: int, drafter: str
) -> None:
    engine = faulty_engine(drafter, flights, undisturbed)
    plan_batch, calls = engine.launcher._plan_batch, [0]

    def failing(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] % 5 == 0:
            raise RuntimeError("nothing to plan with")
        return plan_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.launcher, "_plan_batch", failing)
    answers = run(engine, [victim(), *neighbours()])
    assert_same(answers, undisturbed)
    assert engine.metrics.num_failed_steps == calls[0] // 5 > 0


@FLIGHTS
def test_results_that_cannot_be_read_end_their_batch(
    undisturbed: Answers, monkeypatch: pytest.MonkeyPatch, flights: int
) -> None:
    engine = faulty_engine("oracle tree", flights, undisturbed)
    read, calls = Flight.read, [0]

    def faulty(flight: Flight) -> Landed:
        calls[0] += 1
        if calls[0] == 4:
            raise RuntimeError("a device's fault, on purpose")
        return read(flight)

    monkeypatch.setattr(Flight, "read", faulty)
    answers = run(engine, [victim(), *neighbours()])
    assert_cut_short(answers, undisturbed)
    assert_serves_on(engine, undisturbed)


def test_a_forward_that_raises_spares_those_who_wait(
    undisturbed: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine(replace(PLAIN, max_num_seqs=1))
    forward, calls = engine.runner.forward, [0]

    def faulty(rows, taps=()):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] == 3:
            raise RuntimeError("a device's fault, on purpose")
        return forward(rows, taps)

    monkeypatch.setattr(engine.runner, "forward", faulty)
    answers = run(engine, [victim(), *neighbours()])
    assert_cut_short(answers, undisturbed, 2)
    assert_neighbours_unharmed(answers, undisturbed)


# Aborts


@EVERY_WAY
def test_an_abort_at_any_moment_ends_one_request(
    undisturbed: Answers, flights: int, drafter: str
) -> None:
    draw = random.Random(flights)
    for moment in (0, 1, 2, draw.randint(3, 5)):
        engine = faulty_engine(drafter, flights, undisturbed)
        aborted: list[int] = []

        def on_step(step: int) -> None:
            if step == moment:  # noqa: B023
                engine.abort("victim")  # noqa: B023
                engine.abort("victim")  # noqa: B023
                engine.abort("nobody")  # noqa: B023
                aborted.append(step)  # noqa: B023

        answers = run(engine, [victim(n=2), *neighbours()], on_step=on_step)
        assert aborted
        for index in range(2):
            got = answers["victim", index]
            assert got.finish_reason in ("abort", "length")
            if index == 0:
                whole = undisturbed["victim", 0].token_ids
                assert got.token_ids == whole[: len(got.token_ids)]
        assert answers["victim", 1].finish_reason == "abort" or drafter != "root"
        assert_neighbours_unharmed(answers, undisturbed)


@FLIGHTS
def test_a_request_that_was_aborted_while_in_flight_leaves_nothing(flights: int) -> None:
    engine = new_engine(replace(PLAIN, flights=flights))
    engine.add(victim())
    for _ in range(3):
        engine.step()
    engine.abort("victim")
    ended = [d for _ in range(4) for d in engine.step() if d.finish_reason]
    assert [d.finish_reason for d in ended] == ["abort"]
    assert not engine.has_work()
    engine.check()
    assert engine.cache.stats().num_held == 0
