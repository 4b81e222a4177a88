"""What all rewrites of one schema share.

Does not know: any keyword but $ref.
"""

from __future__ import annotations

import time
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.ecma import read
from eyas.schemas.keywords import Schema
from eyas.schemas.lengths import bounded, lengths, rotated
from eyas.schemas.limits import MAX_CASES, MAX_SCHEMAS, MAX_SECONDS, fail
from eyas.schemas.references import References
from eyas.schemas.trees import Node, PatternFault, written


class Context:
    """One schema on its way through.

    param: the request's field, for errors. draft: the year or number of the schema's draft.
    lenient: what cannot be enforced is left out instead of refused. schemas: the objects among the
    schemas that the root leads to, once they are checked. places: where a definition of the result
    stood.
    """

    def __init__(self, document: Schema, param: str, draft: int, lenient: bool) -> None:
        self.param = param
        self.draft = draft
        self.lenient = lenient
        self.references = References(document, draft, param)
        self.places: dict[str, str] = {"#": "#"}
        self.schemas: list[dict[str, Any]] = []
        self._patterns: dict[str, Node] = {}
        self._cases_left = MAX_CASES
        self._ends = time.thread_time() + MAX_SECONDS
        self._schemas_left = MAX_SCHEMAS

    @property
    def root(self) -> Schema:
        """The document, its references absolute."""
        return self.references.root

    def resolve(self, schema: dict[str, Any], place: str) -> tuple[Any, str]:
        """The target of the schema's $ref, and where it stands."""
        return self.references.resolve(schema["$ref"], place)

    def check_time(self) -> None:
        """No schema may take longer than this, of its thread's own processor time."""
        if time.thread_time() > self._ends:
            message = (
                f"{self.param}: preparing the schema took more than {MAX_SECONDS:g} seconds; make it "
                "smaller: fewer choices, conditions and patterns"
            )
            raise GrammarError(message, "timeout", param=self.param)

    def count(self) -> None:
        """One more schema is rewritten."""
        self.check_time()
        self._schemas_left -= 1
        if self._schemas_left < 0:
            message = f"{self.param}: has more than {MAX_SCHEMAS} schemas; make it smaller"
            raise GrammarError(message, "too_complex", param=self.param)

    def spend(self, place: str, amount: int = 1) -> None:
        """Counts cases that are written out, so that no schema can ask for more than the limit."""
        self.check_time()
        self._cases_left -= amount
        if self._cases_left < 0:
            message = (
                "takes too many cases to write out; use fewer oneOf, not, if and dependencies, or "
                "tell options apart by one required property with different const values"
            )
            raise fail(self.param, place, message, "too_complex")

    def pattern(self, text: str, place: str) -> str:
        """A pattern of the schema as the backend takes it."""
        return written(self._read(text, place))

    def pattern_with_lengths(
        self, text: str, place: str, least: int, most: int | None
    ) -> tuple[str, int | None, int | None]:
        """The same, and what is left to be said of the lengths of its texts beside it."""
        node = self._read(text, place)
        narrowed = bounded(node, least, most)
        if narrowed is not None:
            return written(narrowed), None, None
        low, high = lengths(node)
        above = None if most is None or (high is not None and high <= most) else most
        return written(node), least if least > low else None, above

    def _read(self, text: str, place: str) -> Node:
        if text not in self._patterns:
            self.check_time()
            try:
                self._patterns[text] = rotated(read(text))
            except PatternFault as fault:
                message = f"the pattern is refused: {fault}"
                raise fail(self.param, place, message, fault.fault) from None
        return self._patterns[text]

    def unsupported(self, place: str, message: str) -> GrammarError:
        """The error for a keyword that would be ignored."""
        return fail(self.param, place, message, "unsupported")

    def invalid(self, place: str, message: str) -> GrammarError:
        """The error for what means nothing."""
        return fail(self.param, place, message, "invalid")
