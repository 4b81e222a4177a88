"""Toy output constraints: small automata over token ids, with a compiler each.

Legend: W nodes, K mask words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eyas.constraint import Constraint
from eyas.core import OutputSpec
from tests.laws.world import EOS, VOCAB

REFUSED = -1
ENDED = -2


class Modular:
    """States 0..m-1; token t leads from s to (s + t) % m and is legal where (s + t) % 3 != 0.
    The end is legal in state 0 alone, and nothing after it. `limit` > 0: after so many tokens
    nothing is legal at all."""

    def __init__(self, modulus: int, limit: int = 0, state: int = 1, count: int = 0) -> None:
        self.modulus, self.limit, self.state, self.count = modulus, limit, state, count

    def _step(self, state: int, count: int, token: int) -> int:
        if state < 0 or not self._row(state, count)[token]:
            return REFUSED
        return ENDED if token == EOS else (state + token) % self.modulus

    def _row(self, state: int, count: int) -> np.ndarray:
        allowed = np.zeros(VOCAB, dtype=bool)
        if state >= 0 and not (self.limit and count >= self.limit):
            allowed[:256] = (state + np.arange(256)) % 3 != 0
            allowed[EOS] = state == 0
        return allowed

    def fill(self, tokens_W: Sequence[int], parents_W: Sequence[int], rows_WK: np.ndarray) -> None:
        states, counts = [self.state], [self.count]
        for token, parent in zip(tokens_W[1:], parents_W[1:], strict=True):
            states.append(self._step(states[parent], counts[parent], token))
            counts.append(counts[parent] + 1)
        for w, (state, count) in enumerate(zip(states, counts, strict=True)):
            rows_WK[w] = pack_bits(self._row(state, count))

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.state = self._step(self.state, self.count, token)
            self.count += 1
            assert self.state != REFUSED, f"token {token} was chosen but is not legal"

    def forced(self, limit: int) -> list[int]:
        return []

    def fork(self) -> Constraint:
        return Modular(self.modulus, self.limit, self.state, self.count)


def pack_bits(allowed: np.ndarray) -> np.ndarray:
    """bool [V] to int32 words, token i at bit i % 32 of word i // 32."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4")


class ModularCompiler:
    """source: "modulus" or "modulus:limit"."""

    def compile(self, spec: OutputSpec) -> Constraint:
        modulus, _, limit = spec.source.partition(":")
        return Modular(int(modulus), int(limit or 0))


def is_legal(source: str, token_ids: Sequence[int]) -> bool:
    """Every prefix is legal, by a reading of its own."""
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
