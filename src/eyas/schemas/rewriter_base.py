"""The part of the rewriter that the keywords of objects and arrays need.

Does not know: how a keyword is rewritten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from eyas.core import GrammarError
from eyas.schemas.context import Context
from eyas.schemas.disjoint import Disjointness
from eyas.schemas.keywords import Schema
from eyas.schemas.siblings import Siblings

_Result = TypeVar("_Result")


class RewriterBase(ABC):
    """The rewriting of one document."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.siblings = Siblings(context)
        self.disjointness = Disjointness(context)

    @abstractmethod
    def schema(self, schema: Schema, path: str) -> Schema:
        """Rewrite one schema and all below it."""

    def attempt(self, write: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Return `write()`; in a lenient request return `otherwise` for what cannot be enforced."""
        try:
            return write()
        except GrammarError as error:
            if error.fault != "unsupported" or not self.context.lenient:
                raise
            return otherwise
