"""A matcher of llguidance that goes through drafts and comes back.

The library keeps a matcher's last mask by the lexer's state and the number of the parser's row, also
when it has gone back: of `"a" "t" "h" | "c" "t" "o"` it would allow `th` after `c` once it has been
asked after `a`. So a reader that goes to a place which does not follow the one where it was asked last
is copied anew, or, where that is dear, asked first for the mask of where the two part.

Promises: a reader stands where it is told to, or fails as a fresh copy fails there.
Does not know: masks, grammars, which thread it is in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock

import llguidance

from eyas.constraint.base import ConstraintFailure
from eyas.constraint.library_calls import OF_THE_HOST, when_free, without_panic

FAR = 64
"""Tokens that a reader may be behind its state; from then on a copy is quicker."""
CHEAP_SECONDS, DEAR_SECONDS = 2e-5, 4e-5
"""A copy that takes longer is dear, about as long as a mask; one that takes less ends it."""
READS = 2
"""Times that a token is read more often by a reader than by copies, about."""
FADES = 0.95
"""How much of the longest time that a token took is still believed at the next one; refused ones tell
nothing."""
SURE = 8
"""So many dear copies one after the other are no chance. Only speed hangs on these."""
LIMIT_HIT = (
    "the output grammar is too complex to go on from here; lower its repetition counts or lengths"
)

Path = tuple[int, ...]


class CopyCost:
    """What the states of an output share. lane: of its grammar."""

    __slots__ = ("__weakref__", "_num_expensive", "_token_seconds", "replica")

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self._num_expensive = 0
        self._token_seconds = 0.0

    @property
    def is_expensive_to_copy(self) -> bool:
        """Are copies of its matchers?"""
        return self._num_expensive >= SURE

    def copied(self, matcher: llguidance.LLMatcher) -> llguidance.LLMatcher:
        """A matcher that stands where this one does and is the caller's own."""
        begin = time.perf_counter()
        with without_panic:
            copy = when_free(matcher.deep_copy)
        seconds = time.perf_counter() - begin - READS * self._token_seconds
        if seconds > DEAR_SECONDS:
            self._num_expensive += 1
        elif seconds < CHEAP_SECONDS or not self.is_expensive_to_copy:
            self._num_expensive = 0
        return copy

    def read(self, matcher: llguidance.LLMatcher, tokens: Sequence[int]) -> int:
        """Have a matcher read tokens as far as they are legal; how many are."""
        begin = time.perf_counter()
        num = matcher.try_consume_tokens(list(tokens))
        seconds = (time.perf_counter() - begin) / len(tokens)
        self._token_seconds = max(seconds, FADES * self._token_seconds)
        return num


class RollbackMatcher:
    """matcher: a copy of `state`, the matcher of the reader's state, and copied anew where it fails.
    lock: held by who uses the reader or moves its state.

    Places are tokens since some place at or before the state: `_here` leads to the state, `_at` to the
    matcher, `_asked` to where it was asked for its last mask, or to a place behind that one.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, state: llguidance.LLMatcher, copy_cost: CopyCost
    ) -> None:
        self.lock = Lock()
        self.matcher = matcher
        self._state = state
        self._place = copy_cost
        self._is_fit = True
        self._here: Path = ()
        self._at: Path = ()
        self._asked: Path = ()

    def _renew(self) -> None:
        self._is_fit = False
        self.matcher = self._place.copied(self._state)
        self._is_fit = True
        self._here = self._at = self._asked = ()

    def spoil(self) -> None:
        """Something has failed on the way; nobody knows where it stands."""
        self._is_fit = False

    def follow(self, tokens: Path, state: llguidance.LLMatcher) -> bool:
        """Its state is from now on the one after these tokens. Returns whether it is fit for that."""
        here = self._here + tokens
        num = min(_common(here, self._at), _common(here, self._asked))
        self._here, self._at, self._asked = here[num:], self._at[num:], self._asked[num:]
        self._state = state
        return len(self._here) <= FAR

    def stand(self, path: Path) -> bool:
        """Go to where a path leads from the state; False where it is not legal. ConstraintFailure at a
        limit, which a fresh copy hits as well."""
        if not self._tries_to_go(self._here + path):
            self._renew()
            with without_panic:
                self._go(path)
        return len(self._at) == len(self._here) + len(path)

    def _tries_to_go(self, copy_cost: Path) -> bool:
        """False where it fails, has failed before, or cannot go back."""
        if not self._is_fit:
            return False
        try:
            self._go(copy_cost)
        except OF_THE_HOST:
            raise
        except BaseException:
            self.spoil()
        return self._is_fit

    def _go(self, copy_cost: Path) -> None:
        """As far as the tokens are legal."""
        num = _common(self._at, copy_cost)
        if num < len(self._at):
            self.matcher.rollback(len(self._at) - num)
            self._at = copy_cost[:num]
        if num < len(copy_cost):
            num += self._place.read(self.matcher, copy_cost[num:])
            self._at = copy_cost[:num]
        if when_free(self.matcher.is_error):
            raise ConstraintFailure(LIMIT_HIT)

    def takes_detour(self, path: Path) -> bool:
        """Is it to be asked for another mask before the one that stands at `path`? Then it is there."""
        parting = self._parting(self._here + path)
        if parting is None:
            return False
        if not self._place.is_expensive_to_copy or not self._tries_to_go(parting):
            self._renew()
            return False
        self._asked = parting
        return True

    def _parting(self, copy_cost: Path) -> Path | None:
        """Where the way to a place leaves that to where it was asked; None where one leads on to the
        other: a mask that has the lexer's state and the number of rows of a place before is its own."""
        num = _common(self._asked, copy_cost)
        return None if num in (len(self._asked), len(copy_cost)) else copy_cost[:num]

    def note_asked(self, path: Path) -> None:
        """Its last mask is the one at `path`."""
        self._asked = self._here + path


def _common(one: Path, other: Path) -> int:
    """How many tokens two paths share from their beginning on."""
    num = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        num += 1
    return num
