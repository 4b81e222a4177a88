"""The doors of constrained output: a backend compiles a grammar; its states mask tree nodes.

Promises: a state never changes, and what it allows depends on the tokens that led to it alone.
Does not know: models, drafters, sampling, requests.

Legend: N mask rows, L rows of a draft's tokens, K 32-bit words of a row (bit i of word j: token
32 * j + i is allowed).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from eyas.grammar import OutputSpec


class ConstraintFailure(Exception):
    """This automaton cannot go on (a resource limit, never an illegal token)."""


class State(Protocol):
    """An automaton after some tokens. The text may end here where it allows an end-of-sequence token;
    after that token nothing is legal."""

    @property
    def num_deviations(self) -> int:
        """In a canonical grammar: tokens so far whose white space was another than the grammar's."""
        ...

    @property
    def grammar(self) -> Grammar: ...

    def after(self, token: int) -> State | None:
        """The state one token later; None where the token is not legal. ConstraintFailure where a
        resource limit is hit."""
        ...

    def after_all(self, tokens: Sequence[int]) -> State | None:
        """As `after`, token by token."""
        ...

    def forced(self, limit: int) -> list[int]:
        """Up to `limit` tokens that spell the only text that can follow; [] when there is a choice.
        A guess for drafts: nothing has to come of it."""
        ...


def one_by_one(state: State, tokens: Sequence[int]) -> State | None:
    """`State.after_all` for libraries that have nothing quicker."""
    last: State | None = state
    for token in tokens:
        if last is None:
            break
        last = last.after(token)
    return last


class Grammar(Protocol):
    """A compiled grammar.

    num_bytes: about how much memory it takes. canonical: grammars that allow less, with the usual white
    space only, so that more of the text is forced; their states overlook white space that is another.
    """

    num_bytes: int

    @property
    def backend(self) -> Backend: ...
    @property
    def canonical(self) -> Sequence[Grammar]: ...

    def start(self, *, fresh: bool = False) -> State:
        """Before the first token. fresh: share nothing with other states that could count against a
        resource limit."""
        ...


class Backend(Protocol):
    """A grammar library over one tokenizer; used from several threads."""

    name: str

    def compile(self, spec: OutputSpec) -> Grammar:
        """`eyas.core.GrammarError` says what is wrong with it and where."""
        ...

    def fill(self, states: Sequence[State], mask_NK: np.ndarray) -> list[int]:
        """Write the mask of states[i] into the zeroed int32 row i, over all cores, without the
        interpreter's lock. The rows of states that hit a resource limit stay zero; returns their
        indices."""
        ...

    def follow(self, state: State, tokens: Sequence[int], mask_LK: np.ndarray) -> Iterator[None]:
        """Write the mask after tokens[i] into the zeroed row i, a row each time it is asked to go on,
        without the interpreter's lock, as far as tokens are legal; what is left of a row after an end,
        or where a resource limit is hit, is zero. A row stays as it is once it was there."""
        ...

    def close(self) -> None:
        """End its threads and processes; nothing is compiled afterwards."""
        ...
