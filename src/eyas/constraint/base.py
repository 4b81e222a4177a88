"""The doors of constrained output: a backend compiles a grammar; its states mask tree nodes.

Promises: a state never changes unless it is given up; what it allows depends only on the tokens that
led to it.
Does not know: models, drafters, sampling, requests.

Legend: R mask rows, K 32-bit words of a row (bit i of word j: token 32 * j + i is allowed), B drafts, L
their most tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from eyas.grammar import OutputSpec


class ConstraintFailure(Exception):
    """This automaton cannot go on (a resource limit, never an illegal token)."""


class State(Protocol):
    """An automaton after some tokens. The text may end here where the state allows an end-of-sequence
    token; after that token nothing is legal."""

    @property
    def num_deviations(self) -> int:
        """In a canonical grammar: the number of tokens so far whose white space is not the
        grammar's."""
        ...

    @property
    def grammar(self) -> Grammar: ...

    def after(self, token: int) -> State | None:
        """Return the state one token later, or None where the token is not legal. ConstraintFailure
        where a resource limit is hit."""
        ...

    def after_all(self, tokens: Sequence[int]) -> State | None:
        """Return the state after all tokens, as `after` does token by token. Without tokens: another
        state at the same place."""
        ...

    def become(self, tokens: Sequence[int]) -> State | None:
        """As `after_all`, from a state that is given up: it must not be used afterwards."""
        ...

    def forced(self, limit: int) -> list[int]:
        """Return up to `limit` tokens that spell the only text that can follow; [] when there is a
        choice. The tokens are a guess for drafts."""
        ...


def one_by_one(state: State, tokens: Sequence[int]) -> State | None:
    """Return the state after all tokens, for libraries that read one token at a time."""
    last: State | None = state
    for token in tokens:
        if last is None:
            break
        last = last.after(token)
    return last


def at_paths(
    states: Sequence[State], paths: Sequence[Sequence[int]] | None
) -> Sequence[State | None]:
    """Return the state at the end of each path from states[i]; None where it is not legal."""
    if paths is None:
        return states
    return [
        state.after_all(path) if path else state for state, path in zip(states, paths, strict=True)
    ]


def along(
    states: Sequence[State | None],
    rows: Sequence[int] | None,
    drafts: Sequence[Sequence[int]] | None,
) -> Iterator[tuple[int, State]]:
    """Yield (row, state) for each mask that `Backend.job` is asked for, draft by draft."""
    for i, first in enumerate(states):
        state = first
        row = i if rows is None else rows[i]
        remaining = list(() if drafts is None else drafts[i])
        while state is not None:
            yield row, state
            state = state.after(remaining.pop(0)) if remaining else None
            row += 1


def allows(mask_K: np.ndarray, token: int) -> bool:
    """Whether a mask allows this token."""
    return bool(mask_K.item(token // 32) >> token % 32 & 1)


class Filled(NamedTuple):
    """The masks of a state and its draft. num_legal: tokens of the draft that the masks allow;
    num_masks: number of masks, one more than num_legal unless the text has ended, nothing can
    follow or a limit was hit."""

    num_legal: int
    num_masks: int


def num_legal(
    mask_RK: np.ndarray, rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[int]:
    """Count the tokens of drafts[i] that the masks from rows[i] on allow, up to the first refused
    token."""
    num, longest = len(drafts), max(map(len, drafts), default=0)
    if not longest:
        return [0] * num
    tokens_BL = np.array([[*draft, *[-1] * (longest - len(draft))] for draft in drafts])
    is_id_BL = (tokens_BL >= 0) & (tokens_BL < 32 * mask_RK.shape[1])
    tokens_BL[~is_id_BL] = 0
    rows_BL = np.array(rows)[:, None] + np.arange(longest)
    words_BL = mask_RK[np.minimum(rows_BL, len(mask_RK) - 1), tokens_BL // 32]
    is_legal_BL = is_id_BL & ((words_BL >> tokens_BL % 32 & 1) != 0)
    counts: list[int] = np.logical_and.accumulate(is_legal_BL, axis=1).sum(axis=1).tolist()
    return counts


def counted(
    mask_RK: np.ndarray,
    rows: Sequence[int] | None,
    drafts: Sequence[Sequence[int]],
    failed: Collection[int] = (),
) -> list[Filled | None]:
    """Return what `MaskJob.settle` returns, from the masks alone. failed: indices of states that hit a
    limit."""
    first = range(len(drafts)) if rows is None else rows
    return [
        None if i in failed else Filled(num, num + bool(mask_RK[row + num].any()))
        for i, (row, num) in enumerate(zip(first, num_legal(mask_RK, first, drafts), strict=True))
    ]


class Grammar(Protocol):
    """A compiled grammar.

    num_bytes: about how much memory it takes now. num_replicas: current number of compiled copies;
    outputs in different replicas do not wait for each other's masks. canonical: grammars that allow
    less, with the usual white space only, so that more of the text is forced; their states accept other
    white space as if it were their own.
    """

    @property
    def num_bytes(self) -> int: ...
    @property
    def num_replicas(self) -> int: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def canonical(self) -> Sequence[Grammar]: ...

    def start(self, *, fresh: bool = False) -> State:
        """Return the state before the first token. fresh: share nothing with other states that could
        count against a resource limit."""
        ...


@dataclass(frozen=True, slots=True)
class MaskJob:
    """Masks to be filled. run: the library's own work, called once, in any thread; it releases the
    interpreter's lock over most of its time where the library can. settle: called after it by the
    thread that made the job; returns the result of each state, None where the state itself hit a limit.
    The rows hold their masks after `settle`, not before."""

    run: Callable[[], None]
    settle: Callable[[], list[Filled | None]]


class Backend(Protocol):
    """A grammar library over one tokenizer; used from several threads."""

    name: str
    eos_token_ids: frozenset[int]

    def compile(self, spec: OutputSpec) -> Grammar:
        """Compile an output's grammar. `eyas.core.GrammarError` says what is wrong with it and
        where."""
        ...

    def expect(self, states: Sequence[State]) -> None:
        """Prepare for masks of drafts behind these states, before the drafts are known. Most libraries
        have nothing to prepare."""
        return None

    def validate(self, state: State, tokens: Sequence[int]) -> int:
        """Count the tokens that are legal one after the other from this state, which does not move.
        The count is for drafts: what is chosen is decided by masks alone."""
        num = 0
        with suppress(ConstraintFailure):
            for token in tokens:
                reached = state.after(token)
                if reached is None:
                    break
                state, num = reached, num + 1
        return num

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
        paths: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        """Prepare to write masks into zeroed int32 rows, on all cores.

        Row rows[i] (without `rows`: i) gets the mask at the end of paths[i] from states[i] (without
        `paths`: of the state itself), the rows behind it the masks after each token of drafts[i], as
        far as the tokens are legal. Rows after an end, an illegal token or a resource limit, and where
        nothing can follow, stay zero.
        """
        ...

    def fill(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
        paths: Sequence[Sequence[int]] | None = None,
    ) -> list[int]:
        """Make a job and run it at once. Returns the indices of states that hit a limit themselves."""
        job = self.job(states, mask_RK, rows, drafts, paths=paths)
        job.run()
        return [i for i, filled in enumerate(job.settle()) if filled is None]

    def close(self) -> None:
        """End the library's threads and processes; nothing is compiled afterwards."""
        ...
