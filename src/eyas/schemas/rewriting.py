"""What the keywords of objects and arrays ask of whoever rewrites the schemas around them.

Does not know: how a keyword is rewritten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from eyas.core import GrammarError
from eyas.schemas.beside import Beside
from eyas.schemas.context import Context
from eyas.schemas.disjoint import Disjointness
from eyas.schemas.keywords import Schema

_Found = TypeVar("_Found")


class Rewriting(ABC):
    """The rewriting of one document."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.beside = Beside(context)
        self.disjointness = Disjointness(context)

    @abstractmethod
    def schema(self, schema: Schema, place: str) -> Schema:
        """One schema and all below it, as it must hold."""

    def attempt(self, write: Callable[[], _Found], otherwise: _Found) -> _Found:
        """What `write` returns, or `otherwise` where that cannot be enforced and the request is
        lenient."""
        try:
            return write()
        except GrammarError as error:
            if error.fault != "unsupported" or not self.context.lenient:
                raise
            return otherwise
