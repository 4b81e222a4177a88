"""The engine and its grammars: budgets, limits, what choices share, refusals, what is kept."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from eyas import wire
from eyas.config import CacheConfig, EngineConfig, GrammarConfig, SchedulerConfig
from eyas.constraint import (
    Backend,
    CompilePool,
    ConstraintFailure,
    Grammar,
    State,
    Vocabulary,
    build_backend,
)
from eyas.constraint.base import MaskJob, one_by_one
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.core import Delta, GrammarError, Request, SamplingParams
from eyas.dialect import Wanted
from eyas.engine.worker import Worker
from eyas.grammar import Budget, Concat, FreeText, Json, Marker, OutputSpec, Regex, Source
from eyas.llm import LLM
from tests.laws.structured import DRAFTING, ask, engine, told
from tests.laws.world import Answer, Answers, run
from tests.thorough import drawn, only_thorough

QUESTION = "What is the capital of France? Think about it."
OBJECT = Json('{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}')
DRAFTERS = ("forced", "tree", "blend")


def budgeted(max_tokens: int, close: str = "</x>") -> OutputSpec:
    """Free text to a marker, closed after so many tokens, and then a city."""
    marker = Marker(close)
    closing = tuple(engine("root").tokenizer.encode_text(close, continues=True))
    return OutputSpec(
        root=Concat((FreeText(until=(marker,)), Regex("(Paris|Amsterdam)"))),
        budget=Budget(max_tokens, (marker,), closing),
    )


@pytest.mark.parametrize(
    ("limit", "temperature", "drafters"),
    [
        *[(0, 0.0, DRAFTERS), (1, 1.0, ("tree",)), (7, 1.0, ("blend",)), (12, 0.0, ("tree",))],
        *only_thorough(*[(limit, 1.0, DRAFTERS) for limit in (1, 7)], (12, 0.0, DRAFTERS)),
    ],
)
def test_a_budget_closes_at_its_token_under_every_draft(
    limit: int, temperature: float, drafters: tuple[str, ...]
) -> None:
    spec = budgeted(limit)
    closing = spec.budget.closing if spec.budget else ()
    plain = ask(engine("root"), QUESTION, spec, temperature=temperature, seed=limit)
    [choice] = plain.choices
    assert choice.finish_reason == "stop"
    ids = choice.token_ids
    assert tuple(ids[limit : limit + len(closing)]) == closing
    assert re.fullmatch(r"(?s).*</x>(Paris|Amsterdam)", choice.text)
    assert choice.text.count("</x>") == 1
    for drafter in drafters:
        drafted = ask(engine(drafter), QUESTION, spec, temperature=temperature, seed=limit)
        assert told(drafted) == told(plain), drafter


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_reasoning_budget_closes_the_reasoning(drafter: str) -> None:
    for limit in (0, 4, 11):
        wanted = Wanted(answer=Regex("(Paris|Amsterdam)"), max_reasoning_tokens=limit)
        plain = ask(engine("root"), QUESTION, wanted, temperature=1.0, seed=5)
        drafted = ask(engine(drafter), QUESTION, wanted, temperature=1.0, seed=5)
        assert told(drafted) == told(plain)
        [choice] = drafted.choices
        assert choice.finish_reason == "stop" and choice.content in ("Paris", "Amsterdam")
        reasoning = choice.reasoning or ""
        tokens = engine("root").tokenizer.encode_text(reasoning.strip("\n"), continues=True)
        assert len(tokens) <= limit + 1


@pytest.mark.parametrize("drafter", ["root", "forced", "blend"])
def test_min_tokens_yield_where_only_the_end_is_legal(drafter: str) -> None:
    llm = engine(drafter)
    params = SamplingParams(temperature=0.0, max_tokens=40, min_tokens=20)
    ids = llm.encode_chat([{"role": "user", "content": QUESTION}])
    spec = OutputSpec(root=Regex("Paris"))
    asked = [Request(id="short", prompt_token_ids=ids, params=params, output=spec)]
    spec = OutputSpec(root=Regex("[a-z ]{1,200}"))
    asked.append(Request(id="long", prompt_token_ids=ids, params=params, output=spec))
    answers = run(llm.engine, asked, check=False)
    short, long = answers["short", 0], answers["long", 0]
    assert (short.text, short.finish_reason, short.error) == ("Paris", "stop", None)
    assert len(short.token_ids) < 20 <= len(long.token_ids)
    assert re.fullmatch("[a-z ]{1,200}", long.text) and long.error is None


# Limits on the way


class Exhausted(LlguidanceState):
    """After so many tokens the library says that a limit is hit, also in a fresh automaton."""

    __slots__ = ("count", "state")

    def __init__(self, state: Any, count: int) -> None:
        super().__init__(state.grammar, state.matcher)
        self.state, self.count = state, count

    def after(self, token: int) -> Any:
        if self.count <= 0:
            raise ConstraintFailure("a limit, on purpose")
        state = self.state.after(token)
        return None if state is None else Exhausted(state, self.count - 1)

    def after_all(self, tokens: Any) -> Any:
        return one_by_one(self, tokens)

    def become(self, tokens: Any) -> Any:
        return self.after_all(tokens)

    def num_legal(self, tokens: Any) -> int:
        return min(self.count, super().num_legal(tokens))


class Limited:
    """A grammar whose automata live for so many tokens."""

    canonical: tuple[Grammar, ...] = ()
    num_bytes = num_replicas = 1

    def __init__(self, grammar: Grammar, count: int) -> None:
        self.grammar, self.count, self.backend = grammar, count, grammar.backend

    def start(self, *, fresh: bool = False) -> State:
        return Exhausted(self.grammar.start(fresh=fresh), self.count)


def _requests(llm: LLM, spec: OutputSpec) -> list[Request]:
    ids = llm.encode_chat([{"role": "user", "content": "Specify a random city."}])
    free = SamplingParams(temperature=0.8, seed=4, max_tokens=20, ignore_eos=True, logprobs=1)
    held = SamplingParams(temperature=0.8, seed=5, max_tokens=20, logprobs=1)
    return [
        Request(id="victim", prompt_token_ids=ids, params=held, output=spec),
        Request(id="free", prompt_token_ids=ids, params=free),
        Request(id="held", prompt_token_ids=ids, params=held, output=spec),
    ]


def _run_with(llm: LLM, asked: list[Request], **grammars: Grammar) -> Answers:
    """The answers; `grammars` by request."""
    answers = {(request.id, 0): Answer() for request in asked}
    for request in asked:
        llm.engine.add(request, grammars.get(request.id))
    while llm.engine.has_work():
        for delta in llm.engine.step():
            answers[delta.request_id, delta.index].absorb(delta)
    llm.engine.check()
    return answers


@pytest.mark.parametrize(
    ("drafter", "count"), [("root", 0), ("forced", 1), ("tree", 0), ("tree", 9)]
)
def test_a_limit_on_the_way_ends_that_request_alone(drafter: str, count: int) -> None:
    llm = engine(drafter)
    spec = OutputSpec(root=Regex("[A-Z][a-z ,.]{60,90}"), param="regex")
    asked = _requests(llm, spec)
    whole = _run_with(llm, asked)
    assert all(len(answer.token_ids) > 10 and not answer.error for answer in whole.values())
    grammar = llm.engine.compile(spec).result()
    answers = _run_with(llm, asked, victim=Limited(grammar, count))
    for name in ("free", "held"):
        assert answers[name, 0] == whole[name, 0]
    victim = answers["victim", 0]
    assert victim.finish_reason == "error" and victim.error is not None
    assert victim.error.startswith("regex: ") and "resource limit" in victim.error
    assert len(victim.token_ids) <= count + 1
    assert victim.token_ids == whole["victim", 0].token_ids[: len(victim.token_ids)]


@pytest.mark.parametrize("drafter", ["root", "tree"])
def test_a_place_where_no_token_may_follow_is_no_limit(drafter: str) -> None:
    """The terminals of this grammar share no text."""
    llm = engine(drafter)
    spec = OutputSpec(root=Source("lark", 'start: "It is " A\nA: /a+/ & /b+/'), param="ebnf")
    for request in _requests(llm, spec):
        llm.engine.add(request)
    last: dict[str, Delta] = {}
    while llm.engine.has_work():
        last |= {delta.request_id: delta for delta in llm.engine.step()}
    assert last["free"].finish_reason == "length"
    for name in ("victim", "held"):
        assert (last[name].finish_reason, last[name].code) == ("error", "grammar_dead_end")
        assert last[name].param == "ebnf"
        assert (last[name].error or "").startswith("ebnf: no token can follow")


def test_what_a_library_cannot_go_on_with_ends_with_an_error() -> None:
    """Stars in stars are compiled at once and over the limits after a token."""
    llm = engine("blend")
    spec = OutputSpec(root=Regex("0" + "(a*)*" * 500), param="regex")
    asked = _requests(llm, spec)
    answers = _run_with(llm, asked)
    plain = _run_with(engine("root"), asked)
    assert answers == plain
    assert answers["victim", 0].finish_reason in ("error", "stop")
    assert answers["free", 0].finish_reason == "length"


# Counters


def test_an_engine_that_is_hurried_only_drafts_less() -> None:
    """A deadline that is over at once: trees are cut, no mask is skipped."""
    config = EngineConfig(
        cache=CacheConfig(num_slots=3000),
        draft=DRAFTING["blend"],
        scheduler=SchedulerConfig(flights=0, max_batch_tokens=96, max_num_seqs=6),
        grammar=GrammarConfig(mask_seconds=0.0001, compile_seconds=60),
    )
    with LLM(config=config) as hurried:
        for place, wanted in enumerate(
            (OutputSpec(root=OBJECT), Wanted(answer=OBJECT), budgeted(5))
        ):
            for temperature, n in drawn((((0.0, 1), (1.0, 2))[place % 2],), ((0.0, 1), (1.0, 2))):
                options = {"temperature": temperature, "seed": 2, "n": n, "max_tokens": 16}
                answer = ask(hurried, QUESTION, wanted, **options)  # type: ignore[arg-type]
                plain = ask(engine("root"), QUESTION, wanted, **options)  # type: ignore[arg-type]
                assert told(answer) == told(plain)
        assert all(c.error is None for c in answer.choices)


def test_the_counters_tell_what_was_done() -> None:
    llm = engine("blend")
    before = msgspec.convert(msgspec.to_builtins(llm.engine.stats().grammar), wire.GrammarStats)
    spec = OutputSpec(root=Json('{"type":"object","properties":{"counted":{"type":"null"}}}'))
    ask(llm, QUESTION, spec, max_tokens=40)
    ask(llm, QUESTION, spec, max_tokens=40)
    with pytest.raises(GrammarError):
        llm.engine.compile(OutputSpec(root=Regex("(counted"))).result()
    after = llm.engine.stats().grammar
    assert after.num_compiled == before.num_compiled + 1
    assert after.num_hits == before.num_hits + 1
    assert after.num_refused.get("invalid", 0) == before.num_refused.get("invalid", 0) + 1
    assert after.num_cached == before.num_cached + 1
    assert after.num_masks > before.num_masks and after.mask_seconds > before.mask_seconds
    assert after.compile_seconds > before.compile_seconds
    assert after.num_pruned >= before.num_pruned
    assert msgspec.msgpack.decode(wire.encode(after), type=wire.GrammarStats) == after


# Refusals

FAULTS = {
    "invalid": Regex("(a"),
    "unsupported": Regex("(?=a)b"),
    "too_complex": Source("ebnf", 'root ::= "a"' + " " * 300_000),
    "timeout": Json("{}"),
}


class Slow(Backend):
    """A backend that waits for `go` where a schema is asked for."""

    name = "slow"

    def __init__(self, backend: Any) -> None:
        self.backend, self.go = backend, threading.Event()

    def compile(self, spec: OutputSpec) -> Grammar:
        if isinstance(spec.root, Json):
            self.go.wait(300)
        return self.backend.compile(spec)

    def close(self) -> None:
        pass

    def job(
        self, states: Any, mask_RK: Any, rows: Any = None, drafts: Any = None, **more: Any
    ) -> MaskJob:
        return self.backend.job(states, mask_RK, rows, drafts, **more)


@pytest.fixture
def slow(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LLM, Slow, CompilePool]]:
    """An engine whose schemas take as long as the test wants; those of the fault "timeout" too long."""
    callspec = getattr(request.node, "callspec", None)
    is_short = callspec is not None and callspec.params.get("fault") == "timeout"
    llm = engine("root")
    tokenizer, info = llm.tokenizer, llm.info
    vocabulary = Vocabulary.of(tokenizer, info.vocab_size, info.eos_token_ids)
    backend = Slow(build_backend("llguidance", vocabulary))
    pool = CompilePool(backend, deadline_seconds=3.0 if is_short else 300)
    monkeypatch.setattr(llm.engine, "grammars", pool)
    yield llm, backend, pool
    backend.go.set()
    pool.close()


def request_of(spec: OutputSpec, name: str = "x") -> Request:
    ids = engine("root").encode_chat([{"role": "user", "content": "?"}])
    params = SamplingParams(temperature=0.0, max_tokens=8)
    return Request(id=name, prompt_token_ids=ids, params=params, output=spec)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_refusal_says_which_fault_and_which_field(
    slow: tuple[LLM, Slow, CompilePool], fault: str
) -> None:
    llm, _, pool = slow
    with pytest.raises(GrammarError) as refused:
        llm.engine.add(request_of(OutputSpec(root=FAULTS[fault], param="the_field")))
    assert refused.value.fault == fault and refused.value.param == "the_field"
    assert refused.value.message.startswith("the_field: ")
    assert not llm.engine.has_work() and llm.engine.stats().num_running == 0
    assert pool.stats().num_refused == {fault: 1}
    llm.engine.add(request_of(OutputSpec(root=Regex("ok"))))
    while llm.engine.has_work():
        llm.engine.step()


class Link:
    """The other process, in this one: commands of a script, replies in a list."""

    is_parent_gone = False

    def __init__(self) -> None:
        self.commands: list[wire.Command] = []
        self.replies: list[wire.Reply] = []
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()

    def send(self, reply: wire.Reply) -> None:
        self.replies.append(reply)

    def receive(self, timeout_seconds: float) -> list[wire.Command]:
        commands, self.commands = self.commands, []
        return commands

    def of(self, kind: type) -> list[Any]:
        return [reply for reply in self.replies if isinstance(reply, kind)]


def turn(worker: Worker, link: Link, *commands: wire.Command) -> None:
    """A turn of the worker's loop."""
    for command in commands:
        worker._handle(command)
    worker._add_compiled()
    if worker._engine.has_work():
        worker._step()


def turn_until_woken(worker: Worker, link: Link) -> None:
    assert link.woken.wait(300)
    link.woken.clear()
    turn(worker, link)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_worker_passes_a_refusal_on(slow: tuple[LLM, Slow, CompilePool], fault: str) -> None:
    llm, link = slow[0], Link()
    worker = Worker(llm.engine, link)  # type: ignore[arg-type]
    spec = OutputSpec(root=FAULTS[fault], param="the_field")
    worker._handle(wire.Submit(request_of(spec)))
    turn_until_woken(worker, link)
    [refused] = link.of(wire.Refused)
    assert (refused.request_id, refused.param, refused.refusal) == ("x", "the_field", "invalid")
    assert refused.message.startswith("the_field: ")
    assert not llm.engine.has_work()


def test_steps_go_on_while_a_grammar_is_compiled(slow: tuple[LLM, Slow, CompilePool]) -> None:
    llm, backend, _ = slow
    link = Link()
    worker = Worker(llm.engine, link)  # type: ignore[arg-type]
    turn(worker, link, wire.Submit(request_of(OutputSpec(root=Json("{}")), "waits")))
    plain = request_of(OutputSpec(root=Json("{}")), "goes on")
    plain.output = None
    turn(worker, link, wire.Submit(plain))
    for _ in range(20):
        turn(worker, link)
    ended = [
        d.request_id for reply in link.of(wire.Deltas) for d in reply.deltas if d.finish_reason
    ]
    assert ended == ["goes on"] and not link.of(wire.Refused)
    turn(worker, link, wire.Submit(request_of(OutputSpec(root=Regex("a")), "waits")))
    [refused] = link.of(wire.Refused)
    assert refused.param == "id"
    backend.go.set()
    turn_until_woken(worker, link)
    while llm.engine.has_work():
        turn(worker, link)
    ended = [
        d.request_id for reply in link.of(wire.Deltas) for d in reply.deltas if d.finish_reason
    ]
    assert ended == ["goes on", "waits"]


def test_an_abort_while_a_grammar_is_compiled_leaves_nothing(
    slow: tuple[LLM, Slow, CompilePool],
) -> None:
    llm, backend, _ = slow
    link = Link()
    worker = Worker(llm.engine, link)  # type: ignore[arg-type]
    turn(worker, link, wire.Submit(request_of(OutputSpec(root=Json("{}")))))
    turn(worker, link, wire.Abort("x"))
    backend.go.set()
    turn_until_woken(worker, link)
    assert link.replies == [] and not llm.engine.has_work()
    turn(worker, link, wire.Submit(request_of(OutputSpec(root=Json("{}")))))  # the id is free
    while llm.engine.has_work() or worker._compiling:
        turn(worker, link)
    assert link.of(wire.Deltas)[-1].deltas[-1].finish_reason is not None


# What is kept


def test_grammars_that_were_put_out_of_the_cache_are_gone() -> None:
    """At once, without the collector: what a grammar library holds is large and hidden from it."""
    llm = engine("blend")
    info = llm.info
    vocabulary = Vocabulary.of(llm.tokenizer, info.vocab_size, info.eos_token_ids)
    pool = CompilePool(build_backend("llguidance", vocabulary), max_cache_bytes=2**20)
    before, llm.engine.grammars = llm.engine.grammars, pool
    gc.disable()
    try:
        seen = []
        for number in range(12):
            spec = OutputSpec(root=Json(f'{{"const":{{"n":{number}}}}}'))
            seen.append(weakref.ref(pool.compile(spec).result()))
            ask(llm, "?", spec, max_tokens=20)
        kept = [number for number, grammar in enumerate(seen) if grammar() is not None]
        stats = pool.stats()
        assert stats.num_compiled == 12 and stats.num_bytes <= 2**20
        assert 1 <= stats.num_cached < 12
        assert kept == list(range(12 - stats.num_cached, 12))
        pool.compile(OutputSpec(root=Json('{"const":{"n":11}}'))).result()
        assert pool.stats().num_hits == stats.num_hits + 1
    finally:
        gc.enable()
        llm.engine.grammars = before
        pool.close()
