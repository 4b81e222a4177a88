"""The doors of constrained output: a compiler makes one automaton a request; it masks tree nodes.

Promises: `fill` looks at a tree and leaves the automaton where it was; `advance` moves it over tokens
that were chosen. What it allows after a prefix depends on the prefix alone.
Does not know: models, drafters, sampling.

Legend: W tree nodes, K 32-bit words of a mask row (bit i of word j: token 32 * j + i is allowed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from eyas.core import OutputSpec


class ConstraintFailure(Exception):
    """This automaton cannot go on (a resource limit); ends the request it belongs to and no other."""


class Constraint(Protocol):
    """The automaton of one choice, standing after the tokens it was advanced over."""

    def fill(self, tokens_W: Sequence[int], parents_W: Sequence[int], rows_WK: np.ndarray) -> None:
        """Write the mask of each node into the zeroed int32 rows_WK: what may follow node w. Node 0
        is where the automaton stands (its token is not consumed again). A node that is not a legal
        continuation, and everything below it, keeps its zero row."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume tokens that were chosen, all of them legal."""
        ...

    def forced(self, limit: int) -> list[int]:
        """Up to `limit` tokens that begin the only continuation there is; [] when there are more."""
        ...

    def fork(self) -> Constraint:
        """An independent automaton at the same place."""
        ...


class ConstraintCompiler(Protocol):
    """Turns an output specification into an automaton; raises RequestError with the remedy."""

    def compile(self, spec: OutputSpec) -> Constraint: ...
