"""The compile pool: answers in time, once, within bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import pytest

from eyas.constraint import Backend, CompilePool, Vocabulary, build_backend
from eyas.constraint.base import MaskJob
from eyas.constraint.pool import SLOW_SECONDS
from eyas.core import GrammarError, GrammarsUnavailable
from eyas.grammar import Json, OutputSpec, Regex
from eyas.text import Tokenizer
from tests.constraint.walking import ends, tokens_of


class _Panic(BaseException):
    """As pyo3's PanicException, no `Exception`."""


@dataclass
class _Grammar:
    num_bytes: int
    spec: OutputSpec


@dataclass
class _Backend(Backend):
    """Compiles patterns: "bad" is refused, "slow" waits for `gate`, "broken" breaks, "panic" does so
    as libraries in Rust do."""

    num_bytes: int = 100
    gate: threading.Event = field(default_factory=threading.Event)
    compiled: list[str] = field(default_factory=list)
    threads: set[threading.Thread] = field(default_factory=set)
    name: str = "fake"

    def close(self) -> None:
        pass

    def compile(self, spec: OutputSpec) -> Any:
        assert isinstance(spec.root, Regex)
        pattern = spec.root.pattern
        self.compiled.append(pattern)
        self.threads.add(threading.current_thread())
        if "slow" in pattern:
            self.gate.wait(300)
        if "bad" in pattern:
            prefix = f"{spec.param}: " if spec.param else ""
            raise GrammarError(f"{prefix}refused at position 0", "invalid", param=spec.param)
        if "broken" in pattern:
            raise RuntimeError("of the library")
        if "panic" in pattern:
            raise _Panic("of the library")
        return _Grammar(self.num_bytes, spec)

    def job(
        self, states: Any, mask_RK: Any, rows: Any = None, drafts: Any = None, **more: Any
    ) -> MaskJob:
        raise NotImplementedError


@pytest.fixture
def fake() -> Iterator[_Backend]:
    backend = _Backend()
    yield backend
    backend.gate.set()


def _spec(pattern: str, param: str | None = None) -> OutputSpec:
    return OutputSpec(root=Regex(pattern), param=param)


def _fault(future: Future[Any]) -> str:
    error = future.exception(300)
    assert isinstance(error, GrammarError)
    return error.fault


def test_a_grammar_is_compiled_once_and_kept(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=300)
    grammars = {id(pool.compile(_spec("a")).result(300)) for _ in range(5)}
    assert len(grammars) == 1 and fake.compiled == ["a"]
    stats = pool.stats()
    assert (stats.num_compiled, stats.num_hits, stats.num_cached) == (1, 4, 1)
    assert stats.num_bytes >= fake.num_bytes
    pool.close()


def test_who_asks_while_it_is_compiled_gets_the_same_one(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=300)
    futures = [pool.compile(_spec("slow")) for _ in range(50)]
    fake.gate.set()
    assert len({id(future.result(300)) for future in futures}) == 1
    assert fake.compiled == ["slow"]
    pool.close()


def test_the_cache_is_bounded_and_the_oldest_goes(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=300, max_cache_bytes=450)
    for pattern in ("a", "b", "c"):
        pool.compile(_spec(pattern)).result(300)
    pool.compile(_spec("a")).result(300)
    pool.compile(_spec("d")).result(300)
    pool.compile(_spec("a")).result(300)
    pool.compile(_spec("b")).result(300)
    assert fake.compiled == ["a", "b", "c", "d", "b"]
    assert pool.stats().num_bytes <= 450
    pool.close()


def test_a_refusal_is_remembered_and_names_each_ones_field(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=300)
    for i in range(1000):
        error = pool.compile(_spec("bad", param=f"field{i % 3}")).exception(300)
        assert isinstance(error, GrammarError)
        assert (
            str(error) == f"field{i % 3}: refused at position 0" and error.param == f"field{i % 3}"
        )
    assert fake.compiled == ["bad"]
    assert pool.stats().num_refused == {"invalid": 1000}
    assert pool.compile(_spec("good")).result(300).spec == _spec("good")
    pool.close()


def test_refusals_are_forgotten_after_a_while(fake: _Backend) -> None:
    now = [0.0]
    pool = CompilePool(fake, clock=lambda: now[0])
    assert _fault(pool.compile(_spec("bad"))) == "invalid"
    now[0] = 61.0
    assert _fault(pool.compile(_spec("bad"))) == "invalid"
    assert fake.compiled == ["bad", "bad"]
    pool.close()


def test_a_library_that_breaks_is_a_refusal(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=300)
    assert _fault(pool.compile(_spec("broken"))) == "invalid"
    assert pool.compile(_spec("good")).result(300)
    pool.close()


def test_a_library_that_panics_costs_no_thread(fake: _Backend) -> None:
    pool = CompilePool(fake, clock=lambda: 0.0)  # nothing is slow, so that one thread is due
    futures = [pool.compile(_spec(f"panic {i}")) for i in range(20)]
    assert [_fault(future) for future in futures] == ["invalid"] * 20
    assert pool.compile(_spec("good")).result(300)
    assert len(fake.threads) == pool._num_live == 1
    stats = pool.stats()
    assert stats.num_refused == {"invalid": 20} and stats.num_compiled == 1
    assert stats.num_waiting == stats.num_stuck == 0
    pool.close()


def test_a_real_panic_is_a_refusal_that_names_its_field(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    pool = CompilePool(build_backend("llguidance", vocabulary), deadline_seconds=300)
    for i in range(12):  # each is told at once, not at its deadline
        error = pool.compile(_spec(f"^[é-ü]|[é-ü]$|{i}", param="regex")).exception(300)
        assert isinstance(error, GrammarError) and error.fault == "invalid"
        assert "the grammar library failed on it" in error.message
        assert error.message.startswith("regex: ") and error.param == "regex"
    assert ends(pool.compile(_spec("[a-z]+")).result(300), tokens_of(tokenizer, "ab"))
    pool.close()


def test_the_deadline_answers_and_a_stuck_thread_is_replaced(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=0.2)
    stuck = pool.compile(_spec("slow"))
    behind = pool.compile(_spec("behind"))
    assert _fault(stuck) == "timeout" and "0.2 seconds" in str(stuck.exception())
    assert isinstance(behind.exception(300), GrammarError | None)
    until(lambda: pool.compile(_spec("next")).exception(300) is None)
    until(lambda: pool.stats().num_stuck == 1)  # what was late itself is not stuck for long
    assert _fault(pool.compile(_spec("slow"))) == "timeout"
    assert fake.compiled.count("slow") == 1
    fake.gate.set()
    until(lambda: pool.stats().num_stuck == 0)
    assert pool.compile(_spec("slow")).result(300), "what came late is kept"
    until(lambda: pool.compile(_spec("last")).exception(300) is None)
    pool.close()


def test_stuck_threads_are_bounded(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=0.05)
    before = threading.active_count()
    for i in range(40):
        assert _fault(pool.compile(_spec(f"slow {i}"))) == "timeout"
    assert threading.active_count() - before <= 11
    fake.gate.set()
    until(lambda: threading.active_count() - before <= 2)  # replacements leave when they are back
    pool.close()


class _Allocator:
    """Counts the looks of the thread that watches memory."""

    def __init__(self) -> None:
        self.num_looks = 0

    def num_bytes(self) -> int:
        self.num_looks += threading.current_thread().name == "eyas-grammar-memory"
        return 0

    def trim(self) -> None:
        pass


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads that the system does not start."""
    names: set[str] = set()
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    return names


@pytest.mark.parametrize(
    "names",
    [{"eyas-compile"}, {"eyas-compile-deadlines"}, {"eyas-compile", "eyas-compile-deadlines"}],
)
def test_without_a_thread_who_asks_is_told_and_later_ones_are_served(
    fake: _Backend, denied: set[str], names: set[str]
) -> None:
    pool = CompilePool(fake, num_threads=2, deadline_seconds=300)
    assert pool.can_compile()
    denied |= names
    for _ in range(3):
        error = pool.compile(_spec("a", param="regex")).exception(300)
        assert isinstance(error, GrammarsUnavailable) and error.param == "regex"
        assert "no thread left" in str(error) and not pool.can_compile()
    assert pool.stats().num_waiting == 0
    denied.clear()
    assert pool.can_compile()
    assert pool.compile(_spec("a")).result(300)
    stuck = [pool.compile(_spec(f"slow {i}")) for i in range(2)]
    until(lambda: len(fake.compiled) == 3)
    assert len(fake.threads) == 2, "as many threads as were asked for"
    fake.gate.set()
    assert all(future.result(300) for future in stuck)
    pool.close()


def test_without_more_threads_those_there_are_go_on(fake: _Backend, denied: set[str]) -> None:
    pool = CompilePool(fake, deadline_seconds=300)
    assert pool.compile(_spec("a")).result(300)
    denied.add("eyas-compile")
    slow = pool.compile(_spec("slow"))
    behind = pool.compile(_spec("behind"))
    time.sleep(SLOW_SECONDS)  # another thread is due now, and cannot be had
    assert pool.can_compile() and not behind.done()
    denied.clear()
    assert behind.result(300) and not slow.done(), "it is tried again"
    fake.gate.set()
    assert slow.result(300)
    pool.close()


def test_grammars_are_compiled_where_no_thread_can_watch_their_memory(
    fake: _Backend, denied: set[str]
) -> None:
    allocator = _Allocator()
    pool = CompilePool(fake, deadline_seconds=300, allocator=allocator)
    denied.add("eyas-grammar-memory")
    assert all(pool.compile(_spec(f"{i}")).result(300) for i in range(3))
    assert not allocator.num_looks
    denied.clear()
    assert pool.compile(_spec("later")).result(300)
    until(lambda: allocator.num_looks > 0)  # the thread was tried again
    pool.close()


def test_a_library_without_a_thread_has_not_refused_the_grammar(
    vocabulary: Vocabulary, tokenizer: Tokenizer, denied: set[str]
) -> None:
    pool = CompilePool(build_backend("llguidance", vocabulary), deadline_seconds=300)
    denied.add("eyas-deep")
    error = pool.compile(_spec("[a-z]+", param="regex")).exception(300)
    assert isinstance(error, GrammarsUnavailable) and not pool.can_compile()
    denied.clear()
    assert pool.can_compile()
    assert ends(pool.compile(_spec("[a-z]+")).result(300), tokens_of(tokenizer, "ab"))
    pool.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_full_queue_says_try_again(fake: _Backend) -> None:
    pool = CompilePool(fake, max_waiting=3, deadline_seconds=300)
    futures = [pool.compile(_spec(f"slow {i}")) for i in range(20)]
    refused = [future for future in futures if future.done()]
    assert 16 <= len(refused) <= 17
    assert {_fault(future) for future in refused} == {"timeout"}
    assert "try again later" in str(refused[0].exception())
    fake.gate.set()
    done, pending = wait(futures, timeout=300)
    assert not pending and len(done) == 20
    pool.close()


def test_close_refuses_what_waits(fake: _Backend) -> None:
    pool = CompilePool(fake, deadline_seconds=300)
    futures = [pool.compile(_spec(f"slow {i}")) for i in range(3)]
    pool.close()
    assert [_fault(future) for future in futures] == ["timeout"] * 3
    assert _fault(pool.compile(_spec("a"))) == "timeout"


def test_grammars_of_a_real_backend(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    pool = CompilePool(build_backend("llguidance", vocabulary), num_threads=2, deadline_seconds=300)
    specs = [OutputSpec(root=Json(f'{{"const":"v{i}"}}')) for i in range(200)]
    bad = [OutputSpec(root=Regex(f"(a{i}"), param="regex") for i in range(50)]
    futures = [pool.compile(spec) for pair in zip(specs, bad * 4, strict=True) for spec in pair]
    wait(futures, timeout=300)
    for i, spec in enumerate(specs[::20]):
        grammar = pool.compile(spec).result(300)
        assert ends(grammar, tokens_of(tokenizer, f'"v{i * 20}"'))
    stats = pool.stats()
    assert stats.num_compiled == 200 and stats.num_refused == {"invalid": 200}
    assert stats.compile_seconds > 0 and stats.num_waiting == 0
    pool.close()


def test_what_nobody_waits_for_is_not_compiled() -> None:
    backend = _Backend()
    pool = CompilePool(backend, deadline_seconds=300)
    try:
        running = pool.compile(_spec("slow"))
        left, kept = pool.compile(_spec("left")), pool.compile(_spec("kept"))
        assert left.cancel()
        backend.gate.set()
        assert kept.result(300) is not None and running.result(300) is not None
        assert "left" not in backend.compiled and "kept" in backend.compiled
    finally:
        pool.close()


def test_a_slow_compilation_holds_nobody_up() -> None:
    backend = _Backend()
    pool = CompilePool(backend, deadline_seconds=300)
    try:
        slow = pool.compile(_spec("slow"))
        assert pool.compile(_spec("quick")).result(300) is not None
        assert not slow.done()
    finally:
        backend.gate.set()
        pool.close()


def test_a_refusal_keeps_neither_the_grammar_nor_the_frames() -> None:
    pool = CompilePool(_Backend(), deadline_seconds=300)
    try:
        large = "bad" + "x" * 500_000
        with pytest.raises(GrammarError):
            pool.compile(_spec(large)).result(300)
        kept = list(pool._refusals.items())
        assert all(len(key) <= 64 and error.__traceback__ is None for key, (error, _) in kept)
        too_large = pool.compile(_spec("y" * 3_000_000))
        assert _fault(too_large) == "too_complex"
    finally:
        pool.close()
