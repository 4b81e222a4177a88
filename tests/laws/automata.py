"""Toy output grammars: small automata over token ids behind the door of a grammar library.

Legend: N mask rows, K mask words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eyas.constraint import Backend, ConstraintFailure, Grammar, PoolStats, State
from eyas.constraint.base import MaskJob, along, at_paths, counted, one_by_one
from eyas.grammar import OutputSpec, Source
from tests.laws.world import EOS, VOCAB

ENDED = -2


def toy(text: str) -> OutputSpec:
    """A toy grammar: its kind and, after a space, what it is made of."""
    return OutputSpec(root=Source("lark", text), param="output")


@dataclass
class Modular:
    """States 0..m-1; token t leads from s to (s + t) % m and is legal where (s + t) % 3 != 0.
    The end is legal in state 0 alone, and nothing after it. `limit` > 0: after so many tokens
    nothing is legal at all."""

    grammar: ToyGrammar
    modulus: int
    limit: int = 0
    state: int = 1
    count: int = 0
    num_deviations: ClassVar[int] = 0

    def after(self, token: int) -> Modular | None:
        if not self.row()[token]:
            return None
        state = ENDED if token == EOS else (self.state + token) % self.modulus
        return self.at(state, self.count + 1)

    def after_all(self, tokens: Sequence[int]) -> State | None:
        return one_by_one(self, tokens)

    def become(self, tokens: Sequence[int]) -> State | None:
        return self.after_all(tokens)

    def at(self, state: int, count: int) -> Modular:
        return type(self)(self.grammar, self.modulus, self.limit, state, count)

    def row(self) -> np.ndarray:
        allowed = np.zeros(VOCAB, dtype=bool)
        if self.state >= 0 and not (self.limit and self.count >= self.limit):
            allowed[:256] = (self.state + np.arange(256)) % 3 != 0
            allowed[EOS] = self.state == 0
        return allowed

    def forced(self, limit: int) -> list[int]:
        return []


class Liar(Modular):
    """The same; what it calls forced is anything, legal or not."""

    def forced(self, limit: int) -> list[int]:
        draw = random.Random(100 * self.state + self.count)
        return [draw.choice([97, 101, EOS, draw.randrange(256)]) for _ in range(draw.randint(0, 4))]


@dataclass
class Lane(Modular):
    """Every other run of three tokens is forced: at counts 3, 4, 5 of six only one token is legal."""

    def row(self) -> np.ndarray:
        allowed = super().row()
        if self.count % 6 >= 3 and self.state >= 0:
            allowed[:] = False
            allowed[self._only()] = True
        return allowed

    def _only(self) -> int:
        return 97 + (7 * self.state + self.count) % 26

    def forced(self, limit: int) -> list[int]:
        span: list[int] = []
        here: Modular | None = self
        while here is not None and here.state >= 0 and here.count % 6 >= 3 and len(span) < limit:
            span.append(Lane._only(here))  # type: ignore[arg-type]
            here = here.after(span[-1])
        return span


@dataclass
class Fused(Modular):
    """Each look ahead uses up some of what all states of one start share; after `limit` looks nothing
    more can be said. Like a library whose caches are bounded."""

    used: list[int] = field(default_factory=lambda: [0])

    def at(self, state: int, count: int) -> Fused:
        self.used[0] += 1
        if self.used[0] > self.limit:
            raise ConstraintFailure("used up")
        return Fused(self.grammar, self.modulus, self.limit, state, count, self.used)

    def row(self) -> np.ndarray:
        return Modular(self.grammar, self.modulus, 0, self.state, self.count).row()


@dataclass
class ToyGrammar:
    """shared: what all of its states share, fresh ones too."""

    backend: Toys
    new: Callable[[ToyGrammar], State]
    num_bytes: int = 100
    num_replicas: int = 1
    canonical: Sequence[Grammar] = ()
    shared: dict[str, list[int]] = field(default_factory=dict)

    def start(self, *, fresh: bool = False) -> State:
        return self.new(self)


Maker = Callable[[ToyGrammar, str], State]


def _modular(kind: type[Modular]) -> Maker:
    def make(grammar: ToyGrammar, source: str) -> State:
        modulus, _, limit = source.partition(":")
        return kind(grammar, int(modulus), int(limit or 0))

    return make


class Toys(Backend):
    """A grammar library of toys. more: other kinds by name."""

    name = "toys"
    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, **more: Maker) -> None:
        kinds = {"modular": Modular, "liar": Liar, "lane": Lane, "fused": Fused}
        self.makers: dict[str, Maker] = {name: _modular(kind) for name, kind in kinds.items()}
        self.makers |= more

    def compile(self, spec: OutputSpec) -> Grammar:
        assert isinstance(spec.root, Source)
        kind, _, source = spec.root.text.partition(" ")
        make = self.makers[kind]
        grammar = ToyGrammar(self, lambda own: make(own, source))
        grammar.start()
        return grammar

    def close(self) -> None:
        pass

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
        paths: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        asked = [()] * len(states) if drafts is None else drafts
        failed: list[int] = []
        return MaskJob(
            lambda: failed.extend(self.write(at_paths(states, paths), mask_RK, rows, drafts)),
            lambda: counted(mask_RK, rows, asked, failed),
        )

    def write(
        self,
        states: Sequence[State | None],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None,
        drafts: Sequence[Sequence[int]] | None,
    ) -> list[int]:
        """Who failed."""
        failed = []
        for row, state in along(states, rows, drafts):
            try:
                mask_RK[row] = pack_bits(state.row())  # type: ignore[attr-defined]
            except ConstraintFailure:
                failed.append(row)
        places = range(len(states)) if rows is None else rows
        return [i for i, row in enumerate(places) if row in failed]


class InstantPool:
    """Compiles where it is called."""

    def __init__(self, backend: Toys | None = None) -> None:
        self.backend = backend or Toys()

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        try:
            future.set_result(self.backend.compile(spec))
        except Exception as error:
            future.set_exception(error)
        return future

    def stats(self) -> PoolStats:
        return PoolStats()

    def can_compile(self) -> bool:
        return True

    def close(self) -> None:
        pass


def pack_bits(allowed: np.ndarray) -> np.ndarray:
    """bool [V] to int32 words, token i at bit i % 32 of word i // 32."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4")


def is_legal(source: str, token_ids: Sequence[int]) -> bool:
    """Every prefix is legal for the modular toy, by a reading of its own."""
    modulus, _, limit = source.partition(":")
    state, m = 1, int(modulus)
    for i, token in enumerate(token_ids):
        if limit and i >= int(limit):
            return False
        if token == EOS:
            return state == 0 and i == len(token_ids) - 1
        if token >= 256 or (state + token) % 3 == 0:
            return False
        state = (state + token) % m
    return True
