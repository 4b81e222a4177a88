"""The doors of constrained output: a backend compiles a grammar; its states mask tree nodes.

Promises: a state never changes unless it is given up, and what it allows depends on the tokens that led
to it alone.
Does not know: models, drafters, sampling, requests.

Legend: R mask rows, K 32-bit words of a row (bit i of word j: token 32 * j + i is allowed), N drafts,
D their most tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    def is_expensive_to_copy(self) -> bool:
        """Do copies of it take long? Then who moves on gives it up, with all that walks have found."""
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

    def become(self, tokens: Sequence[int]) -> State | None:
        """As `after_all`, from a state that is given up: nobody may ask it for anything afterwards."""
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


def along(
    states: Sequence[State],
    rows: Sequence[int] | None,
    drafts: Sequence[Sequence[int]] | None,
) -> Iterator[tuple[int, State]]:
    """What `Backend.job` is asked for, state by state, with their rows."""
    for i, first in enumerate(states):
        state: State | None = first
        row = i if rows is None else rows[i]
        left = list(() if drafts is None else drafts[i])
        while state is not None:
            yield row, state
            state = state.after(left.pop(0)) if left else None
            row += 1


def allows(mask_K: np.ndarray, token: int) -> bool:
    """Does a mask allow this token?"""
    return bool(mask_K.item(token // 32) >> token % 32 & 1)


class Filled(NamedTuple):
    """The masks of a state and its draft. num_legal: tokens of the draft that they allow; num_masks:
    how many there are, one more unless the text is over or a limit was hit."""

    num_legal: int
    num_masks: int


def num_legal(
    mask_RK: np.ndarray, rows: Sequence[int], drafts: Sequence[Sequence[int]]
) -> list[int]:
    """How many tokens of drafts[i] the masks from rows[i] on allow, up to the first that is refused."""
    num, longest = len(drafts), max(map(len, drafts), default=0)
    if not longest:
        return [0] * num
    tokens_ND = np.array([[*draft, *[-1] * (longest - len(draft))] for draft in drafts])
    is_id_ND = (tokens_ND >= 0) & (tokens_ND < 32 * mask_RK.shape[1])
    tokens_ND[~is_id_ND] = 0
    rows_ND = np.array(rows)[:, None] + np.arange(longest)
    words_ND = mask_RK[np.minimum(rows_ND, len(mask_RK) - 1), tokens_ND // 32]
    is_legal_ND = is_id_ND & ((words_ND >> tokens_ND % 32 & 1) != 0)
    found: list[int] = np.logical_and.accumulate(is_legal_ND, axis=1).sum(axis=1).tolist()
    return found


def counted(
    mask_RK: np.ndarray,
    rows: Sequence[int] | None,
    drafts: Sequence[Sequence[int]],
    failed: Collection[int] = (),
) -> list[Filled | None]:
    """What `MaskJob.settle` returns, told from the masks. failed: states that hit a limit."""
    first = range(len(drafts)) if rows is None else rows
    return [
        None if i in failed else Filled(num, num + bool(mask_RK[row + num].any()))
        for i, (row, num) in enumerate(zip(first, num_legal(mask_RK, first, drafts), strict=True))
    ]


class Grammar(Protocol):
    """A compiled grammar.

    num_bytes: about how much memory it takes now. num_replicas: there are now; outputs that start in
    different ones do not wait for each other's masks, and who starts is in the next one. canonical:
    grammars that allow less, with the usual white space only, so that more of the text is forced; their
    states overlook white space that is another.
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
        """Before the first token. fresh: share nothing with other states that could count against a
        resource limit."""
        ...


@dataclass(frozen=True, slots=True)
class MaskJob:
    """Masks to be filled. run: the library's own work, without the interpreter's lock over most of it
    where it can; once, in any thread. settle: after it, where the job was made; it returns what became
    of each state, None where one hit a limit itself. Rows are what they are to be after it, not
    before."""

    run: Callable[[], None]
    settle: Callable[[], list[Filled | None]]


class Backend(Protocol):
    """A grammar library over one tokenizer; used from several threads."""

    name: str
    eos_token_ids: frozenset[int]

    def compile(self, spec: OutputSpec) -> Grammar:
        """`eyas.core.GrammarError` says what is wrong with it and where."""
        ...

    def expect(self, states: Sequence[State], *, once: bool = False) -> None:
        """Masks of these states and of drafts behind them will be asked for soon; what can be done for
        them before the drafts are known is done now. once: by one request, and nothing will be asked of
        them after it. Nothing, for most libraries."""
        return None

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        """Write the mask of states[i] into the zeroed int32 row rows[i] (without `rows`: i), and those
        after each token of drafts[i] into the rows behind it, as far as tokens are legal: over all
        cores. What is left of these rows after an end, or where a resource limit is hit, stays zero.
        """
        ...

    def fill(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> list[int]:
        """A job, done at once: the indices of states that hit a limit themselves."""
        job = self.job(states, mask_RK, rows, drafts)
        job.run()
        return [i for i, filled in enumerate(job.settle()) if filled is None]

    def close(self) -> None:
        """End its threads and processes; nothing is compiled afterwards."""
        ...
