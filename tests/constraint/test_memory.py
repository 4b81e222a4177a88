"""What grammars hold: counted as it is, bounded, and given back. Measured in a process of its own.

`python -m tests.constraint.test_memory MEBIBYTES` prints what one such process saw.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from eyas.constraint import CompilePool, Vocabulary, build_backend, process_allocator
from eyas.constraint import grammar_cache as kept_module
from eyas.constraint.automaton import Automaton
from eyas.constraint.base import ConstraintFailure
from eyas.constraint.grammar_cache import PATIENCE, TRIM_BYTES, GrammarCache
from eyas.constraint.llguidance_library import MAX_LEXER_STATES
from eyas.core import GrammarError
from eyas.grammar import Json, Node, OutputSpec, Regex
from eyas.text import Tokenizer

ROOT = Path(__file__).parents[2]
MIB = 2**20
LIMIT = 64 * MIB
NUM_GRAMMARS = 16
SLACK = 64 * MIB
"""For the grammar that is being read, which counts, but cannot go, and for what lies free."""
NEEDS_COUNTS = pytest.mark.skipif(process_allocator() is None, reason="needs glibc's counts")


# In a process of its own


def growing(turn: int) -> Node:
    """Small texts whose lexers have new states for whatever is written, and large ones."""
    draw = random.Random(turn)
    letters = "".join(sorted(draw.sample("abcdefghijklmnop", 5)))
    kinds: list[Node] = [
        Regex(f"(?s:.*)[{letters}](?s:.){{{150 + turn}}}q(?s:.*)"),
        Regex(f"(?s:.*)([{letters}].{{1,{20 + turn}}}[n-z].{{1,20}}){{1,20}}q(?s:.*)"),
        Json(json.dumps({"enum": [f"{turn}-{k}" for k in range(3000)]})),
        Json(json.dumps({"type": "array", "items": {"maxLength": 500 + turn, "type": "string"}})),
    ]
    return kinds[turn % len(kinds)]


def written(backend: Any, automaton: Automaton, draw: random.Random, num_tokens: int) -> None:
    """Random legal tokens, one after the other."""
    mask_1K = np.zeros((1, backend.vocabulary.num_mask_words), dtype=np.int32)
    for _ in range(num_tokens):
        mask_1K[:] = 0
        if backend.fill([automaton.root], mask_1K):
            automaton.replay()
            mask_1K[:] = 0
            backend.fill([automaton.root], mask_1K)
        bits = np.unpackbits(mask_1K.view(np.uint8), axis=1, bitorder="little")[0]
        legal = [i for i in np.nonzero(bits)[0].tolist() if i not in backend.eos_token_ids]
        if not legal:
            return
        automaton.advance([draw.choice(legal)])


def measure(limit: int) -> dict[str, int]:
    """rss: most bytes by which the process grew; held: what the pool said then; end: bytes that were
    left of the growth, and what the pool said, once nothing was kept."""
    tokenizer = Tokenizer.from_directory(str(files("eyas.builtin") / "checkpoint"))
    assert tokenizer.eos_id is not None
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size, [tokenizer.eos_id])
    backend: Any = build_backend("llguidance", vocabulary)
    written(backend, Automaton(backend.compile(OutputSpec(root=growing(999)))), random.Random(), 9)
    pool = CompilePool(backend, max_cache_bytes=limit, allocator=process_allocator())
    process = psutil.Process()
    before = process.memory_info().rss
    seen = {"rss": 0, "held": 0, "compiled": 0, "refused": 0, "most": 0}
    for turn in range(NUM_GRAMMARS):
        try:
            grammar = pool.compile(OutputSpec(root=growing(turn))).result(300)
            seen["compiled"] += 1
            for number in range(4):
                written(backend, Automaton(grammar), random.Random(number), 250)
            _ = grammar.canonical
            backend._background.submit(lambda: None).result()
        except (GrammarError, ConstraintFailure):
            seen["refused"] += 1
        pool._kept.settle()  # as its thread does, but not when that thread pleases
        rss, held = process.memory_info().rss - before, pool.stats().num_bytes
        if rss > seen["rss"]:
            seen |= {"rss": rss, "held": held}
        seen["most"] = max(held, seen["most"])
        del grammar
    pool._kept._max_bytes = 0
    pool._kept.settle()
    seen["end"] = process.memory_info().rss - before
    seen["end_held"] = pool.stats().num_bytes
    pool.close()
    backend.close()
    return seen


@NEEDS_COUNTS
def test_grammars_that_grow_stay_within_the_bound_and_are_counted() -> None:
    """Text tells little: the same ones, reckoned by their text, took 400 MB and counted 67."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.constraint.test_memory", str(LIMIT // MIB)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["compiled"] == NUM_GRAMMARS and not seen["refused"], seen
    assert seen["rss"] <= LIMIT + SLACK and seen["most"] <= LIMIT + SLACK, seen
    assert seen["rss"] / 2 <= seen["held"] <= 2 * seen["rss"], seen
    assert seen["end_held"] == 0 and seen["end"] <= SLACK, seen


def test_a_lexer_is_bounded_and_what_it_holds_up_goes_on(vocabulary: Vocabulary) -> None:
    """No output that a fresh lexer can write ends for what others have used up, and outputs that start
    later find a replica in order."""
    backend: Any = build_backend("llguidance", vocabulary)
    assert backend._limits.max_lexer_states == MAX_LEXER_STATES
    backend._limits = type(backend._limits)(verbose_errors=False, max_lexer_states=3000)
    grammar = backend.compile(OutputSpec(root=growing(0)))
    first = grammar.start()
    automata = []
    for number in range(4):
        automaton = Automaton(grammar)
        written(backend, automaton, random.Random(number), 250)
        backend._background.submit(lambda: None).result()
        assert not backend.is_used_up(grammar._replicas[0].matcher)
        automata.append(automaton)
    assert sum(each.num_replays for each in automata) >= 2
    assert len(automata[0]._tokens) == 250 and grammar.num_replicas == 1
    assert first.is_shared and first.become([]) is first, "it has not begun, and is not moved"
    backend.close()


# How the bound is kept


@dataclass
class _Heap:
    """others: bytes that are no grammars'. The rest is told by the grammars that are still there."""

    others: int = 1000
    alive: list[int] = field(default_factory=list)
    num_trims: int = 0

    def num_bytes(self) -> int:
        return self.others + sum(self.alive)

    def trim(self) -> None:
        self.num_trims += 1


class _Grammar:
    num_bytes = 1
    """What it says, which is wrong."""

    def __init__(self, heap: _Heap, size: int) -> None:
        self._heap, self._size = heap, size
        heap.alive.append(size)

    def __del__(self) -> None:
        self._heap.alive.remove(self._size)


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> _Heap:
    monkeypatch.setattr(kept_module, "RECOUNT_SECONDS", 0.0)
    monkeypatch.setattr(kept_module, "RESIDENT", 1.0)
    return _Heap()


@pytest.fixture
def kept(heap: _Heap, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarCache]:
    monkeypatch.setattr(GrammarCache, "_watch", lambda self: None)  # the tests look themselves
    grammars = GrammarCache(100 * MIB, heap)
    yield grammars
    grammars.close()


def fill(kept: GrammarCache, heap: _Heap, *sizes: int, begin: int = 0) -> list[bytes]:
    keys = [bytes([number]) for number in range(begin, begin + len(sizes))]
    for key, size in zip(keys, sizes, strict=True):
        kept.begin()
        grammar: Any = _Grammar(heap, size * MIB)
        kept.keep(key, grammar)
        kept.end()
    return keys


def there(kept: GrammarCache, keys: list[bytes]) -> list[bool]:
    return [key in kept._grammars for key in keys]


def test_the_least_recently_used_go_until_the_rest_fits(kept: GrammarCache, heap: _Heap) -> None:
    keys = fill(kept, heap, 10, 20, 30)
    kept.settle()
    assert kept.num_bytes == 60 * MIB and heap.num_trims == 0
    assert kept.find(keys[0]) is not None
    keys += fill(kept, heap, 60, begin=3)
    kept.settle()
    assert there(kept, keys) == [True, False, True, True] and kept.num_bytes == 100 * MIB
    assert heap.num_trims == 1


def test_grammars_count_as_they_grow(kept: GrammarCache, heap: _Heap) -> None:
    keys = fill(kept, heap, 10, 20)
    grammar: Any = kept.find(keys[1])
    heap.alive.remove(20 * MIB)
    grammar._size = 95 * MIB
    heap.alive.append(95 * MIB)
    del grammar
    kept.settle()
    assert there(kept, keys) == [False, True] and kept.num_bytes == 95 * MIB


def test_what_running_outputs_hold_counts_until_they_end(kept: GrammarCache, heap: _Heap) -> None:
    keys = fill(kept, heap, 70)
    running: Any = kept.find(keys[0])
    keys += fill(kept, heap, 10, 40, begin=1)
    kept.settle()
    assert there(kept, keys) == [False] * 3 and kept.num_bytes == 70 * MIB
    keys = fill(kept, heap, 20, begin=3)
    del running
    kept.settle()
    assert there(kept, keys) == [True] and kept.num_bytes == 20 * MIB and heap.num_trims == 2


def test_what_was_there_before_is_nobodys(kept: GrammarCache, heap: _Heap) -> None:
    """Nor what came while there were no grammars."""
    heap.others = 5000 * MIB
    fill(kept, heap, 10)
    kept.settle()
    assert kept.num_bytes == 10 * MIB
    kept._let_go(1)
    kept.settle()
    assert kept.num_bytes == 0
    heap.others = 7000 * MIB
    fill(kept, heap, 10)
    heap.others -= 3000 * MIB
    kept.settle()
    assert kept.num_bytes <= 10 * MIB
    fill(kept, heap, 30, begin=1)
    kept.settle()
    assert 30 * MIB <= kept.num_bytes <= 40 * MIB and len(kept) == 2


def test_what_comes_and_goes_puts_nothing_out(kept: GrammarCache, heap: _Heap) -> None:
    keys = fill(kept, heap, 10, 20)
    counts = iter([500 * MIB, 400 * MIB])
    steady = heap.num_bytes
    heap.num_bytes = lambda: steady() + next(counts, 0)  # type: ignore[method-assign]
    kept.settle()
    assert there(kept, keys) == [True, True] and kept.num_bytes == 30 * MIB


def test_what_others_took_is_taken_off_after_a_while(kept: GrammarCache, heap: _Heap) -> None:
    """Else there would be no cache any more."""
    kept.begin()
    running: Any = _Grammar(heap, MIB)
    kept.keep(b"running", running)
    kept.end()
    heap.others += 500 * MIB
    for _ in range(PATIENCE):
        kept.settle()
    assert len(kept) == 0 and kept.num_bytes == 50 * MIB
    keys = fill(kept, heap, 10, 20)
    kept.settle()
    assert there(kept, keys) == [True, True] and kept.num_bytes == 80 * MIB
    del running


def test_what_is_left_free_goes_back_to_the_system(kept: GrammarCache, heap: _Heap) -> None:
    fill(kept, heap, 10, 20)
    kept.settle()
    heap.others += TRIM_BYTES
    kept.settle()
    assert heap.num_trims == 0
    heap.others -= TRIM_BYTES
    kept.settle()
    assert heap.num_trims == 1
    kept.settle()
    assert heap.num_trims == 1


def test_what_is_being_compiled_counts_as_soon_as_it_is_there(
    kept: GrammarCache, heap: _Heap
) -> None:
    kept.begin()
    grammar: Any = _Grammar(heap, 40 * MIB)
    kept.settle()
    assert kept.num_bytes == 40 * MIB
    kept.keep(b"slow", grammar)
    kept.end()
    kept.settle()
    assert kept.num_bytes == 40 * MIB


@NEEDS_COUNTS
def test_the_process_counts_what_is_on_its_heap() -> None:
    allocator = process_allocator()
    assert allocator is not None
    before = allocator.num_bytes()
    held = [bytearray(10_000) for _ in range(1000)]
    assert 9 * MIB < allocator.num_bytes() - before < 20 * MIB
    del held
    assert allocator.num_bytes() - before < 2 * MIB
    allocator.trim()


@NEEDS_COUNTS
def test_a_pool_looks_by_itself(vocabulary: Vocabulary) -> None:
    pool = CompilePool(
        build_backend("llguidance", vocabulary),
        allocator=process_allocator(),
        max_cache_bytes=MIB,
        deadline_seconds=300,
    )
    compiled = [pool.compile(OutputSpec(root=growing(2 + 4 * k))).result(300) for k in range(6)]
    for _ in range(6000):
        if pool.stats().num_cached == 0:
            break
        time.sleep(0.01)
    assert pool.stats().num_cached == 0 and len(compiled) == 6
    del compiled
    pool.close()


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) * MIB)))
