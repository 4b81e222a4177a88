"""A limit on the text at the beginning of an output: when it is used up, its closing tokens follow.

Promises: the count depends on the text's tokens alone, so plain and drafted decoding close at the same
token.
Does not know: grammars, what is limited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from eyas.grammar import Budget


@dataclass(frozen=True, slots=True)
class BudgetCount:
    """How much of a budget a text has used. num_tokens: so far; tail: the text's last bytes, as many as
    the beginning of a spelled end may have; num_closed: closing tokens so far."""

    budget: Budget
    token_bytes: Callable[[int], bytes]
    num_tokens: int = 0
    tail: bytes = b""
    num_closed: int = 0

    @property
    def must_follow(self) -> int | None:
        """The only token that may come next where the grammar allows it; None while the model may
        choose."""
        if self.num_closed == 0 and self.num_tokens < self.budget.max_tokens:
            return None
        return self.budget.closing[self.num_closed]

    def after(self, token: int) -> BudgetCount | None:
        """Return the count one token later; None once the limited text has ended."""
        budget = self.budget
        if token == self.must_follow:
            num_closed = self.num_closed + 1
            done = num_closed == len(budget.closing)
            return None if done else replace(self, num_closed=num_closed)
        if any(end.token_id == token for end in budget.ends):
            return None
        spelled = [end.text.encode() for end in budget.ends if end.is_text]
        tail = self.tail + self.token_bytes(token)
        if any(text in tail for text in spelled):
            return None
        kept = max((len(text) for text in spelled), default=1) - 1
        return replace(self, num_tokens=self.num_tokens + 1, tail=tail[-kept:] if kept else b"")
