"""A matcher of llguidance that goes through drafts and comes back.

A copy of a matcher takes longer with every row of its parser, 0.1 ms after 1,000 tokens of JSON. So an
output has a second matcher, which reads what the first one reads, goes through the output's drafts and
is rolled back. The first is never rolled back.

The library caches a matcher's last mask by the lexer's state and the number of the parser's row, and
keeps it over a rollback: of `"a" "t" "h" | "c" "t" "o"` it would allow `th` after `c` once it has been
asked after `a`. The cached mask is right at every place on the way to where it was asked and behind
that place. So before a mask elsewhere the matcher is asked once at a place that both ways begin with.

Promises: masks are those of a fresh copy.
Does not know: grammars, mask rows, threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from eyas.constraint.library_calls import when_free

FAR = 64
"""Tokens after which a copy is quicker than a matcher that has not been asked for a mask meanwhile."""

Path = tuple[int, ...]


class DraftMatcher:
    """matcher: a copy that nobody else has. borrower: uses it at present. is_fit: it stands at its
    output's place and may be used.

    Paths are tokens from `home`, a place at or before the output's: `_here` leads to the output's
    place, `_asked` to where the last mask was asked for, or to a place behind that one; None: the
    cached mask is right everywhere.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher
        self.borrower: object | None = None
        self.is_fit = True
        self._here: Path = ()
        self._asked: Path | None = None

    def follow(self, tokens: Sequence[int]) -> bool:
        """Move the output's place over these tokens. Returns whether it can be used from there on."""
        self._here += tuple(tokens)
        if self.borrower is not None or not self.is_fit or len(self._here) > FAR:
            return False
        return self.matcher.try_consume_tokens(list(tokens)) == len(tokens)

    def renew(self, matcher: llguidance.LLMatcher) -> None:
        """Go on with another copy, which stands at the output's place."""
        self.matcher, self.is_fit = matcher, True
        self._here, self._asked = (), None

    def is_astray(self, path: Path) -> bool:
        """Whether its cached mask may be wrong at `path` from the output's place, or behind it."""
        if self._asked is None:
            return False
        place = self._here + path
        num = min(len(place), len(self._asked))
        return self.is_fit and place[:num] != self._asked[:num]

    def go_home(self) -> None:
        """Stand at home, to be asked for a mask there; `go_back` returns."""
        self._roll_back(len(self._here))

    def go_back(self) -> None:
        """Stand at the output's place again, which is home from now on."""
        here, self._here, self._asked = self._here, (), None
        self.is_fit = self._read(here) == len(here)

    def enter(self, path: Path) -> bool:
        """Move along a path from the output's place. Returns whether all of it is legal; it stays at
        the output's place where it is not."""
        num = self._read(path)
        if num < len(path):
            self._roll_back(num)
        return self.is_fit and num == len(path)

    def leave(self, path: Path, draft: Path) -> None:
        """Return to the output's place from the end of a path, where the masks of a draft were asked
        for."""
        if self._asked is None or self._here[: len(self._asked)] == self._asked:
            self._here = ()
        self._asked = self._here + path + draft
        self._roll_back(len(path))

    def _read(self, tokens: Path) -> int:
        return self.matcher.try_consume_tokens(list(tokens)) if tokens else 0

    def _roll_back(self, num: int) -> None:
        if when_free(self.matcher.is_error) or (num and not self.matcher.rollback(num)):
            self.is_fit = False
